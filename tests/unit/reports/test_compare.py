"""Two sessions side by side."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.fakes.jobs import plain_session, rich_session
from vram_pilot.reports.compare import compare
from vram_pilot.session.metrics import SUMMARY_METRICS


def row(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [entry for entry in result["rows"] if entry["name"] == name]
    return found


def test_figures() -> None:
    slow, fast = plain_session(step_s=0.10), plain_session(step_s=0.05)
    result = compare(slow, fast)
    speed = row(result, "steps_per_s")
    assert speed["a"] == slow["summary"]["steps_per_s"]
    assert speed["delta"] == pytest.approx(speed["b"] - speed["a"])
    assert speed["ratio"] == pytest.approx(2.0, rel=0.01)
    assert speed["better"] == "b"
    assert row(result, "step_p50_s")["better"] == "b"
    assert row(compare(fast, slow), "step_p50_s")["better"] == "a"
    assert json.loads(json.dumps(result)) == result


def test_facts_have_no_difference() -> None:
    result = compare(plain_session(), rich_session())
    mode = row(result, "mode")
    assert (mode["a"], mode["b"], mode["delta"]) == ("full", "lowvram, budget 0 MiB", None)
    assert row(result, "width")["delta"] is None
    assert result["a"]["id"] != result["b"]["id"]


def test_the_same_session_differs_in_nothing() -> None:
    session = rich_session()
    for entry in compare(session, session)["rows"]:
        assert entry["a"] == entry["b"]
        assert entry["delta"] in (None, 0)
        assert entry["better"] is None


def test_what_is_unknown_stays_unknown() -> None:
    known, unknown = plain_session(), copy.deepcopy(plain_session())
    unknown["summary"]["steps_per_s"] = None
    unknown["model"] = unknown["host"] = unknown["software"] = None
    result = compare(known, unknown)
    assert (row(result, "steps_per_s")["delta"], row(result, "steps_per_s")["ratio"]) == (None, None)
    assert row(result, "model")["b"] is None
    zero = copy.deepcopy(known)
    zero["summary"]["steps_per_s"] = 0.0
    assert row(compare(zero, known), "steps_per_s")["ratio"] is None


def test_every_figure_of_a_summary_is_compared() -> None:
    session = plain_session()
    names = {entry["name"] for entry in compare(session, session)["rows"]}
    assert set(session["summary"]) <= names
    assert {metric.name for metric in SUMMARY_METRICS} == set(session["summary"])
