"""What was measured of a machine, kept in one file of the state folder. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vram_pilot.errors import VramPilotError

SCHEMA = "vram-pilot/measured/1"
FILE = "measured.json"
#: The directions of a copy, in the order of tables.
RATES = ("pinned_to_device", "pinned_to_host", "pageable_to_device", "pageable_to_host", "device")


@dataclass(frozen=True)
class Spread:
    """Bytes a second: median, least and most of n copies."""

    median: float
    min: float
    max: float
    n: int


@dataclass(frozen=True)
class Measured:
    """rates: one for each of RATES; "device" counts what is read and what is written. measured_at: UTC, ISO 8601."""

    gpu_uuid: str
    gpu_name: str
    driver: str | None
    torch: str
    measured_at: str
    size_bytes: int
    rates: dict[str, Spread]

    @property
    def key(self) -> str:
        return key(self.gpu_uuid, self.driver, self.torch)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def key(gpu_uuid: str, driver: str | None, torch: str) -> str:
    """Under which a machine's figures are kept: another card, driver or torch may copy at another rate."""
    return f"{gpu_uuid}|{driver or '?'}|{torch}"


def load(state_dir: Path, wanted: str) -> Measured | None:
    """What was measured under this key, None when nothing was or it cannot be read."""
    return _from_json(_machines(state_dir / FILE).get(wanted))


def save(state_dir: Path, measured: Measured) -> None:
    """Keeps it in the place of what was under its key. Raises VramPilotError when the folder cannot be written."""
    path = state_dir / FILE
    content = {"schema": SCHEMA, "machines": {**_machines(path), measured.key: measured.to_json()}}
    beside = path.with_name(f".{FILE}.{secrets.token_hex(4)}.tmp")
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise VramPilotError(
            f"What was measured cannot be kept: {error.strerror or type(error).__name__}",
            found=str(state_dir),
            do="Make room there, or name another folder with --data-dir.",
        ) from error


def _machines(path: Path) -> dict[str, Any]:
    """What the file holds; nothing where it is absent, damaged or of a newer version."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    machines = found.get("machines") if isinstance(found, dict) and found.get("schema") == SCHEMA else None
    return machines if isinstance(machines, dict) else {}


def _from_json(raw: Any) -> Measured | None:
    try:
        rates = {name: Spread(**raw["rates"][name]) for name in RATES}
        return Measured(**{**{name: raw[name] for name in _FIELDS}, "rates": rates})
    except (KeyError, TypeError):
        return None


_FIELDS = tuple(name for name in Measured.__dataclass_fields__ if name != "rates")
