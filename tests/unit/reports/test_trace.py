"""The trace: the published format's rules, each event where it belongs, and every figure that was recorded."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.jobs import Bench, plain_session, rich_session
from tests.fakes.readings import with_readings
from vram_pilot.reports.trace import render

NUMBER = {"type": "number", "minimum": 0}
WHO = {"pid": {"type": "integer"}, "tid": {"type": "integer"}}


def event(phase: str, required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """An event of one phase may have these properties and no other."""
    known = {"ph": {"const": phase}, "name": {"type": "string", "minLength": 1}, "cat": {"type": "string"}, **WHO, **properties}
    always = ["ph", "name", "pid", *required]
    return {"type": "object", "properties": known, "required": always, "additionalProperties": False}


#: The "Trace Event Format" document, as far as it is about the kinds of events that are written here.
SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "additionalProperties": False,
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    event("X", ("tid", "ts", "dur"), ts=NUMBER, dur=NUMBER, args={"type": "object"}),
                    event("i", ("tid", "ts", "s"), ts=NUMBER, s={"enum": ["g", "p", "t"]}, args={"type": "object"}),
                    event(
                        "C",
                        ("ts", "args"),
                        ts=NUMBER,
                        args={"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}},
                    ),
                    event(
                        "M",
                        ("args",),
                        name={"enum": ["process_name", "thread_name", "thread_sort_index"]},
                        args={"type": "object"},
                    ),
                ]
            },
        },
    },
}


def trace(session: dict[str, Any]) -> dict[str, Any]:
    """The trace, after every rule was tried on it."""
    made = json.loads(render(session))
    jsonschema.validate(made, SCHEMA)
    check_nesting(made["traceEvents"])
    check_counters(made["traceEvents"])
    return dict(made)


def check_nesting(events: list[dict[str, Any]]) -> None:
    """On one track, what begins within something ends within it: a viewer cannot draw anything else."""
    for track in {event["tid"] for event in events if event["ph"] == "X"}:
        lasting = [event for event in events if event["ph"] == "X" and event["tid"] == track]
        open_until: list[int] = []
        for each in sorted(lasting, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= each["ts"]:
                open_until.pop()
            assert not open_until or each["ts"] + each["dur"] <= open_until[-1], each
            open_until.append(each["ts"] + each["dur"])


def check_counters(events: list[dict[str, Any]]) -> None:
    """A counter's time never goes back."""
    last: dict[str, int] = {}
    for each in (event for event in events if event["ph"] == "C"):
        assert each["ts"] >= last.get(each["name"], 0)
        last[each["name"]] = each["ts"]


def of(made: dict[str, Any], phase: str, category: str | None = None) -> list[dict[str, Any]]:
    return [each for each in made["traceEvents"] if each["ph"] == phase and (category is None or each.get("cat") == category)]


SESSIONS = {"plain": plain_session, "rich": rich_session, "read": lambda: with_readings(rich_session())}


@pytest.mark.parametrize("name", SESSIONS)
def test_it_is_as_the_format_wants_it(name: str) -> None:
    made = trace(SESSIONS[name]())
    assert made["displayTimeUnit"] == "ms"
    assert made["otherData"]["schema"] == "vram-pilot/session/1"


def test_every_step_and_phase_is_there_in_microseconds() -> None:
    session = rich_session()
    made = trace(session)
    steps = of(made, "X", "step")
    assert len(steps) == len(session["steps"])
    for drawn, step in zip(steps, session["steps"]):
        assert drawn["ts"] == pytest.approx(step["start_s"] * 1e6, abs=1)
        assert drawn["dur"] == pytest.approx(step["duration_s"] * 1e6, abs=2)
        assert drawn["args"]["streamed_bytes"] == step["streamed_bytes"]
    assert steps[20]["name"] == "step 1 (hires)"
    assert [drawn["name"] for drawn in of(made, "X", "phase")] == [phase["name"] for phase in session["phases"]]


def test_steps_lie_in_their_denoise_phase() -> None:
    made = trace(rich_session())
    phases = of(made, "X", "phase")
    for step in of(made, "X", "step"):
        (around,) = [p for p in phases if p["ts"] <= step["ts"] and step["ts"] + step["dur"] <= p["ts"] + p["dur"] and p["dur"]]
        assert around["name"] == "denoise"


def test_copies_have_their_own_named_track() -> None:
    session = rich_session()
    made = trace(session)
    copies = of(made, "X", "copy")
    assert [each["args"]["bytes"] for each in copies] == [s["streamed_bytes"] for s in session["steps"] if s["streamed_bytes"]]
    names = {each["tid"]: each["args"]["name"] for each in of(made, "M") if each["name"] == "thread_name"}
    assert {names[each["tid"]] for each in copies} == {"Copies to the card"}
    assert len(names) == 2
    assert len([each for each in of(trace(plain_session()), "M") if each["name"] == "thread_name"]) == 1


def test_switches_and_notes_are_moments() -> None:
    session = copy.deepcopy(rich_session())
    session["mode"]["history"][1]["failed"] = True
    session["notes"] = [{"t_s": 0.5, "text": "medvram was refused"}]
    made = trace(session)
    switches = of(made, "i", "mode")
    assert [each["ts"] for each in switches] == [round(change["t_s"] * 1e6) for change in session["mode"]["history"]]
    assert switches[0]["name"] == "full → lowvram, budget 0 MiB"
    assert switches[1]["name"].endswith("(failed, undone)")
    assert of(made, "i", "note")[0]["args"] == {"text": "medvram was refused"}


def test_every_reading_is_a_counter_that_holds_until_it_changes() -> None:
    session = with_readings(rich_session())
    made = trace(session)
    for metric, unit in (
        ("gpu_power_w", "W"),
        ("gpu_used_bytes", "B"),
        ("gpu_pcie_rx_bytes_per_s", "B/s"),
        ("allocated_bytes", "B"),
    ):
        drawn = {each["ts"]: each["args"]["value"] for each in of(made, "C") if each["name"] == f"{metric} ({unit})"}
        held = None
        for t_s, value in zip(session["samples"]["t_s"], session["samples"][metric]):
            held = drawn.get(round(t_s * 1e6), held)
            assert value is None or held == value
    constant = [each for each in of(made, "C") if each["name"] == "gpu_total_bytes (B)"]
    assert len(constant) == 1


def test_without_readings_the_steps_tell_of_the_memory() -> None:
    session = plain_session()
    drawn = [each["args"]["value"] for each in of(trace(session), "C") if each["name"] == "allocated_bytes (B)"]
    assert drawn == [step["allocated_bytes"] for step in session["steps"]]


def test_a_step_that_was_not_timed_is_a_moment() -> None:
    session = copy.deepcopy(plain_session())
    session["steps"][1]["duration_s"] = None
    made = trace(session)
    assert len(of(made, "X", "step")) == 3
    assert [each["name"] for each in of(made, "i", "step")] == ["step 2, not timed"]


def test_the_header_of_an_aborted_session() -> None:
    bench = Bench()
    bench.start()
    made = trace({**bench.started[0], "status": "aborted"})
    assert [each["ph"] for each in made["traceEvents"]] == ["M", "M", "M"]


def test_a_reading_from_just_before_the_job_counts_as_its_start() -> None:
    session = {**plain_session(), "samples": {"t_s": [-0.01, 0.2], "gpu_power_w": [100.0, 120.0]}}
    assert [each["ts"] for each in of(trace(session), "C") if "power" in each["name"]] == [0, 200_000]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(1e-9, 3.0), min_size=1, max_size=30), st.floats(0, 1e5))
def test_any_durations_nest(durations: list[float], start_s: float) -> None:
    """Times are rounded each on its own; what touches must not overlap by that."""
    session = copy.deepcopy(plain_session())
    steps, t_s = [], start_s
    for index, duration_s in enumerate(durations):
        steps.append({**session["steps"][0], "index": index, "start_s": t_s, "duration_s": duration_s, "streamed_bytes": 5})
        t_s += duration_s
    session["steps"] = steps
    session["phases"] = [
        {"name": "encode", "start_s": 0.0, "duration_s": start_s},
        {"name": "denoise", "start_s": start_s, "duration_s": sum(durations)},
        {"name": "decode", "start_s": start_s + sum(durations), "duration_s": 0.3},
    ]
    assert len(of(trace(session), "X", "step")) == len(durations)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30))
def test_any_text_stays_a_text(text: str) -> None:
    session = copy.deepcopy(rich_session())
    session["model"]["name"] = text
    session["mode"]["history"][0].update({"from": text, "to": text, "reason": text})
    assert of(json.loads(render(session)), "i", "mode")[0]["args"]["reason"] == text
