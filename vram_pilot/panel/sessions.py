"""The sessions that are kept, as the routes answer them. All of this may block on a disk and runs in a worker thread."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from vram_pilot.errors import NotFoundError, RefusedError, UsageError
from vram_pilot.panel.base import PanelApp
from vram_pilot.reports.base import REPORTERS, reporter, write_report
from vram_pilot.reports.compare import compare

#: Formats that are named in the documentation and are to come, or are there already.
KNOWN = ("html", "json", "csv", "parquet", "trace", "memory_viz", "markdown")
#: Endings of files where the format's name is none.
ENDINGS = {"trace": "trace.json", "memory_viz": "pickle", "markdown": "md"}


def formats() -> list[str]:
    """The report formats that this version writes."""
    return [reporter.format for reporter in REPORTERS]


def listed(app: PanelApp, limit: int, offset: int) -> dict[str, Any]:
    return {
        "sessions": [dict(row) for row in app.store.list(limit, offset)],
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
    """The report and its media type. Raises NotFoundError, RefusedError for a format to come, UsageError for any other."""
    if name not in formats():
        offered = "Use one of: " + ", ".join(formats()) + "."
        if name in KNOWN:
            raise RefusedError("This report format is not in this version", found=name, do=offered)
        raise UsageError("There is no such report format", found=name, do=offered)
    session = get(app, session_id)
    with tempfile.TemporaryDirectory(prefix="vram-pilot-") as folder:
        path = Path(folder, "report")
        write_report(session, name, path)
        return path.read_bytes(), reporter(name).media_type


def file_name(session_id: str, name: str) -> str:
    """A name for the saved report, of harmless characters only."""
    return f"vram-pilot-{re.sub('[^A-Za-z0-9_-]', '_', session_id)}.{ENDINGS.get(name, name)}"
