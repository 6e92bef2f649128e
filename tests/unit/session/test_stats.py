"""Figures against a reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.stats import largest, percentile, rate

VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200)


@given(VALUES, st.floats(0, 1))
def test_percentile_is_the_reference_one(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9)


@given(VALUES)
def test_percentile_lies_among_the_values(values: list[float]) -> None:
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)


def test_nothing_gives_nothing() -> None:
    assert percentile([], 0.5) is None
    assert rate(None, 1.0) is None
    assert rate(3, None) is None
    assert rate(3, 0.0) is None
    assert largest(None, None) is None


def test_known_values() -> None:
    assert rate(3, 1.5) == 2.0
    assert largest(None, 5, 3) == 5
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
