"""Says which program has loaded the extension, by what it offers, without importing any of it. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

#: What only that host has, most particular first. A name below a package imports the package, so only top levels are nested.
_MARKS = (
    ("forge", ("backend", "modules_forge")),
    ("reforge", ("ldm_patched", "modules_forge")),
    ("sdnext", ("modules.sd_offload",)),
    ("a1111", ("modules.lowvram", "modules.sd_unet", "modules.call_queue", "modules.script_callbacks")),
)

#: The hosts that this version has an adapter for.
SUPPORTED = ("a1111",)


def detect(has: Callable[[str], bool] | None = None) -> str:
    """ "a1111", "forge", "reforge", "sdnext" or "unknown"."""
    has = has or _has
    return next((name for name, marks in _MARKS if all(has(mark) for mark in marks)), "unknown")


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False
