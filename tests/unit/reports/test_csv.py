"""The long form: what is written is what a reader gets, and no cell is a formula."""

from __future__ import annotations

import copy
import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.jobs import plain_session, rich_session
from tests.fakes.readings import with_readings
from vram_pilot.reports.csv import COLUMNS, render

PLAIN = plain_session()
FORMULA = "=+-@\t\r\n＝＋－＠"


def rows(session: dict[str, Any]) -> list[dict[str, str]]:
    """As a reader that knows RFC 4180 gets them."""
    text = render(session)
    assert text.endswith("\r\n")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def values(session: dict[str, Any], metric: str) -> list[dict[str, str]]:
    return [row for row in rows(session) if row["metric"] == metric]


def test_every_step_comes_back() -> None:
    session = rich_session()
    found = values(session, "step_duration_s")
    assert [float(row["value"]) for row in found] == [step["duration_s"] for step in session["steps"]]
    assert [float(row["t_s"]) for row in found] == [step["start_s"] for step in session["steps"]]
    assert [(int(row["step"]), row["pass"], int(row["image"])) for row in found] == [
        (step["index"], step["pass"], step["image"]) for step in session["steps"]
    ]
    assert {row["unit"] for row in found} == {"s"}
    assert {row["phase"] for row in found} == {"denoise"}
    assert [int(row["value"]) for row in values(session, "step_streamed_bytes")] == [
        step["streamed_bytes"] for step in session["steps"]
    ]


def test_phases_modes_and_summary_come_back() -> None:
    session = rich_session()
    phases = values(session, "phase_duration_s")
    assert [(row["phase"], float(row["value"])) for row in phases] == [
        (phase["name"], phase["duration_s"]) for phase in session["phases"]
    ]
    assert [row["value"] for row in values(session, "mode")] == [change["to"] for change in session["mode"]["history"]]
    (speed,) = values(session, "summary_steps_per_s")
    assert (float(speed["value"]), speed["unit"]) == (session["summary"]["steps_per_s"], "1/s")
    (model,) = values(session, "model_name")
    assert model["value"] == "dream.safetensors"


def test_samples_carry_their_card() -> None:
    session = copy.deepcopy(PLAIN)
    session["samples"] = {"t_s": [0.0, 0.25], "gpu_power_w": [120.5, None], "process_rss_bytes": [None, 5]}
    (sample,) = values(session, "gpu_power_w")
    assert (sample["t_s"], sample["value"], sample["unit"]) == ("0.0", "120.5", "W")
    assert sample["gpu_uuid"] == session["gpus"][0]["uuid"]
    (own,) = values(session, "process_rss_bytes")
    assert (own["t_s"], own["value"], own["unit"], own["gpu_uuid"]) == ("0.25", "5", "B", "")


def test_every_reading_comes_back_with_its_phase() -> None:
    session = with_readings(rich_session())
    samples = session["samples"]
    for metric in set(samples) - {"t_s"}:
        expected = [(t_s, value) for t_s, value in zip(samples["t_s"], samples[metric]) if value is not None]
        assert [(float(row["t_s"]), float(row["value"])) for row in values(session, metric)] == expected
    phases = [row["phase"] for row in values(session, "gpu_power_w")]
    assert list(dict.fromkeys(phases)) == ["encode", "denoise", "other", "decode"]
    (middle,) = [row for row in values(session, "gpu_power_w") if float(row["t_s"]) == samples["t_s"][40]]
    (around,) = [p for p in session["phases"] if p["start_s"] <= samples["t_s"][40] < p["start_s"] + p["duration_s"]]
    assert middle["phase"] == around["name"]


def test_what_was_not_measured_has_no_line() -> None:
    """Cases E6: never 0, never a sentinel."""
    found = rows(PLAIN)
    assert not [row for row in found if row["metric"] == "summary_energy_j"]
    assert all(row["value"] != "" for row in found if row["metric"] != "model_hash")
    assert tuple(found[0]) == COLUMNS


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "  =1+1", "＝1"])
def test_no_cell_is_a_formula(name: str) -> None:
    session = copy.deepcopy(PLAIN)
    session["model"]["name"] = name
    (cell,) = [row["value"] for row in rows(session) if row["metric"] == "model_name"]
    assert cell == f"'{name}"


@given(st.text(st.characters(blacklist_categories=("Cs",))))
def test_any_text_comes_back_and_is_safe(text: str) -> None:
    session = copy.deepcopy(PLAIN)
    session["model"]["name"] = text
    (cell,) = [row["value"] for row in rows(session) if row["metric"] == "model_name"]
    assert cell.removeprefix("'") == text.replace("\0", "").removeprefix("'") or cell == text.replace("\0", "")
    assert not cell.lstrip(" ").startswith(tuple(FORMULA))
    assert render(session).encode("utf-8")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_comes_back(number: float) -> None:
    session = copy.deepcopy(PLAIN)
    session["summary"]["steps_per_s"] = number
    (cell,) = [row["value"] for row in rows(session) if row["metric"] == "summary_steps_per_s"]
    assert float(cell) == number
