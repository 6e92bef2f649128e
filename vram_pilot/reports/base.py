"""What a report is, and which there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vram_pilot.errors import RefusedError, UsageError
from vram_pilot.reports.csv import CsvReporter
from vram_pilot.reports.html import HtmlReporter
from vram_pilot.reports.json import JsonReporter
from vram_pilot.reports.memory_viz import MemoryVizReporter
from vram_pilot.reports.trace import TraceReporter
from vram_pilot.session.snapshots import Snapshots


class Reporter(Protocol):
    """One format. Any thread; a session is not changed. media_type: of the file, for an HTTP answer."""

    format: str
    media_type: str

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        """Writes the report to `path`, whole or not at all. Raises UsageError for a path that cannot be used."""


#: Every format that any session can be written in.
REPORTERS: tuple[Reporter, ...] = (HtmlReporter(), JsonReporter(), CsvReporter(), TraceReporter())
#: Those, and what only a session has that something was kept with.
FORMATS = (*(each.format for each in REPORTERS), MemoryVizReporter.format)
#: Named in the documentation, and not in this version.
TO_COME = ("parquet", "markdown")
#: Endings of files where the format's name is none.
ENDINGS = {"trace": "trace.json", "memory_viz": "pickle"}


def write_report(session: Mapping[str, Any], format: str, path: Path, snapshots: Snapshots | None = None) -> None:
    """Writes `session` to `path` in one of the formats. snapshots: see `reporter`.

    Raises UsageError for an unknown format or an unusable path, RefusedError for what is not in this version or was not kept.
    """
    reporter(format, snapshots).write(session, Path(path))


def reporter(format: str, snapshots: Snapshots | None = None) -> Reporter:
    """snapshots: where the allocator's are kept, which only memory_viz needs.

    Raises RefusedError for a format that is to come, UsageError for any other that this version does not write.
    """
    for candidate in (*REPORTERS, MemoryVizReporter(snapshots)):
        if candidate.format == format:
            return candidate
    offered = f"Use one of: {', '.join(FORMATS)}."
    _refuse_to_come(format, offered)
    raise UsageError("There is no such report format", found=format, do=offered)


def _refuse_to_come(format: str, offered: str) -> None:
    if format in TO_COME:
        raise RefusedError("This report format is not in this version", found=format, do=offered)


def file_name(session_id: str, format: str) -> str:
    """A name for a report's file, of harmless characters only."""
    return f"vram-pilot-{re.sub('[^A-Za-z0-9_-]', '_', session_id)}.{ENDINGS.get(format, format)}"


def format_of(path: Path) -> str:
    """The format that the ending of a file's name asks for; HTML where it has none.

    Raises RefusedError for a format that is to come, UsageError for an ending that is of none.
    """
    endings = {ENDINGS.get(each.format, each.format): each.format for each in REPORTERS}
    name, ending = path.name.lower(), path.suffix.lower().removeprefix(".")
    for known in sorted(endings, key=len, reverse=True):
        if name.endswith(f".{known}"):
            return endings[known]
    if ending in ("", "htm"):
        return "html"
    offered = "Let the name end in " + ", ".join(f".{known}" for known in endings) + "."
    _refuse_to_come(ending, offered)
    raise UsageError("This is the ending of no report", found=path.name, do=offered)
