"""What a figure needs to be read later: the machine, the versions, the commit and the command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from typing import Any


def describe() -> dict[str, Any]:
    """Of this Python. No user, no path."""
    import torch  # here, so that a program without torch may ask for its command

    found: dict[str, Any] = {
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command(),
        "commit": os.environ.get("VRAM_PILOT_COMMIT") or _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "system": platform.system(),
        "cpu_cores": os.cpu_count(),
        "gpu": None,
    }
    for name in ("diffusers", "transformers"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            found[name] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = {
            "name": properties.name,
            "total_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "driver": _driver(),
        }
    return found


def command() -> str:
    """How the running program was called: files by their names alone."""
    return " ".join(["python", f"benchmarks/{os.path.basename(sys.argv[0])}", *map(os.path.basename, sys.argv[1:])])


def _commit() -> str | None:
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _driver() -> str | None:
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None
