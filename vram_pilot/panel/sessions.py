"""The sessions that are kept, as the routes answer them. All of this may block on a disk and runs in a worker thread."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from vram_pilot.errors import NotFoundError, UsageError
from vram_pilot.panel.base import PanelApp
from vram_pilot.reports.base import REPORTERS, file_name, reporter
from vram_pilot.reports.compare import compare

__all__ = ["compared", "delete", "file_name", "formats", "get", "listed", "report"]


def formats() -> list[str]:
    """The report formats that every session can be had in."""
    return [reporter.format for reporter in REPORTERS]


def listed(app: PanelApp, limit: int, offset: int) -> dict[str, Any]:
    return {
        "sessions": [{**row, "snapshot": app.store.snapshots.has(row["id"])} for row in app.store.list(limit, offset)],
        "limit": limit,
        "offset": offset,
        "note": app.store.status_note,
    }


def compared(app: PanelApp, first: str, second: str) -> dict[str, Any]:
    return compare(get(app, first), get(app, second))


def get(app: PanelApp, session_id: str) -> Any:
    """Raises NotFoundError, also for what cannot be the id of a session."""
    try:
        return app.store.get(session_id)
    except UsageError as error:
        raise _unknown(session_id) from error


def delete(app: PanelApp, session_id: str) -> None:
    """Raises NotFoundError, also for what cannot be the id of a session; RefusedError while it is being recorded."""
    try:
        app.store.delete(session_id)
    except UsageError as error:
        raise _unknown(session_id) from error


def _unknown(session_id: str) -> NotFoundError:
    return NotFoundError("There is no such session", found=session_id, do="List the sessions to see which there are.")


def report(app: PanelApp, session_id: str, name: str) -> tuple[bytes, str]:
    """The report and its media type.

    Raises NotFoundError, RefusedError for a format to come and for what was not kept, UsageError for any other format.
    """
    made = reporter(name, app.store.snapshots)
    session = get(app, session_id)
    with tempfile.TemporaryDirectory(prefix="vram-pilot-") as folder:
        path = Path(folder, "report")
        made.write(session, path)
        return path.read_bytes(), made.media_type
