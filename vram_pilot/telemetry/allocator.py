"""What torch's allocator says of itself. Never starts CUDA: without a context there is nothing to read, and that is None."""

from __future__ import annotations

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
