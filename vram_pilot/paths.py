"""Where the program keeps its state when no host names a folder. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: Overrides the folder for everything that asks for it.
DATA_DIR_VARIABLE = "VRAM_PILOT_DATA_DIR"
_NAME = "vram-pilot"


def default_state_dir(environ: Mapping[str, str] = os.environ, platform: str = sys.platform, home: Path | None = None) -> Path:
    """$VRAM_PILOT_DATA_DIR, else the platform's folder for a program's data. Nothing is created."""
    override = environ.get(DATA_DIR_VARIABLE)
    if override:
        return Path(override).expanduser()
    base = Path.home() if home is None else home
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or base / "AppData" / "Local") / _NAME
    if platform == "darwin":
        return base / "Library" / "Application Support" / _NAME
    return Path(environ.get("XDG_DATA_HOME") or base / ".local" / "share") / _NAME
