"""The raw snapshot of torch's allocator that was kept with a session, for PyTorch's memory_viz. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vram_pilot.errors import RefusedError
from vram_pilot.reports.files import write_whole
from vram_pilot.session.snapshots import Snapshots

_HOW = (
    "Turn on the setting 'Keep allocator snapshots' (keep_snapshots), generate again, and export that session; "
    "the newest five are kept. Open the file at pytorch.org/memory_viz, which reads it in the browser."
)


class MemoryVizReporter:
    """snapshots: where they are kept, None when this program keeps none."""

    format = "memory_viz"
    media_type = "application/octet-stream"

    def __init__(self, snapshots: Snapshots | None) -> None:
        self._snapshots = snapshots

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        """Also raises RefusedError when none was taken, which says why or how to get one."""
        content = None if self._snapshots is None else self._snapshots.read(session["id"])
        if content is None:
            raise refusal(session)
        write_whole(path, content)


def refusal(session: Mapping[str, Any]) -> RefusedError:
    """Why this session has no snapshot."""
    allocator = (session.get("settings") or {}).get("allocator")
    if not session.get("gpus") and allocator is None:
        return RefusedError(
            "This session has no snapshot of the allocator: it did not run on a CUDA device",
            do="Such a snapshot is of torch's CUDA allocator alone. Use html, json, csv or trace.",
        )
    if allocator not in (None, "native"):
        return RefusedError(
            "This session has no snapshot of the allocator: the one in use keeps no list of its blocks",
            found=allocator,
            do="Start the host with torch's native allocator (without --cuda-malloc), and " + _HOW[0].lower() + _HOW[1:],
        )
    return RefusedError("This session has no snapshot of the allocator", found=session.get("id"), do=_HOW)
