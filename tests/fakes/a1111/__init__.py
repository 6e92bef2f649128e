"""AUTOMATIC1111's WebUI as the adapter sees it.

`modules/` holds plain classes and functions under the real names, with the real parameters; `signatures.json` is the recorded
table that they are held to, and that tests/host holds the real WebUI to. What they do is only what the adapter reacts to.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).resolve().parent
SIGNATURES: dict[str, Any] = json.loads((FOLDER / "signatures.json").read_text(encoding="utf-8"))
_BOUND = ("modules", "xyz_grid", "vram_pilot.hosts.a1111")


@contextmanager
def installed(**flags: Any) -> Iterator[SimpleNamespace]:
    """A fresh WebUI in this process while the block runs; the answer holds its modules by name. flags: of its command line."""
    kept = _taken_out()
    sys.path.insert(0, str(FOLDER))
    try:
        webui = SimpleNamespace(**{name: importlib.import_module(f"modules.{name}") for name in _names()})
        for name, value in flags.items():
            setattr(webui.shared.cmd_opts, name, value)
        yield webui
    finally:
        sys.path.remove(str(FOLDER))
        _taken_out()
        sys.modules.update(kept)


def _names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "modules").glob("*.py") if path.stem != "__init__")


def _taken_out() -> dict[str, Any]:
    """The WebUI's modules and the adapter that is bound to them."""
    names = [name for name in sys.modules if any(name == bound or name.startswith(f"{bound}.") for bound in _BOUND)]
    return {name: sys.modules.pop(name) for name in names}
