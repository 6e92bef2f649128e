"""What torch's allocator says of itself. Never starts CUDA: without a context there is nothing to read, and that is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def memory(device: torch.device) -> tuple[int | None, int | None]:
    """(allocated, reserved) bytes now. Costs under 0.1 ms. Any thread."""
    stats = _stats(device)
    return _figure(stats, "allocated_bytes", "current"), _figure(stats, "reserved_bytes", "current")


class AllocatorPeaks:
    """The peak counters of one device. `reset` starts them anew for the whole process, as the host's own monitors do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        if _readable(self._device):
            torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> tuple[int | None, int | None]:
        """(allocated, reserved): the most bytes at once since `reset`."""
        stats = _stats(self._device)
        return _figure(stats, "allocated_bytes", "peak"), _figure(stats, "reserved_bytes", "peak")


def _readable(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_initialized()


def _stats(device: torch.device) -> dict[str, Any]:
    """The nested form: a quarter of the cost of the flat one, which sorts some hundred names."""
    return torch.cuda.memory_stats_as_nested_dict(device) if _readable(device) else {}


def _figure(stats: dict[str, Any], name: str, which: str) -> int | None:
    value = stats.get(name, {}).get("all", {}).get(which)
    return None if value is None else int(value)


#: Metric to the allocator's own name of it, and whether only torch's native allocator keeps it.
_FIGURES = {
    "allocated_bytes": ("allocated_bytes", "current", False),
    "reserved_bytes": ("reserved_bytes", "current", False),
    "active_bytes": ("active_bytes", "current", False),
    "requested_bytes": ("requested_bytes", "current", True),
    "inactive_split_bytes": ("inactive_split_bytes", "current", True),
    "peak_allocated_bytes": ("allocated_bytes", "peak", False),
    "peak_reserved_bytes": ("reserved_bytes", "peak", False),
}
_COUNTS = {"alloc_retry_count": "num_alloc_retries", "oom_count": "num_ooms"}


class AllocatorSampler:
    """The allocator's statistics. Never raises, and starts no CUDA. pinned: bytes of host memory that modes hold locked."""

    name = "allocator"
    note: str | None = None

    def __init__(self, device: torch.device, period_s: float, pinned: Callable[[], int | None] = lambda: None) -> None:
        self._device, self.period_s, self._pinned = device, period_s, pinned

    def sample(self) -> dict[str, float | None]:
        stats = self._read()
        native = bool(stats) and torch.cuda.get_allocator_backend() == "native"
        values: dict[str, float | None] = {
            name: _figure(stats, stat, which) if native or not only_native else None
            for name, (stat, which, only_native) in _FIGURES.items()
        }
        return {**values, **{name: stats.get(stat) for name, stat in _COUNTS.items()}, "pinned_bytes": self._pinned()}

    def close(self) -> None:
        return

    def _read(self) -> dict[str, Any]:
        try:
            return _stats(self._device)
        except RuntimeError:  # the device failed
            return {}
