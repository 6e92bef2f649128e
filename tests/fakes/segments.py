"""The allocator's snapshot, by hand: segments with blocks that follow each other without a gap, as torch lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

ACTIVE, AWAITED, FREE = "active_allocated", "active_awaiting_free", "inactive"


def segment(address: int, blocks: Iterable[tuple[int, str]], device: int = 0) -> dict[str, Any]:
    """blocks: (size, state) of each, lowest address first."""
    listed, at = [], address
    for size, state in blocks:
        listed.append({"size": size, "requested_size": size, "address": at, "state": state, "frames": []})
        at += size
    used = [block for block in listed if block["state"] != FREE]
    return {
        "device": device,
        "address": address,
        "total_size": at - address,
        "allocated_size": sum(block["size"] for block in used if block["state"] == ACTIVE),
        "active_size": sum(block["size"] for block in used),
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "stream": 0,
        "blocks": listed,
    }


def many(blocks: int, segments: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """So many blocks in so many segments, every third one free, of `sizes` in turn."""
    each = blocks // segments
    states = (ACTIVE, FREE, AWAITED)
    return [
        segment(number << 36, [(sizes[(number + place) % len(sizes)], states[place % 3]) for place in range(each)])
        for number in range(segments)
    ]
