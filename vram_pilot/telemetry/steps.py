"""Step times on the device's own clock: CUDA events are recorded in the step path and read later, never waited for there."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from vram_pilot.session.clock import HostStepClock, StepClock

__all__ = ["CudaStepClock", "HostStepClock", "step_clock"]

_SETTLE_TIMEOUT_S = 2.0
_SETTLE_POLL_S = 0.0005


@dataclass(frozen=True)
class _Mark:
    """host_s: perf_counter seconds; event: None where no event could be recorded (CUDA not started, a capture going on)."""

    host_s: float
    event: torch.cuda.Event | None


class CudaStepClock:
    """Events on the current stream of `device`. They are pooled: `resolve` takes the earlier one back.

    Starts no CUDA context: until the host has one, and within a capture, the host's clock is used.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.cuda.Event] = []
        self._last: torch.cuda.Event | None = None

    def mark(self) -> _Mark:
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return _Mark(time.perf_counter(), None)
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._last = event
        return _Mark(time.perf_counter(), event)

    def resolve(self, earlier: _Mark, later: _Mark) -> float | None:
        if earlier.event is None or later.event is None:
            return self._by_host(earlier, later)
        if not (earlier.event.query() and later.event.query()):
            return None
        elapsed_ms = float(earlier.event.elapsed_time(later.event))
        self._free.append(earlier.event)
        return max(elapsed_ms / 1000, 0.0)

    def settle(self) -> bool:
        """Waits at most 2 s; usually not at all, since a finished job's images have left the device."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while self._last is not None and not self._last.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(_SETTLE_POLL_S)
        return True

    def _by_host(self, earlier: _Mark, later: _Mark) -> float | None:
        """The host's time, once the device has done what came before the mark that has an event."""
        event = earlier.event or later.event
        if event is not None and not event.query():
            return None
        if earlier.event is not None:
            self._free.append(earlier.event)
        return later.host_s - earlier.host_s


def step_clock(device: torch.device) -> StepClock:
    """The clock for work on `device`: CUDA's (ROCm's too) where that is what it is, else the host's."""
    return CudaStepClock(device) if device.type == "cuda" else HostStepClock()
