"""Sizes and times as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.units import GIB, MIB, format_bytes, format_seconds, mib


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "—"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KiB"),
        (12 * 1024, "12 KiB"),
        (1.5 * MIB, "1.5 MiB"),
        (745 * MIB, "745 MiB"),
        (1.6 * GIB, "1.60 GiB"),
        (80 * GIB, "80.0 GiB"),
        (-745 * MIB, "-745 MiB"),
    ],
)
def test_bytes(size: float | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (None, "—"),
        (0, "0.0 ms"),
        (0.0344, "34.4 ms"),
        (5.2, "5.20 s"),
        (60, "1 min 0 s"),
        (192, "3 min 12 s"),
        (3599.6, "1 h 0 min"),
        (7260, "2 h 1 min"),
    ],
)
def test_seconds(duration: float | None, text: str) -> None:
    assert format_seconds(duration) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_the_shown_size_is_the_size_to_its_last_digit(size: int) -> None:
    number, unit = format_bytes(size).split()
    one = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB}[unit]
    digits = len(number.partition(".")[2])
    assert abs(float(number) * one - size) <= 0.5001 * one / 10**digits
    assert len(number) <= 4 or unit == "GiB"


def test_mib() -> None:
    assert mib(3 * MIB) == 3
