"""Which units of a denoiser stay on the device, and which pass through slots. Pure.

The resident units are spread evenly over the order of the forward pass, so that copies and compute interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Device buffers that streamed units pass through: one in use, one ready, one being filled.
SLOTS = 3


@dataclass(frozen=True)
class Plan:
    """resident: indices of units that stay; slots: number of device buffers; slot_bytes: size of each."""

    resident: frozenset[int]
    slots: int
    slot_bytes: int

    @property
    def total_slot_bytes(self) -> int:
        return self.slots * self.slot_bytes


def plan(unit_bytes: Sequence[int], budget_bytes: int, slots: int = SLOTS) -> Plan:
    """unit_bytes: sizes in the order of the forward pass; budget_bytes: weights that may stay resident.

    The resident units never exceed the budget; with a budget of everything all units are resident and there is no slot.
    """
    if budget_bytes < 0 or slots < 1 or any(size < 0 for size in unit_bytes):
        raise ValueError("sizes and budget must not be negative, and there must be a slot")
    total = sum(unit_bytes)
    if total <= budget_bytes:
        return Plan(frozenset(range(len(unit_bytes))), 0, 0)
    resident, kept, due = set(), 0, 0.0
    for index, size in enumerate(unit_bytes):
        due += budget_bytes * size / total
        if kept + size <= due + 1e-6:
            resident.add(index)
            kept += size
    for index, size in sorted(enumerate(unit_bytes), key=lambda item: -item[1]):  # what is left of the budget, largest first
        if index not in resident and kept + size <= budget_bytes:
            resident.add(index)
            kept += size
    streamed = [size for index, size in enumerate(unit_bytes) if index not in resident]
    return Plan(frozenset(resident), min(slots, len(streamed)), max(streamed, default=0))
