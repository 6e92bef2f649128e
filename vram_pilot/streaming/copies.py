"""Copies to the device beside the computation. On CUDA a stream of its own, ordered by events alone; elsewhere plain copies."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from vram_pilot.side_streams import side_stream

#: Copies that are timed together, and clock cycles a second of a fast card.
RATE_RUNS, CYCLES = 3, 2e9
#: Streams that copies take turns on: while one copy runs the next is ready, so that the bus does not wait between them.
STREAMS = 2


class CopyEngine(Protocol):
    """Every method runs on the sampling thread and returns without waiting for the device, except `drain`."""

    device: torch.device

    def upload(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> Any:
        """Copies `source` (host) into `target` (device, uint8) once the mark `after` is reached; answers the copy's mark."""

    def mark(self) -> Any:
        """A mark at the present end of the computation's stream."""

    def wait(self, mark: Any) -> None:
        """Makes the computation's stream wait for `mark`."""

    def join(self) -> None:
        """Makes the computation's stream wait for every copy issued so far."""

    def drain(self) -> None:
        """Waits until every copy and every computation issued so far is done."""

    def rate(self, target: torch.Tensor, source: torch.Tensor) -> float | None:
        """Bytes a second of copying `source` into `target`, measured now; waits for it. None where that cannot be timed."""

    def stamp(self) -> Any:
        """A mark in the computation's stream whose time can be read once it has passed; None where there is no such clock."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two stamps that have passed."""

    def hold(self, seconds: float) -> None:
        """Keeps the computation's stream busy with nothing for about so long, so that what is issued meanwhile runs back to
        back.
        """


class PlainCopies:
    """For devices without streams of their own: each copy is done when it is asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def upload(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> Any:
        target[: source.numel()].copy_(source)
        return None

    def mark(self) -> Any:
        return None

    def wait(self, mark: Any) -> None:
        return None

    def join(self) -> None:
        return None

    def drain(self) -> None:
        if self.device.type == "mps":
            torch.mps.synchronize()

    def rate(self, target: torch.Tensor, source: torch.Tensor) -> float | None:
        return None

    def stamp(self) -> Any:
        return None

    def seconds(self, start: Any, end: Any) -> float:
        return 0.0

    def hold(self, seconds: float) -> None:
        return None


class CudaCopies:
    """Copy streams on one CUDA (or ROCm) device. The arena lives for the whole mode, so no block is
    recycled under a copy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams = [side_stream(device, f"copy {number}") for number in range(STREAMS)]
        self._last: list[Any] = [None] * STREAMS  # the mark of the newest copy of each stream that nobody has joined
        self._turn = 0

    def upload(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> Any:
        self._turn = (self._turn + 1) % STREAMS
        stream = self._streams[self._turn]
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
            target[: source.numel()].copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record(stream)
        self._last[self._turn] = done
        return done

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: Any) -> None:
        if mark is not None:
            torch.cuda.current_stream(self.device).wait_event(mark)

    def join(self) -> None:
        for done in self._last:
            self.wait(done)
        self._last = [None] * STREAMS

    def drain(self) -> None:
        self._last = [None] * STREAMS
        for stream in self._streams:
            stream.synchronize()
        torch.cuda.current_stream(self.device).synchronize()

    def rate(self, target: torch.Tensor, source: torch.Tensor) -> float | None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = self._streams[0]
        with torch.cuda.stream(stream):
            target[: source.numel()].copy_(source, non_blocking=True)
            start.record(stream)
            for _ in range(RATE_RUNS):
                target[: source.numel()].copy_(source, non_blocking=True)
            end.record(stream)
        end.synchronize()
        return RATE_RUNS * source.numel() / max(float(start.elapsed_time(end)) / 1e3, 1e-9)

    def stamp(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def hold(self, seconds: float) -> None:
        with torch.cuda.device(self.device):
            torch.cuda._sleep(int(seconds * CYCLES))


def copy_engine(device: torch.device) -> CopyEngine:
    """The engine for `device`."""
    return CudaCopies(device) if device.type == "cuda" else PlainCopies(device)
