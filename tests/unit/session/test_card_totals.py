"""Energy and the card's peak, from readings that come when they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.card_totals import CardTotals


def totals(*readings: tuple[float, float | None, float | None]) -> CardTotals:
    """Each as (t_s, watts, joules so far)."""
    found = CardTotals()
    for t_s, watts, joules in readings:
        found.add(t_s, {"gpu_power_w": watts, "gpu_energy_j": joules})
    return found


def test_the_peak_is_the_highest_reading() -> None:
    found = CardTotals()
    for used in (None, 5.0, 9, None, 7):
        found.add(0.0, {"gpu_used_bytes": used})
    assert found.peak_device_bytes == 9
    assert CardTotals().peak_device_bytes is None


def test_the_counter_counts_between_its_readings_and_the_power_before_and_after() -> None:
    found = totals((1.0, 100.0, 5_000.0), (2.0, 300.0, None), (3.0, 200.0, 5_700.0))
    assert found.energy_j(5.0) == pytest.approx(1 * 100 + 700 + 2 * 200)


def test_a_short_job_is_power_times_time() -> None:
    assert totals((0.1, 200.0, 5_000.0), (0.3, 400.0, None)).energy_j(0.5) == pytest.approx(0.1 * 200 + 0.2 * 300 + 0.2 * 400)
    assert totals((0.1, 200.0, None)).energy_j(0.5) == pytest.approx(100.0)


def test_a_counter_without_a_power_sensor_is_taken_for_even() -> None:
    assert totals((1.0, None, 0.0), (3.0, None, 400.0)).energy_j(4.0) == pytest.approx(800.0)


def test_a_counter_that_was_set_back_is_not_believed() -> None:
    assert totals((0.0, 100.0, 9_000.0), (2.0, 100.0, 10.0)).energy_j(2.0) == pytest.approx(200.0)


@pytest.mark.parametrize("found", [totals(), totals((0.1, None, 5.0)), totals((0.1, None, None))])
def test_too_little_is_none_and_no_0(found: CardTotals) -> None:
    assert found.energy_j(1.0) is None


def test_a_job_that_has_not_ended_has_no_energy() -> None:
    assert totals((0.0, 100.0, None)).energy_j(None) is None


@given(st.floats(1, 700), st.lists(st.floats(0.05, 3.0), min_size=2, max_size=40))
def test_even_power_is_power_times_time_however_it_is_read(watts: float, gaps: list[float]) -> None:
    found, now = CardTotals(), 0.0
    for place, gap in enumerate(gaps):
        now += gap
        found.add(now, {"gpu_power_w": watts, "gpu_energy_j": now * watts if place % 3 == 0 else None})
    assert found.energy_j(now + 1.0) == pytest.approx((now + 1.0) * watts, rel=1e-6)
