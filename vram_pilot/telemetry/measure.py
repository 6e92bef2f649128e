"""How fast this machine copies between host and card, and within the card. A few seconds, on an otherwise idle card."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

import torch

from vram_pilot.errors import UsageError, VramPilotError
from vram_pilot.oom import is_out_of_memory
from vram_pilot.telemetry.cuda_device import DeviceFacts
from vram_pilot.telemetry.measured import Measured, Spread
from vram_pilot.telemetry.nvml import Fault, Nvml, text
from vram_pilot.units import MIB

REPEATS = 10
_LARGEST_BYTES, _SMALLEST_BYTES = 256 * MIB, 16 * MIB
#: An idle link and an idle card run slowly; copies for this long wake them.
_WARM_UP_S = 0.3

Copy = Callable[[], object]


@dataclass(frozen=True)
class _Way:
    """One way to copy. factor: how often each byte crosses what is measured."""

    name: str
    copy: Copy
    factor: int = 1


def measure(ordinal: int = 0) -> Measured:
    """The rates of CUDA's card `ordinal`, in this process. Makes a CUDA context. Raises VramPilotError, UsageError."""
    device = _card(ordinal)
    try:
        size_bytes = _size(device)
        rates = copy_rates(device, size_bytes)
    except RuntimeError as error:
        what = (
            "There is not enough memory to measure in" if is_out_of_memory(error) else "The card failed while it was measured"
        )
        raise VramPilotError(what, found=str(error), do="End what else uses the card, and try again.") from error
    identity = DeviceFacts(device)()
    properties = torch.cuda.get_device_properties(device)
    uuid = "unknown" if identity.uuid is None else f"GPU-{identity.uuid.removeprefix('GPU-')}"
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Measured(uuid, properties.name, driver_version(), torch.__version__, now, size_bytes, rates)


def copy_rates(
    device: torch.device,
    size_bytes: int,
    *,
    timed: Callable[[Copy], float] | None = None,
    pinned: Callable[[int], torch.Tensor] | None = None,
    warm_up_s: float = _WARM_UP_S,
) -> dict[str, Spread]:
    """Ten copies each way. timed: seconds that a copy takes on the device; pinned: page-locked host memory of so many bytes."""
    timed = timed or _timed_by_events(device)
    locked = (pinned or _pinned)(size_bytes)
    paged = torch.ones(size_bytes, dtype=torch.uint8)  # written to, so that each page is there
    here = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    there = torch.empty_like(here)
    ways = (
        _Way("pinned_to_device", lambda: here.copy_(locked, non_blocking=True)),
        _Way("pinned_to_host", lambda: locked.copy_(here, non_blocking=True)),
        _Way("pageable_to_device", lambda: here.copy_(paged, non_blocking=True)),
        _Way("pageable_to_host", lambda: paged.copy_(here, non_blocking=True)),
        _Way("device", lambda: there.copy_(here, non_blocking=True), factor=2),
    )
    return {way.name: _spread(way, size_bytes, timed, warm_up_s) for way in ways}


def driver_version(nvml: Nvml | None = None) -> str | None:
    """The driver's version by NVML, None where that cannot be asked."""
    nvml = nvml or Nvml()
    try:
        nvml.open()
        return text(nvml.call("nvmlSystemGetDriverVersion"))
    except Fault:
        return None
    finally:
        nvml.close()


def _spread(way: _Way, size_bytes: int, timed: Callable[[Copy], float], warm_up_s: float) -> Spread:
    end_s = time.monotonic() + warm_up_s
    timed(way.copy)
    while time.monotonic() < end_s:
        timed(way.copy)
    rates = sorted(way.factor * size_bytes / timed(way.copy) for _ in range(REPEATS))
    return Spread(statistics.median(rates), rates[0], rates[-1], len(rates))


def _timed_by_events(device: torch.device) -> Callable[[Copy], float]:
    stream = torch.cuda.Stream(device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def timed(copy: Copy) -> float:
        with torch.cuda.stream(stream):
            start.record(stream)
            copy()
            end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    return timed


def _pinned(size_bytes: int) -> torch.Tensor:
    return torch.ones(size_bytes, dtype=torch.uint8).pin_memory()


def _card(ordinal: int) -> torch.device:
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        raise VramPilotError(
            "Copy rates are those of a CUDA card, and torch finds none",
            found=f"torch {torch.__version__}, " + (f"built for {built}" if built else "built without CUDA"),
            do="Run this where the WebUI computes on its card, with the WebUI's own Python.",
        )
    count = torch.cuda.device_count()
    if not 0 <= ordinal < count:
        raise UsageError("There is no such card", found=ordinal, do=f"Use a number from 0 to {count - 1}.")
    return torch.device("cuda", ordinal)


def _size(device: torch.device) -> int:
    """Enough to be past every cache, little enough for a card that is nearly full. Raises VramPilotError."""
    free, _ = torch.cuda.mem_get_info(device)
    size_bytes = min(_LARGEST_BYTES, free // 4 // MIB * MIB)
    if size_bytes < _SMALLEST_BYTES:
        raise VramPilotError(
            "There is not enough free memory on the card to measure in",
            found=f"{free // MIB} MiB free",
            do="End what else uses the card, and try again.",
        )
    return size_bytes
