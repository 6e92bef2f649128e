"""The session itself, as docs/session.schema.json describes it. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vram_pilot.reports.files import write_whole


class JsonReporter:
    format = "json"
    media_type = "application/json"

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        write_whole(path, render(session).encode())


def render(session: Mapping[str, Any]) -> str:
    return json.dumps(session, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
