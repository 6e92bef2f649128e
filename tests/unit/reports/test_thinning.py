"""Fewer points that look the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.reports.thinning import extremes, with_gaps

VALUES = st.lists(st.none() | st.floats(-1e9, 1e9), max_size=3000)


@given(VALUES, st.integers(1, 300))
def test_every_extreme_stays_and_the_order_too(values: list[float | None], buckets: int) -> None:
    kept = extremes(values, buckets)
    assert len(kept) <= 2 * buckets
    assert kept == sorted(set(kept))
    known, seen = [v for v in values if v is not None], [values[place] for place in kept if values[place] is not None]
    assert (max(known, default=None), min(known, default=None)) == (max(seen, default=None), min(seen, default=None))


def test_few_stay_as_they_are() -> None:
    assert extremes([3.0, None, 1.0], 2) == [0, 1, 2]


def test_a_pause_breaks_the_line_and_the_usual_distance_does_not() -> None:
    steady = [(number * 0.25, 1.0) for number in range(20)]
    assert with_gaps(steady) == steady
    late = [(t_s + 60, value) for t_s, value in steady]
    assert with_gaps(steady + late) == [*steady, (steady[-1][0], None), *late]


def test_readings_every_two_seconds_have_no_gaps() -> None:
    slow = [(number * 2.0, 1.0) for number in range(20)]
    assert with_gaps(slow) == slow


def test_one_or_none() -> None:
    assert with_gaps([]) == []
    assert with_gaps([(1.0, 2.0)]) == [(1.0, 2.0)]
