"""A job with every reading kept, which is many times what the recorder keeps: what a report holds in memory stays small."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.jobs import plain_session
from vram_pilot.reports.base import write_report
from vram_pilot.units import MIB

#: Seven hours, four times a second.
READINGS = 100_000


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    times = [number / 4 for number in range(READINGS)]
    return {**plain_session(), "samples": {"t_s": times, "gpu_power_w": [100.0 + number % 97 for number in range(READINGS)]}}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["trace", "csv"])
def test_it_is_written_line_by_line(raw: dict[str, Any], tmp_path: Path, format: str) -> None:
    path = tmp_path / "report"
    tracemalloc.start()
    try:
        write_report(raw, format, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    with path.open("rb") as file:
        assert READINGS < sum(1 for _ in file) < READINGS + 200, "nothing is left out"
    assert peak < 4 * MIB
