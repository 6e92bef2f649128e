"""The instruments' readings of one job in column form, bounded by thinning. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any


class SampleColumns:
    """`t_s` and one list for each metric, all of one length; what was not read is None.

    At `capacity` readings every second one is dropped, and from then on every second, fourth, … one is taken: a job of any
    length keeps between capacity ÷ 2 and capacity readings, evenly spread. A metric that is read more rarely than the others
    would fall through such a sieve, so each reading that is kept also has what those dropped beside it alone had.
    """

    def __init__(self, capacity: int = 4_000) -> None:
        self._capacity = capacity
        self._stride = 1
        self._seen = 0
        self._held: dict[str, float | None] = {}  # what the readings since the last one taken had
        self._t_s: list[float] = []
        self._columns: dict[str, list[float | None]] = {}

    def add(self, t_s: float, values: Mapping[str, float | None]) -> None:
        self._held.update((name, value) for name, value in values.items() if value is not None or name not in self._held)
        taken = self._seen % self._stride == 0
        self._seen += 1
        if not taken:
            return
        values, self._held = self._held, {}
        before = len(self._t_s)
        self._t_s.append(t_s)
        for name in (name for name in values if name != "t_s"):  # in their own order, the same in every file
            self._columns.setdefault(name, [None] * before)
        for name, column in self._columns.items():
            column.append(values.get(name))
        if len(self._t_s) >= self._capacity:
            self._thin()

    def to_json(self) -> dict[str, Any]:
        return {"t_s": list(self._t_s), **{name: list(column) for name, column in self._columns.items()}}

    def _thin(self) -> None:
        self._stride *= 2
        self._t_s = self._t_s[::2]
        self._columns = {
            name: [kept if kept is not None else dropped for kept, dropped in zip_longest(column[::2], column[1::2])]
            for name, column in self._columns.items()
        }
