"""Fewer points that look the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median


def extremes(values: Sequence[float | None], buckets: int) -> list[int]:
    """Places of at most 2 × `buckets` values: of each stretch its lowest and its highest, so that no spike is lost."""
    if len(values) <= 2 * buckets:
        return list(range(len(values)))
    kept: list[int] = []
    for number in range(buckets):
        start, stop = len(values) * number // buckets, len(values) * (number + 1) // buckets
        known = [(value, place) for place, value in enumerate(values[start:stop], start) if value is not None]
        kept += sorted({min(known)[1], max(known)[1]}) if known else [start]
    return kept


def with_gaps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float | None]]:
    """`points` (seconds, value) with a None wherever nothing was read for much longer than usual."""
    steps = [after[0] - before[0] for before, after in pairwise(points)]
    longest = max(5.0 * median(steps), 3.0) if steps else 0.0
    filled: list[tuple[float, float | None]] = list(points[:1])
    for before, after in pairwise(points):
        if after[0] - before[0] > longest:
            filled.append((before[0], None))
        filled.append(after)
    return filled
