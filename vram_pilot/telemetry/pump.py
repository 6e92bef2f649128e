"""The one thread that reads the instruments and writes what they say into the timeline.

It runs while a job runs or somebody watches, and for a few seconds after. Then the instruments give back what they hold and the
thread ends: nothing wakes a card that could sleep.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from vram_pilot.session.records import Sample
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.base import Sampler

log = logging.getLogger(__name__)

#: How long readings go on after the last one who wanted them: a page that polls comes again before that.
LINGER_S = 5.0
_STOP_TIMEOUT_S = 2.0

Derive = Callable[[Mapping[str, float | None]], Mapping[str, float | None]]


class Pump:
    """`watching`, `job`, `start` and `stop` may be called from any thread; all but `stop` cost microseconds, and none raises.

    derive: further metrics, from what was read together.
    """

    def __init__(
        self,
        timeline: Timeline,
        samplers: Sequence[Sampler],
        *,
        derive: Derive = lambda values: {},
        linger_s: float = LINGER_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samplers = tuple(samplers)
        self._timeline, self._derive = timeline, derive
        self._linger_s, self._monotonic = linger_s, monotonic
        self._due_s = [0.0] * len(self.samplers)  # monotonic seconds; 0: at once
        self._changed = threading.Condition()
        self._watchers = 0
        self._in_job = False
        self._stopped = False
        self._wanted_until_s = 0.0
        self._thread: threading.Thread | None = None
        self._logged: set[tuple[str, str]] = set()

    @property
    def running(self) -> bool:
        return self._thread is not None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody looks while the block runs."""
        self._change(watchers=1)
        try:
            yield
        finally:
            self._change(watchers=-1)

    def job(self, running: bool) -> None:
        """A job has begun, or has ended."""
        self._change(in_job=running)

    def start(self) -> None:
        """Readings may be taken (again), if anybody wants them. Idempotent."""
        with self._changed:
            self._stopped = False
        self._change()

    def stop(self) -> None:
        """Ends the thread, whoever watches, and waits for it briefly; until `start` there are no readings. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_TIMEOUT_S)

    # ------------------------------------------------------------------------------------------------ who wants readings

    def _change(self, watchers: int = 0, in_job: bool | None = None) -> None:
        with self._changed:
            self._watchers += watchers
            self._in_job = self._in_job if in_job is None else in_job
            self._wanted_until_s = self._monotonic() + self._linger_s
            if self._wanted() and self._thread is None and not self._stopped:
                self._due_s = [0.0] * len(self.samplers)
                self._thread = threading.Thread(target=self._run, name="vram-pilot-telemetry", daemon=True)
                self._start(self._thread)
            self._changed.notify_all()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError:  # the system has no thread to give, or the interpreter is ending
            log.warning("VRAM Pilot: no thread for the instruments; there are no readings", exc_info=True)
            self._thread = None

    def _wanted(self) -> bool:
        return self._watchers > 0 or self._in_job

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._work():
                pass
        except Exception as error:
            self._log_once("its thread", error)
            with self._changed:
                self._thread = None

    def _work(self) -> bool:
        """Reads until nobody wants to know, then gives back what the instruments hold. True: somebody came in the meantime."""
        while self._wait():
            self._tick()
        self._close()
        with self._changed:
            again = self._wanted() and not self._stopped
            if not again:
                self._thread = None
            return again

    def _wait(self) -> bool:
        """Sleeps until a reading is due; False when none is wanted any more."""
        with self._changed:
            while True:
                now_s = self._monotonic()
                if self._stopped or not (self._wanted() or now_s < self._wanted_until_s):
                    return False
                left_s = min(self._due_s, default=now_s + self._linger_s) - now_s
                if left_s <= 0:
                    return True
                self._changed.wait(left_s)

    def _tick(self) -> None:
        """Reads what is due, and writes one record of it. Readings that were missed are not caught up with."""
        start_s = self._monotonic()
        # what is due soon is read now, so that the tiers keep step and the thread wakes once for all
        soon_s = start_s + min((sampler.period_s for sampler in self.samplers), default=0.0) / 2
        values: dict[str, float | None] = {}
        for place, sampler in enumerate(self.samplers):
            if self._due_s[place] <= soon_s:
                values.update(self._read(sampler))
                next_s = self._due_s[place] + sampler.period_s
                self._due_s[place] = next_s if next_s > start_s else start_s + sampler.period_s
        if values:
            values.update(self._derive(values))
            self._timeline.append(Sample(start_s, values))

    def _read(self, sampler: Sampler) -> Mapping[str, float | None]:
        try:
            return sampler.sample()
        except Exception as error:  # the last gate: one instrument's fault hides that instrument only
            self._log_once(sampler.name, error)
            return {}

    def _close(self) -> None:
        for sampler in self.samplers:
            try:
                sampler.close()
            except Exception as error:
                self._log_once(sampler.name, error)

    def _log_once(self, part: str, error: Exception) -> None:
        cause = (part, type(error).__name__)
        if cause not in self._logged:
            self._logged.add(cause)
            log.warning("VRAM Pilot: telemetry goes on without %s", part, exc_info=error)
