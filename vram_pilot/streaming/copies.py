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
    """A copy stream on one CUDA (or ROCm) device. The arena lives for the whole mode, so no block is
    recycled under a copy."""

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
