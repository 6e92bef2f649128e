"""The charts, as functions of their data."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.reports import charts
from vram_pilot.reports.charts import Band, Mark, Series

POINTS = st.lists(st.floats(0, 1e12) | st.none(), max_size=700).map(lambda ys: [(float(n), y) for n, y in enumerate(ys, 1)])


def draw(points: list[tuple[float, float | None]], **more: object) -> ET.Element:
    options = {"width": 400.0, "y_format": lambda y: f"{y:g}", "y_step": charts.nice_step, **more}
    text = charts.line_chart([Series("a <b>", "one", points, filled=True)], title='"t"', x_label="step", **options)  # type: ignore[arg-type]
    return ET.fromstring(text)


def numbers(path: str) -> list[tuple[float, float]]:
    pairs = [pair.split() for pair in path.replace("M", "L").replace("Z", "").split("L")[1:]]
    return [(float(x), float(y)) for x, y in pairs]


@given(POINTS)
def test_any_data_is_drawn_inside_the_frame(points: list[tuple[float, float | None]]) -> None:
    root = draw(points)
    for path in root.iter("path"):
        if "line" in path.attrib["class"]:
            for x, y in numbers(path.attrib["d"]):
                assert 62 - 0.1 <= x <= 400 - 14 + 0.1
                assert 0 <= y <= 260 - 44 + 0.1


def test_an_axis_of_time_has_fractions_and_its_own_range() -> None:
    root = draw([(0.1, 1.0), (0.4, 2.0)], x_range=(0.0, 0.5))
    ticks = [text.text for text in root.iter("text") if text.attrib["text-anchor"] == "middle"]
    assert ticks[:3] == ["0", "0.2", "0.4"]
    (line,) = [path for path in root.iter("path") if "line" in path.attrib["class"]]
    (first, _), (last, _) = numbers(line.attrib["d"])
    assert first == pytest.approx(62 + 0.2 * (400 - 62 - 14), abs=0.1)
    assert last == pytest.approx(62 + 0.8 * (400 - 62 - 14), abs=0.1)


def test_long_ticks_have_room() -> None:
    root = draw([(1.0, 8000.0), (2.0, 7000.0)], y_format=lambda y: f"{y:,g} MHz and more")
    texts = [text for text in root.iter("text") if text.attrib["text-anchor"] == "end"]
    assert all(float(text.attrib["x"]) >= 6.5 * len(text.text or "") for text in texts)


def test_a_mark_without_a_text_is_a_line_alone() -> None:
    root = draw([(1.0, 1.0), (2.0, 1.0)], marks=[Mark(1.5, ""), Mark(1.7, "→ full")])
    assert len([line for line in root.iter("line") if line.attrib["class"] == "mark"]) == 2
    assert len([rect for rect in root.iter("rect") if rect.attrib["class"] == "tag"]) == 1


def test_a_gap_breaks_the_line() -> None:
    root = draw([(1.0, 1.0), (2.0, None), (3.0, 2.0), (4.0, 2.0)])
    (line,) = [path for path in root.iter("path") if "line" in path.attrib["class"]]
    assert line.attrib["d"].count("M") == 2
    (area,) = [path for path in root.iter("path") if "area" in path.attrib["class"]]
    assert area.attrib["d"].count("Z") == 2  # each part is closed for itself


def test_heights_are_in_proportion() -> None:
    root = draw([(1.0, 0.0), (2.0, 50.0), (3.0, 100.0)])
    (line,) = [path for path in root.iter("path") if "line" in path.attrib["class"]]
    (_, low), (_, middle), (_, high) = numbers(line.attrib["d"])
    assert low - middle == pytest.approx(middle - high, abs=0.2)


def test_a_slow_step_does_not_flatten_the_others() -> None:
    points: list[tuple[float, float | None]] = [(1.0, 30.0), (2.0, 1.0), (3.0, 1.1), (4.0, 0.9)]
    root = draw(points, y_top=charts.clip_top([30.0, 1.0, 1.1, 0.9] * 30, 1.2))
    texts = [text.text for text in root.iter("text")]
    assert "30" in texts  # its value is written where it leaves the chart
    (line,) = [path for path in root.iter("path") if "line" in path.attrib["class"]]
    assert numbers(line.attrib["d"])[1][1] < 200


def test_texts_are_escaped() -> None:
    text = charts.line_chart(
        [Series("<i>", "one", [(1.0, 1.0)])],
        title="<t>",
        x_label="<x>",
        y_format=lambda y: "<y>",
        y_step=charts.nice_step,
        width=400.0,
        marks=[Mark(1.0, "<m>")],
        bands=[],
    )
    for bad in ("<i>", "<t>", "<x>", "<y>", "<m>"):
        assert bad not in text
    ET.fromstring(text)
    ET.fromstring(charts.shares_bar([("<i>", "p-load", 1.0)], title="<t>", width=100.0))


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["→ lowvram", "→ full", "→ medvram"])), max_size=4))
def test_no_mark_covers_another(places: list[tuple[int, str]]) -> None:
    marks = [Mark(float(place), text) for place, text in sorted(places)]
    root = draw([(float(number), 1.0) for number in range(1, 41)], marks=marks)
    boxes = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in root.iter("rect")
        if rect.attrib["class"] == "tag"
    ]
    assert len(boxes) == len(marks)
    for number, (x, y, width, _) in enumerate(boxes):
        assert x + width <= 400
        for other_x, other_y, other_width, _ in boxes[number + 1 :]:
            assert y != other_y or x + width <= other_x or other_x + other_width <= x


def test_bands_name_passes_where_there_is_room() -> None:
    points = [(float(number), 1.0) for number in range(1, 41)]
    root = draw(points, bands=[Band(1.0, 30.5, "base"), Band(30.5, 32.0, "a very long name of a pass")])  # type: ignore[arg-type]
    texts = [text.text for text in root.iter("text")]
    assert "base" in texts
    assert "a very long name of a pass" not in texts


@given(st.floats(1e-9, 1e15))
def test_ticks_are_round_and_few(top: float) -> None:
    step = charts.nice_step(top)
    assert 2 <= math.ceil(top / step - 1e-9) <= 5
    assert float(f"{step:.0e}") == pytest.approx(step, rel=1e-9)
    assert f"{step:.0e}"[0] in "125"
    assert math.ceil(max(top, 1.0) / charts.nice_binary_step(top) - 1e-9) <= 4


def test_shares_fill_the_bar() -> None:
    root = ET.fromstring(charts.shares_bar([("a", "p-load", 1.0), ("b", "p-decode", 3.0)], title="t", width=100.0))
    assert [float(rect.attrib["width"]) for rect in root.iter("rect")] == [25.0, 75.0]
    assert [float(rect.attrib["x"]) for rect in root.iter("rect")] == [0.0, 25.0]
