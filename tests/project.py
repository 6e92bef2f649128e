"""The project's own files, for the tests that look at the project as a whole."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "vram_pilot"


def project_files() -> list[Path]:
    """Every file that is, or would be, committed. Without git (an unpacked archive): every file outside hidden folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        paths = (path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts))
    else:
        paths = (ROOT / name for name in answer.split("\0") if name)
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def package_files() -> list[Path]:
    return [path for path in python_files() if PACKAGE in path.parents]


def module_name(path: Path) -> str:
    """ "vram_pilot.hosts.base" of vram_pilot/hosts/base.py; a package's name of its __init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
