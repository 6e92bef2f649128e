"""The card's memory: how much is used, and by whom."""

from __future__ import annotations

import os
from typing import Any

from vram_pilot.telemetry.field import OpenCard, Values
from vram_pilot.telemetry.nvml import Fault, number

_COMPUTE = tuple(f"nvmlDeviceGetComputeRunningProcesses{version}" for version in ("_v3", "_v2", ""))
_GRAPHICS = tuple(f"nvmlDeviceGetGraphicsRunningProcesses{version}" for version in ("_v3", "_v2", ""))


class Memory:
    """The second form of the call tells the driver's own share apart from what is used; the first counts it in."""

    names = ("gpu_used_bytes", "gpu_free_bytes", "gpu_total_bytes", "gpu_reserved_bytes")

    def __init__(self) -> None:
        self._second = True

    def read(self, card: OpenCard) -> Values:
        info = self._read(card)
        return number(info.used), number(info.free), number(info.total), number(getattr(info, "reserved", None))

    def close(self, card: OpenCard) -> None:
        self._second = True

    def _read(self, card: OpenCard) -> Any:
        if self._second:
            version = card.nvml.constant("nvmlMemory_v2", 0x02000028)
            try:
                return card.nvml.call("nvmlDeviceGetMemoryInfo", args=(card.handle,), version=version)
            except Fault as fault:
                if fault.kind == "lost":
                    raise
        info = card.nvml.call("nvmlDeviceGetMemoryInfo", args=(card.handle,))
        self._second = False  # only now: the first form works where the second does not
        return info


class Holders:
    """What this process holds of the card, and all others together.

    Windows' display driver model tells neither, nor does a container whose process numbers the driver does not know.
    """

    names = ("gpu_process_bytes", "gpu_other_processes_bytes")

    def __init__(self) -> None:
        self._own_pid = os.getpid()

    def read(self, card: OpenCard) -> Values:
        held = self._held(card)
        others = [size for pid, size in held.items() if pid != self._own_pid]
        if self._own_pid in held:
            own = held[self._own_pid]
        elif card.has_context():  # it is among them under another number
            return None, None
        else:
            own = 0
        return own, None if None in others else sum(size for size in others if size is not None)

    def close(self, card: OpenCard) -> None:
        return

    def _held(self, card: OpenCard) -> dict[int, float | None]:
        """Process id to bytes. A process that computes and draws is listed twice, with the same figure."""
        held: dict[int, float | None] = {}
        entries = list(card.nvml.call(*_COMPUTE, args=(card.handle,)))
        try:
            entries += card.nvml.call(*_GRAPHICS, args=(card.handle,))
        except Fault as fault:  # a card that only computes, or a slice
            if fault.kind == "lost":
                raise
        for entry in entries:
            pid, size = int(entry.pid), number(entry.usedGpuMemory)
            before = held.get(pid)
            held[pid] = size if before is None or size is None else max(before, size)
        return held
