"""Where things happened in a job."""

from __future__ import annotations

import copy

import pytest

from tests.fakes.jobs import plain_session, rich_session
from vram_pilot.reports import moments


@pytest.mark.parametrize(
    ("length_s", "name"), [(0.5, "seconds"), (299, "seconds"), (301, "minutes"), (10_000, "minutes"), (90_000, "hours")]
)
def test_the_axis_is_in_a_unit_that_reads_well(length_s: float, name: str) -> None:
    session = copy.deepcopy(plain_session())
    session["summary"]["duration_s"] = length_s
    assert moments.time_scale(session).name == name


def test_the_length_is_known_without_a_summary() -> None:
    session = plain_session()
    whole = moments.duration(session)
    assert whole == session["summary"]["duration_s"]
    last = session["phases"][-1]
    aborted = {**session, "summary": {}}
    assert moments.duration(aborted) == last["start_s"] + last["duration_s"]
    assert moments.duration({**aborted, "samples": {"t_s": [0.0, whole + 5]}}) == whole + 5
    assert moments.duration({"summary": {}}) == 0.0


def test_runs_are_the_passes_of_each_image() -> None:
    session = rich_session()
    runs = moments.runs(session["steps"])
    assert [run.text for run in runs] == ["batch 1, base", "batch 1, hires", "batch 2, base", "batch 2, hires"]
    assert [(run.first, run.last) for run in runs] == [(0, 19), (20, 27), (28, 47), (48, 55)]
    assert moments.runs(plain_session()["steps"]) == []


def test_a_switch_has_its_place() -> None:
    session = rich_session()
    assert [moments.place(session, change) for change in session["mode"]["history"]] == [
        "step 9, batch 1",
        "step 5 of hires, batch 1",
        "step 5 of hires, batch 2",
    ]
    assert [moments.step_number(session, change) for change in session["mode"]["history"]] == [9, 25, 53]
    outside = {**session["mode"]["history"][0], "step": None}
    assert moments.place(session, outside) == "between steps"
    before = {**session["mode"]["history"][0], "t_s": -1.0}
    assert moments.place(session, before) == "step 9"


def test_a_failed_switch_is_none() -> None:
    session = copy.deepcopy(rich_session())
    session["mode"]["history"][1]["failed"] = True
    assert [change["to"] for change in moments.switches(session)] == ["lowvram, budget 0 MiB"] * 2
