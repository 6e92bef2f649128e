"""What a report is, and which there are. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vram_pilot.errors import UsageError
from vram_pilot.reports.csv import CsvReporter
from vram_pilot.reports.html import HtmlReporter
from vram_pilot.reports.json import JsonReporter


class Reporter(Protocol):
    """One format. Any thread; a session is not changed. media_type: of the file, for an HTTP answer."""

    format: str
    media_type: str

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        """Writes the report to `path`, whole or not at all. Raises UsageError for a path that cannot be used."""


#: Every format that this version writes.
REPORTERS: tuple[Reporter, ...] = (HtmlReporter(), JsonReporter(), CsvReporter())


def write_report(session: Mapping[str, Any], format: str, path: Path) -> None:
    """Writes `session` to `path` in one of the formats. Raises UsageError for an unknown format or an unusable path."""
    reporter(format).write(session, Path(path))


def reporter(format: str) -> Reporter:
    """Raises UsageError for a format that this version does not write."""
    for candidate in REPORTERS:
        if candidate.format == format:
            return candidate
    offered = ", ".join(candidate.format for candidate in REPORTERS)
    raise UsageError("There is no such report format", found=format, do=f"Use one of: {offered}.")
