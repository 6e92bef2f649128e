"""The bounded in-memory record that host events and samplers write and everything else reads. Pure.

Writers append frozen records; readers ask for what came after a cursor. Nobody waits for anybody: a reader that is too slow
is told how many records it lost.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from vram_pilot.session.records import Record, size_bytes
from vram_pilot.units import MIB

#: What the records that are kept may hold: 25 minutes at four readings and four columns of the map a second. A page shows ten.
MAX_BYTES = 12 * MIB


@dataclass(frozen=True)
class Slice:
    """records: oldest first; cursor: pass it to the next `after`; lost: records that were gone before they were read."""

    records: tuple[Record, ...]
    cursor: int
    lost: int


class Timeline:
    """Any thread may write or read. `capacity` and `max_bytes`: records kept; the oldest fall out first, the newest never."""

    def __init__(self, capacity: int = 20_000, max_bytes: int = MAX_BYTES) -> None:
        if capacity < 1:
            raise ValueError("a timeline keeps at least one record")
        self._capacity, self._max_bytes = capacity, max_bytes
        self._kept: dict[int, Record] = {}  # by number: reading costs what is read, not what is kept
        self._first = self._end = 0
        self._bytes = 0
        self._changed = threading.Condition()

    def append(self, record: Record) -> int:
        """Adds a record; the answer is the cursor behind it."""
        size = size_bytes(record)
        with self._changed:
            self._kept[self._end] = record
            self._end += 1
            self._bytes += size
            while self._end - self._first > self._capacity or (self._bytes > self._max_bytes and self._end - self._first > 1):
                self._bytes -= size_bytes(self._kept.pop(self._first))
                self._first += 1
            self._changed.notify_all()
            return self._end

    @property
    def cursor(self) -> int:
        """The cursor behind the newest record: `after(cursor)` gives only what comes later."""
        with self._changed:
            return self._end

    def after(self, cursor: int, limit: int = 1000) -> Slice:
        """The first `limit` records behind `cursor`. A cursor from the future (another process's) reads from the start."""
        with self._changed:
            if cursor > self._end or cursor < 0:
                cursor = self._first
            start = max(cursor, self._first)
            stop = min(self._end, start + max(limit, 0))
            records = tuple(self._kept[number] for number in range(start, stop))
            return Slice(records, stop, start - cursor)

    def wait(self, cursor: int, timeout_s: float) -> bool:
        """True as soon as there is a record behind `cursor`, False after `timeout_s` without one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._end != cursor, timeout_s)
