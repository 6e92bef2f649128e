"""Copies to the device beside the computation. On CUDA a stream of its own, ordered by events alone; elsewhere plain copies."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class CopyEngine(Protocol):
    """Every method runs on the sampling thread and returns without waiting for the device, except `drain`."""

    device: torch.device

    def upload(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> Any:
        """Copies `source` (host) into `target` (device, uint8) once the mark `after` is reached; answers the copy's mark."""

    def mark(self) -> Any:
        """A mark at the present end of the computation's stream."""

    def wait(self, mark: Any) -> None:
        """Makes the computation's stream wait for `mark`."""

    def drain(self) -> None:
        """Waits until every copy and every computation issued so far is done."""


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

    def drain(self) -> None:
        if self.device.type == "mps":
            torch.mps.synchronize()


class CudaCopies:
    """A copy stream on one CUDA (or ROCm) device. The buffers live for the whole mode, so no block is ever recycled under a copy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def upload(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> Any:
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            target[: source.numel()].copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._stream)
        return done

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, mark: Any) -> None:
        if mark is not None:
            torch.cuda.current_stream(self.device).wait_event(mark)

    def drain(self) -> None:
        self._stream.synchronize()
        torch.cuda.current_stream(self.device).synchronize()


def copy_engine(device: torch.device) -> CopyEngine:
    """The engine for `device`."""
    return CudaCopies(device) if device.type == "cuda" else PlainCopies(device)


class Slot:
    """One device buffer. holds: index of the unit whose weights are in it, None when free; free_after: the mark of its last use."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.holds: int | None = None
        self.ready: Any = None
        self.free_after: Any = None


class SlotRing:
    """Equal device buffers, handed out in turn. `extra_bytes` counts what had to be allocated beyond them."""

    def __init__(self, engine: CopyEngine, count: int, size_bytes: int) -> None:
        self.engine = engine
        self._free = [Slot(torch.empty(size_bytes, dtype=torch.uint8, device=engine.device)) for _ in range(count)]
        self.slots = tuple(self._free)
        self.size_bytes = size_bytes
        self.extra_bytes = 0

    def free_count(self) -> int:
        return len(self._free)

    def fill(self, index: int, source: torch.Tensor, start: Any) -> Slot:
        """Starts copying `source` into a free slot; in want of one that fits, into a buffer made for it (a nested or changed unit)."""
        if self._free and source.numel() <= self.size_bytes:
            slot = self._free.pop(0)
        else:
            slot = Slot(torch.empty(source.numel(), dtype=torch.uint8, device=self.engine.device))
            slot.free_after = self.engine.mark()  # the allocator may have handed out a block that is still being read
            self.extra_bytes += source.numel()
        slot.holds = index
        slot.ready = self.engine.upload(slot.flat, source, slot.free_after if slot.free_after is not None else start)
        return slot

    def give_back(self, slot: Slot) -> None:
        """The unit in it has been used: free for the next copy once the computation has passed this point."""
        slot.holds = None
        slot.free_after = self.engine.mark()
        if slot in self.slots:
            self._free.append(slot)
        else:
            self.engine.wait(slot.ready)  # its memory goes back to the allocator of the computation's stream
