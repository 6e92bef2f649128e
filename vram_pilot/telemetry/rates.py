"""How fast a counter grows. Pure."""

from __future__ import annotations

#: Bytes a second that one PCIe lane carries at most, each way, by the link's generation.
LANE_BYTES_PER_S = {1: 250e6, 2: 500e6, 3: 984.6e6, 4: 1969e6, 5: 3938e6, 6: 7563e6, 7: 15126e6}


class CounterRate:
    """The rate of one counter between two readings. A narrow one begins again at its end, perhaps more than once in between."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def update(self, value: float, bits: int, t_s: float, most_per_s: float | None) -> float | None:
        """Units a second since the reading before. None for the first, after the counter was set back, and where a counter that
        can grow by `most_per_s` (None: nobody knows) may have gone round since then."""
        before, self._before = self._before, (value, t_s)
        if before is None or t_s <= before[1]:
            return None
        elapsed_s, grown = t_s - before[1], value - before[0]
        if bits > 32:
            return grown / elapsed_s if grown >= 0 else None
        if most_per_s is None or most_per_s * elapsed_s >= 2**bits:
            return None
        return (grown if grown >= 0 else grown + 2**bits) / elapsed_s

    def forget(self) -> None:
        self._before = None


def link_bytes_per_s(generation: float | None, width: float | None) -> float | None:
    """What a PCIe link carries at most each way; None when its generation or width is not known."""
    lane = LANE_BYTES_PER_S.get(int(generation or 0))
    return None if lane is None or not width else lane * width
