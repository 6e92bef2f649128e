"""What a user sets is what the store keeps, by count, age and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.telemetry.test_pump_app import host
from vram_pilot.app import App
from vram_pilot.session.upkeep import Retention
from vram_pilot.units import MIB


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, Retention(500, None, 1024 * MIB)),
        ({"keep_sessions": 7, "keep_days": 2, "keep_mib": 3}, Retention(7, 172_800.0, 3 * MIB)),
        ({"keep_days": 0, "keep_mib": 0}, Retention(500, None, None)),
    ],
)
def test_what_is_set_is_what_the_store_keeps(
    settings: dict[str, Any], kept: Retention, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Retention] = []
    monkeypatch.setattr("vram_pilot.session.store.SessionStore.set_retention", lambda _, retention: asked.append(retention))
    App(host(), tmp_path, settings=settings)
    assert asked == [kept]
