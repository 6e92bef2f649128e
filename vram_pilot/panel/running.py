"""The newest job as the timeline tells it: how far it is, how fast, and what it has used so far. Standard library only."""

from __future__ import annotations

import threading
from collections import deque
from statistics import median
from typing import Any

from vram_pilot.session.card_totals import CardTotals
from vram_pilot.session.records import JobFinished, JobStarted, Record, Sample, StepFinished
from vram_pilot.session.timeline import Timeline

#: Steps that the speed of a running job is the median of; that of a finished one is of all its steps, as in its session.
NEWEST_STEPS = 10


class NewestJob:
    """Reads only what came since the last look. Any thread."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lock = threading.Lock()
        self._cursor = 0
        self._job: _Job | None = None

    def look(self) -> dict[str, Any] | None:
        """None before the first job. cursor: its first record comes behind it; energy_j, steps_per_s: None while unknown."""
        with self._lock:
            while True:
                part = self._timeline.after(self._cursor)
                first = part.cursor - len(part.records)
                for place, record in enumerate(part.records):
                    self._take(record, first + place)
                self._cursor = part.cursor
                if not part.records:
                    return None if self._job is None else self._job.to_json()

    def _take(self, record: Record, cursor: int) -> None:
        if isinstance(record, JobStarted):
            self._job = _Job(record.session_id, record.t_s, cursor)
        elif self._job is None:
            if isinstance(record, StepFinished):  # its start was gone before anybody looked
                self._job = _Job(record.session_id, record.start_s, cursor)
                self._job.take(record)
        else:
            self._job.take(record)


class _Job:
    def __init__(self, session_id: str, start_s: float, cursor: int) -> None:
        self._session_id, self._start_s, self._cursor = session_id, start_s, cursor
        self._now_s, self._running, self._steps = start_s, True, 0
        self._durations: deque[float] = deque(maxlen=NEWEST_STEPS)
        self._timed, self._timed_s = 0, 0.0
        self._card = CardTotals()

    def take(self, record: Record) -> None:
        if not self._running:
            return
        if isinstance(record, Sample):
            self._now_s = max(self._now_s, record.t_s)
            self._card.add(record.t_s - self._start_s, record.values)
        elif isinstance(record, StepFinished) and record.session_id == self._session_id:
            self._steps += 1
            if record.duration_s:
                self._durations.append(record.duration_s)
                self._timed, self._timed_s = self._timed + 1, self._timed_s + record.duration_s
        elif isinstance(record, JobFinished) and record.session_id == self._session_id:
            self._running, self._now_s = False, max(record.t_s, self._now_s)

    def to_json(self) -> dict[str, Any]:
        elapsed_s = self._now_s - self._start_s
        return {
            "session_id": self._session_id,
            "running": self._running,
            "cursor": self._cursor,
            "steps": self._steps,
            "steps_per_s": self._steps_per_s(),
            "energy_j": self._card.energy_j(elapsed_s),
        }

    def _steps_per_s(self) -> float | None:
        if not self._durations:
            return None
        return 1 / median(self._durations) if self._running else self._timed / self._timed_s
