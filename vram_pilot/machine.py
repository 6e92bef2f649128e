"""Facts about this machine that need no library. Standard library only."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def total_ram_bytes(root: Path = Path("/")) -> int | None:
    """The RAM that this process may use: the machine's, or its container's limit where that is lower. None when unknown."""
    found = [size for size in (_physical_ram(), _cgroup_limit(root)) if size is not None]
    return min(found) if found else None


def _physical_ram() -> int | None:
    if sys.platform == "win32":
        return _windows_ram()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_limit(root: Path) -> int | None:
    """memory.max (cgroup v2) or memory.limit_in_bytes (v1); an unlimited v1 group reads as a number near 2^63."""
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int((root / path).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        return limit if 0 < limit < 2**60 else None
    return None


def _windows_ram() -> int | None:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong) for name in ("total", "free", "page", "page_free", "virtual", "virtual_free", "extended")
        ]

    status = Status()
    status.length = ctypes.sizeof(Status)
    ok = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return int(status.total) if ok else None
