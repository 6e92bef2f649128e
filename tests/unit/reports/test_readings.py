"""What the instruments read, as charts: complete, in order, and without what was not read."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.fakes.jobs import plain_session, rich_session
from tests.fakes.readings import TOTAL, with_readings
from vram_pilot.reports import readings
from vram_pilot.units import GIB, MIB


def only(**columns: list[float | None]) -> dict[str, Any]:
    """A session whose instruments read these metrics alone, once a second."""
    count = len(next(iter(columns.values())))
    return {**plain_session(), "samples": {"t_s": [float(number) for number in range(count)], **columns}}


def line(session: dict[str, Any], chart: str, label: str) -> list[float | None]:
    found = readings.chart(session, chart)
    assert found is not None
    (points,) = [each.points for each in found.lines if each.label == label]
    return [value for _, value in points]


def test_every_chart_of_a_read_card() -> None:
    names = [chart.name for chart in readings.charts(with_readings(rich_session()))]
    assert names == ["vram", "utilization", "power", "temperature", "clocks", "pcie", "ram"]


def test_without_readings_there_is_no_chart() -> None:
    assert readings.charts(rich_session()) == []
    assert readings.charts({}) == []
    nothing = only(gpu_power_w=[None, None], gpu_used_bytes=[None, None])
    assert readings.charts(nothing) == []


@pytest.mark.parametrize(
    ("metric", "chart"),
    [
        ("gpu_utilization_ratio", "utilization"),
        ("host_cpu_ratio", "utilization"),
        ("gpu_power_w", "power"),
        ("gpu_temperature_c", "temperature"),
        ("gpu_memory_temperature_c", "temperature"),
        ("gpu_sm_clock_hz", "clocks"),
        ("gpu_pcie_rx_bytes_per_s", "pcie"),
        ("process_rss_bytes", "ram"),
        ("gpu_used_bytes", "vram"),
    ],
)
def test_one_metric_alone_has_its_chart_and_no_other(metric: str, chart: str) -> None:
    session = only(**{metric: [1e9, 2e9]})
    assert [found.name for found in readings.charts(session)] == [chart]


@pytest.mark.parametrize("metric", ["process_rss_bytes", "gpu_power_w", "gpu_used_bytes"])
def test_one_reading_is_no_line(metric: str) -> None:
    """Of a short job: a chart of it would be empty."""
    assert readings.charts(only(**{metric: [1e9, None]})) == []


def test_a_limit_alone_is_no_reading() -> None:
    assert readings.charts(only(gpu_power_limit_w=[170.0, 170.0])) == []


class TestVram:
    def test_the_parts_come_to_what_the_driver_says(self) -> None:
        session = with_readings(rich_session())
        chart, samples = readings.chart(session, "vram"), session["samples"]
        assert chart is not None
        assert [each.label for each in chart.lines] == [
            "Torch, in use",
            "Torch, cached",
            "This process beside torch",
            "Other processes",
            "Driver and the rest",
        ]
        assert chart.unit == "GiB"
        taken = [(used + driver) / GIB for used, driver in zip(samples["gpu_used_bytes"], samples["gpu_reserved_bytes"])]
        assert chart.sums() == pytest.approx(taken)
        assert line(session, "vram", "Torch, in use") == pytest.approx([value / GIB for value in samples["allocated_bytes"]])

    def test_what_is_read_rarely_holds_until_it_is_read_again(self) -> None:
        session = only(
            allocated_bytes=[2 * GIB] * 4,
            reserved_bytes=[3 * GIB] * 4,
            gpu_used_bytes=[8 * GIB] * 4,
            gpu_process_bytes=[None, 4 * GIB, None, None],
            gpu_other_processes_bytes=[None, 3 * GIB, None, 2 * GIB],
        )
        assert line(session, "vram", "This process beside torch") == [1.0] * 4
        assert line(session, "vram", "Other processes") == [3.0, 3.0, 3.0, 2.0]
        assert line(session, "vram", "Driver and the rest") == [1.0, 1.0, 1.0, 2.0]

    def test_where_processes_are_not_told_apart_others_and_driver_are_one(self) -> None:
        session = with_readings(rich_session(), processes=False)
        chart = readings.chart(session, "vram")
        assert chart is not None
        assert [each.label for each in chart.lines][2:] == ["Others and driver"]
        assert "does not tell processes apart" in (chart.note or "")

    def test_without_a_card_it_is_torchs_part_alone(self) -> None:
        chart = readings.chart(with_readings(rich_session(), card=False), "vram")
        assert chart is not None
        assert [each.label for each in chart.lines] == ["Torch, in use", "Torch, cached"]
        assert "the card itself was not read" in (chart.note or "")

    def test_readings_of_different_moments_make_no_negative_part(self) -> None:
        session = only(
            allocated_bytes=[5 * GIB] * 2,
            reserved_bytes=[4 * GIB] * 2,
            gpu_used_bytes=[3 * GIB] * 2,
            gpu_process_bytes=[9 * GIB] * 2,
            gpu_other_processes_bytes=[9 * GIB] * 2,
        )
        chart = readings.chart(session, "vram")
        assert chart is not None
        assert all(value >= 0 for each in chart.lines for _, value in each.points if value is not None)

    def test_a_card_that_is_nearly_empty_keeps_its_own_scale(self) -> None:
        full = readings.chart(with_readings(rich_session()), "vram")
        assert full is not None and full.y_top == TOTAL / GIB
        roomy = copy.deepcopy(with_readings(rich_session()))
        roomy["samples"]["gpu_total_bytes"] = [140 * GIB] * 120
        chart = readings.chart(roomy, "vram")
        assert chart is not None and chart.y_top is None
        assert "The card has 140.0 GiB." in (chart.note or "")

    def test_a_lost_card_leaves_a_gap(self) -> None:
        session = only(gpu_used_bytes=[GIB, GIB, GIB, *[None] * 30, GIB, GIB])
        chart = readings.chart(session, "vram")
        assert chart is not None
        assert chart.sums() == [1.0, 1.0, 1.0, None, 1.0, 1.0]


def test_values_are_in_the_charts_unit() -> None:
    session = with_readings(rich_session())
    assert max(value or 0 for value in line(session, "utilization", "card busy")) == pytest.approx(98, abs=1)
    assert line(session, "clocks", "multiprocessors")[0] == pytest.approx(1800)
    found = readings.chart(session, "pcie")
    assert found is not None and found.unit == "GiB/s"
    small = readings.chart(only(gpu_pcie_rx_bytes_per_s=[10 * MIB, 20 * MIB]), "pcie")
    assert small is not None and (small.unit, [value for _, value in small.lines[0].points]) == ("MiB/s", [10.0, 20.0])
    assert line(session, "ram", "in use on the machine")[0] == pytest.approx(14.0)


def test_of_all_that_was_read() -> None:
    session = only(gpu_power_w=[100.0, None, 300.0])
    assert readings.statistics(session, "gpu_power_w", max) == 300.0
    assert readings.statistics(session, "gpu_temperature_c", max) is None
