"""How torch's allocator has cut up what it holds: the largest free block and the fragmentation.

A snapshot takes about 1 ms for 2,000 blocks, during which the allocator serves nobody: it is taken rarely, and the longer it
takes, the more rarely.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vram_pilot.telemetry.backoff import Backoff

#: A snapshot may take this share of the time.
_SHARE = 0.001
_OTHER_BACKEND = "The allocator {} keeps no list of its blocks: fragmentation and the largest free block stay empty."


@dataclass(frozen=True)
class Segments:
    """free_bytes: held by torch and given to nobody; pool_bytes: held for CUDA graphs alone, and counted in nothing else."""

    free_bytes: int
    largest_free_bytes: int
    pool_bytes: int

    @property
    def fragmentation_ratio(self) -> float | None:
        """1 − largest free block ÷ all that is free; None when nothing is."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else None


def summarize(segments: Iterable[Mapping[str, Any]], device_index: int) -> Segments:
    """Of one device, from the list that `torch.cuda.memory_snapshot` gives."""
    free = largest = pool = 0
    for segment in segments:
        if segment.get("device", device_index) != device_index:
            continue
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            pool += int(segment["total_size"])
            continue
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                free += int(block["size"])
                largest = max(largest, int(block["size"]))
    return Segments(free, largest, pool)


def light_snapshot() -> list[dict[str, Any]]:
    """The allocator's blocks, without the history that newer versions of torch add unless told otherwise."""
    if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters:
        return list(torch.cuda.memory_snapshot(include_traces=False))
    return list(torch.cuda.memory_snapshot())


class SegmentsSampler:
    """Never raises. A snapshot that fails leaves the statistics, and is warned of once."""

    name = "allocator-segments"
    _NAMES = ("reserved_free_bytes", "largest_free_block_bytes", "fragmentation_ratio", "graph_pool_bytes")

    def __init__(
        self,
        device: torch.device,
        period_s: float,
        *,
        warn: Callable[[str], None],
        snapshot: Callable[[], list[dict[str, Any]]] = light_snapshot,
        started: Callable[[], bool] = torch.cuda.is_initialized,
        backend: Callable[[], str] = torch.cuda.get_allocator_backend,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period_s = period_s
        self.note: str | None = None
        self._index = device.index or 0
        self._warn, self._snapshot, self._started, self._backend, self._monotonic = warn, snapshot, started, backend, monotonic
        self._troubles = Backoff()
        self._not_before_s = 0.0
        self._warned = False

    def sample(self) -> dict[str, float | None]:
        """Nothing while the cost of the last snapshot forbids the next."""
        if self._monotonic() < self._not_before_s:
            return {}
        found = self._read()
        if found is None:
            return dict.fromkeys(self._NAMES)
        values = (found.free_bytes, found.largest_free_bytes, found.fragmentation_ratio, found.pool_bytes)
        return dict(zip(self._NAMES, values))

    def close(self) -> None:
        self._troubles.worked()

    def _read(self) -> Segments | None:
        start_s = self._monotonic()
        if not self._troubles.ready(start_s) or not self._started():
            return None
        try:
            if self._backend() != "native":
                self.note = _OTHER_BACKEND.format(self._backend())
                return None
            found = summarize(self._snapshot(), self._index)
        except (RuntimeError, TypeError, LookupError, AttributeError, ValueError) as error:
            self._failed(error)
            return None
        now_s = self._monotonic()
        self._not_before_s = now_s + (now_s - start_s) / _SHARE
        self._troubles.worked()
        self.note = None
        return found

    def _failed(self, error: Exception) -> None:
        self._troubles.failed(self._monotonic(), unsupported=True)
        self.note = f"This torch gives no list of the allocator's blocks ({type(error).__name__}); its statistics go on."
        if not self._warned:
            self._warned = True
            self._warn(self.note)
