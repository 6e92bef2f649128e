"""What torch's CUDA allocator says of itself, as `torch.cuda.memory._snapshot` gives it, written by hand."""

from __future__ import annotations

from typing import Any

from vram_pilot.units import MIB

BASE = 0x7F2A00000000


def block(address: int, size_mib: int, state: str, frames: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    size = size_mib * MIB
    return {"address": address, "size": size, "requested_size": size - 512, "state": state, "frames": frames or []}


def event(action: str, offset_mib: int, size_mib: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": BASE + offset_mib * MIB, "size": size_mib * MIB, "stream": 0, "time_us": 1000, **more}


def snapshot(events: int = 0) -> dict[str, Any]:
    """One segment of 20 MiB: 12 in use, 8 free; and what led there. events: further ones, of a block that comes and goes."""
    frames = [{"filename": "/home/user/webui/modules/sd_models.py", "line": 12, "name": "load"}]
    blocks = [block(BASE, 12, "active_allocated", frames), block(BASE + 12 * MIB, 8, "inactive")]
    trace = [event("segment_alloc", 0, 20), event("alloc", 0, 12, frames=frames)]
    for number in range(events // 3):
        trace += [event(action, 12, 1 + number % 8) for action in ("alloc", "free_requested", "free_completed")]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 20 * MIB,
        "allocated_size": 12 * MIB,
        "active_size": 12 * MIB,
        "requested_size": 12 * MIB - 512,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0}
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": settings, "external_annotations": []}
