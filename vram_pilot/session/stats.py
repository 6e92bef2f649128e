"""Figures drawn from what was recorded. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of `values` lie, interpolated between neighbours; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rate(count: float | None, duration_s: float | None) -> float | None:
    """`count` per second; None when either is unknown or no time has passed."""
    return count / duration_s if count is not None and duration_s else None


def largest(*values: int | None) -> int | None:
    """The largest of the values that are known, None when none is."""
    return max((value for value in values if value is not None), default=None)
