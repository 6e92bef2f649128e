"""The figures: what they show is what was recorded. Each is a function of the session alone."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.fakes.jobs import Bench, plain_session, rich_session
from tests.fakes.readings import with_readings
from tests.project import ROOT
from vram_pilot.reports import figures, readings, sections
from vram_pilot.reports.palette import DARK
from vram_pilot.units import GIB

NAMES = ["step_latency", "step_memory", "vram", "utilization", "power", "temperature", "clocks", "pcie", "ram"]


def traces(figure: Any) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in json.loads(figure.to_json())["data"]}


def long_session(steps: int = 10_000) -> dict[str, Any]:
    bench = Bench()
    bench.start(steps=steps)
    bench.steps([0.011 if index % 999 else 0.02 for index in range(steps)])
    return bench.finish()


def test_a_session_with_readings_has_every_figure() -> None:
    assert list(figures.all_figures(with_readings(rich_session()))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_is_there_by_its_own_name(name: str) -> None:
    session = with_readings(rich_session())
    alone = getattr(figures, name)(session)
    assert alone.to_json() == figures.all_figures(session)[name].to_json()
    assert getattr(figures, name)({**session, "steps": [], "samples": {"t_s": []}}) is None


@pytest.mark.parametrize("session", [{}, {"steps": [], "samples": {"t_s": []}, "summary": {}}])
def test_nothing_recorded_is_no_figure(session: dict[str, Any]) -> None:
    assert figures.all_figures(session) == {}


def test_each_step_is_a_bar_as_high_and_as_wide_as_it_was_long() -> None:
    session = rich_session()
    figure = figures.step_latency(session)
    bars = traces(figure)["step"]
    lengths = [step["duration_s"] for step in session["steps"]]
    assert bars["y"] == pytest.approx([length * 1000 for length in lengths])
    assert bars["width"] == pytest.approx([0.94 * length for length in lengths], rel=1e-4)
    middles = [step["start_s"] + step["duration_s"] / 2 for step in session["steps"]]
    assert bars["x"] == pytest.approx(middles, rel=1e-4)
    assert bars["customdata"][20] == "step 1 of hires, batch 1: 155.0 ms, 1.60 GiB copied"
    assert figure.layout.yaxis.ticksuffix == " ms"


def test_the_phases_lie_above_the_steps_and_cover_the_job() -> None:
    session = rich_session()
    strip = {name: trace for name, trace in traces(figures.step_latency(session)).items() if trace.get("yaxis") == "y2"}
    assert set(strip) == {"encode", "denoise", "other", "decode", "mode changed"}
    pieces = sorted(
        (base, x) for name, trace in strip.items() if trace["type"] == "bar" for base, x in zip(trace["base"], trace["x"])
    )
    assert sum(length for _, length in pieces) == pytest.approx(session["summary"]["duration_s"], rel=1e-4)
    for (base, length), (following, _) in pairwise(pieces):
        assert base + length == pytest.approx(following, abs=1e-3)


def test_switches_and_passes_are_marked_in_each_figure() -> None:
    session = with_readings(rich_session())
    for figure in figures.all_figures(session).values():
        lines = [shape for shape in figure.layout.shapes if shape.type == "line" and shape.yref == "paper"]
        assert [line.x0 for line in lines] == pytest.approx([change["t_s"] for change in session["mode"]["history"]], rel=1e-4)
        assert len([shape for shape in figure.layout.shapes if shape.type == "rect"]) == 2
    marks = traces(figures.step_latency(session))["mode changed"]
    assert marks["customdata"][0].startswith("full → lowvram, budget 0 MiB at step 9, batch 1")
    texts = [text.text for text in figures.step_latency(session).layout.annotations]
    assert "→ lowvram" in texts and "batch 1, hires" in texts


def test_texts_of_marks_do_not_cover_each_other() -> None:
    session = copy.deepcopy(rich_session())
    change = session["mode"]["history"][0]
    session["mode"]["history"] = [{**change, "t_s": change["t_s"] + 0.001 * number} for number in range(30)]
    texts = [text for text in figures.step_latency(session).layout.annotations if text.text.startswith("→")]
    assert len({text.yshift for text in texts}) == len(texts) <= 3


def test_switches_that_would_hide_the_chart_are_not_marked_at_all() -> None:
    session = copy.deepcopy(rich_session())
    session["mode"]["history"] *= 11
    figure = figures.step_latency(session)
    assert not [shape for shape in figure.layout.shapes if shape.type == "line" and shape.yref == "paper"]
    assert "mode changed" not in traces(figure)
    assert "The mode changed too often to be marked in the charts." in sections.steps(session)
    assert "too often" not in sections.steps(rich_session())


def test_slow_steps_above_the_axis_are_told() -> None:
    bench = Bench()
    bench.start(steps=60)
    bench.steps([2.0, *[0.04] * 59])
    session = bench.finish()
    figure = figures.step_latency(session)
    above = traces(figure)["above the axis"]
    assert above["text"] == ["2.00 s"]
    assert above["y"][0] < figure.layout.yaxis.range[1] < 200


def test_memory_at_each_step() -> None:
    session = rich_session()
    drawn = traces(figures.step_memory(session))
    assert drawn["allocated"]["y"] == pytest.approx([step["allocated_bytes"] / GIB for step in session["steps"]], rel=1e-5)
    reserved = [value for value in drawn["reserved"]["y"] if value is not None][::2]
    assert reserved == pytest.approx([step["reserved_bytes"] / GIB for step in session["steps"]], rel=1e-5)
    assert drawn["reserved"]["y"].count(None) == 3  # between the passes nothing was held at a step's end


def test_a_stack_has_one_set_of_times_and_comes_to_the_readings() -> None:
    session = with_readings(rich_session())
    parts = list(traces(figures.vram(session)).values())
    assert {trace["stackgroup"] for trace in parts} == {"all"}
    assert all(trace["x"] == parts[0]["x"] for trace in parts)
    chart = readings.chart(session, "vram")
    assert chart is not None
    assert [sum(values) for values in zip(*(trace["y"] for trace in parts))] == pytest.approx(chart.sums(), rel=1e-4)


def test_what_is_kept_is_told_from_what_is_used_by_more_than_its_colour() -> None:
    drawn = traces(figures.vram(with_readings(rich_session())))
    assert drawn["Torch, cached"]["fillpattern"]["shape"] == "/"
    assert "fillpattern" not in drawn["Torch, in use"]


def test_a_long_job_is_thinned_and_no_spike_is_lost() -> None:
    session = with_readings(long_session(), 20_000)
    session["samples"]["gpu_power_w"][12_345] = 999.0
    for figure in figures.all_figures(session).values():
        assert all(len(trace["y"]) <= 2 * figures.BUCKETS for trace in traces(figure).values())
    assert max(traces(figures.step_latency(session))["step"]["y"]) == pytest.approx(20.1)
    assert 999.0 in traces(figures.power(session))["power"]["y"]
    assert traces(figures.step_latency(session))["step"]["type"] == "scatter"


def test_very_many_phases_become_stretches() -> None:
    session = copy.deepcopy(plain_session())
    names = ("encode", "denoise", "denoise", "decode")
    session["phases"] = [{"name": names[number % 4], "start_s": number * 1.0, "duration_s": 1.0} for number in range(4000)]
    strip = [trace for trace in traces(figures.step_latency(session)).values() if trace.get("yaxis") == "y2"]
    assert sum(len(trace["x"]) for trace in strip) <= 300
    assert sum(sum(trace["x"]) for trace in strip) * 60 == pytest.approx(4000, rel=1e-4)


def test_no_text_of_a_session_is_markup() -> None:
    session = copy.deepcopy(rich_session())
    bad = '<a href="https://example.invalid">x</a>'
    for change in session["mode"]["history"]:
        change.update({"from": bad, "to": bad, "reason": bad})
    session["steps"][0]["pass"] = bad
    text = figures.step_latency(session).to_json() + figures.step_memory(session).to_json()
    assert "&lt;a href" in text.replace("\\u0026", "&")
    assert "<a" not in text.replace("\\u003c", "<")


def test_the_dark_palette_leaves_no_light_colour() -> None:
    session = with_readings(rich_session())
    for figure in figures.all_figures(session, DARK).values():
        assert "#ffffff" not in figure.to_json()
        assert figure.layout.paper_bgcolor == DARK["card"]


def test_a_session_is_not_changed() -> None:
    session = with_readings(rich_session())
    before = copy.deepcopy(session)
    figures.all_figures(session)
    assert session == before


def test_without_plotly_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['plotly'] = None; import vram_pilot.reports.figures"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "ImportError: vram_pilot.reports.figures needs the package plotly: pip install plotly" in answer.stderr
