"""Readings in columns, thinned evenly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.samples import SampleColumns


@given(st.integers(2, 40), st.integers(0, 600))
def test_any_length_is_bounded_and_even(capacity: int, count: int) -> None:
    columns = SampleColumns(capacity)
    for number in range(count):
        columns.add(float(number), {"a": float(number)})
    kept = columns.to_json()["t_s"]
    assert len(kept) <= capacity
    assert len(kept) >= min(count, capacity // 2)
    assert columns.to_json().get("a", []) == kept
    distances = {later - earlier for earlier, later in pairwise(kept)}
    assert len(distances) <= 1
    if kept:
        assert kept[0] == 0.0


def test_columns_have_one_length() -> None:
    columns = SampleColumns()
    columns.add(0.0, {"a": 1.0})
    columns.add(1.0, {"b": 2.0, "t_s": 99.0})
    columns.add(2.0, {"a": None})
    assert columns.to_json() == {"t_s": [0.0, 1.0, 2.0], "a": [1.0, None, None], "b": [None, 2.0, None]}


def test_what_is_handed_out_is_a_copy() -> None:
    columns = SampleColumns()
    columns.add(0.0, {"a": 1.0})
    columns.to_json()["a"].append(5.0)
    assert columns.to_json()["a"] == [1.0]
