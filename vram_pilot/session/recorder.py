"""Turns what a host tells into the timeline's records and, at the job's end, into a session. Standard library only.

Every boundary sets a mark and goes on; its time is read later, when the work before it is done. Nothing here waits for a device
before the job has ended, and nothing here raises: a fault costs a figure and one line in the log, never an image.

Tell the recorder before the controller at every event: then the bytes it reads are those at the end of the step before, and a
switch made at a boundary belongs to the step that begins there.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol, TypeVar

from vram_pilot.hosts.base import PHASES, JobInfo, StepInfo
from vram_pilot.session.assembly import STATUSES, Boundary, Header, SessionBuilder, StepKey
from vram_pilot.session.clock import HostStepClock, StepClock
from vram_pilot.session.facts import mode_json, request_json
from vram_pilot.session.ids import new_id
from vram_pilot.session.records import JobFinished, JobStarted, ModeChanged, Note, Sample
from vram_pilot.session.timeline import Timeline

log = logging.getLogger(__name__)

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Session = dict[str, Any]


class Peaks(Protocol):
    """The allocator's own peak counters: (allocated, reserved) bytes, None where there is no such counter."""

    def reset(self) -> None: ...

    def read(self) -> tuple[int | None, int | None]: ...


def _never_raises(method: _Method) -> _Method:
    """Runs the method under the recorder's lock; a fault is logged once for each place that it comes from."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # the gate to the host: the generation always wins
                self._log_once(method.__name__, error)
                return None

    return guarded  # type: ignore[return-value]


class _Job:
    """The running job. pending: what waits for its time, in the order in which it happened."""

    def __init__(self, builder: SessionBuilder, cursor: int, start_host_s: float) -> None:
        self.builder = builder
        self.cursor = cursor
        self.thread = threading.get_ident()
        self.pending: deque[tuple[Any, Boundary | ModeChanged | Note]] = deque()
        self.token: Any = None  # the last mark whose time is known, t_s after the start and host_s by the host's clock
        self.t_s = 0.0
        self.host_s = start_host_s
        self.calls = 0
        self.phase = "other"
        self.step: StepInfo | None = None
        self.streamed: tuple[Any, int] | None = None  # the mode in force and its counter when last read
        self.clock_failed = False


class Recorder:
    """The part of `HostListener` that records. Its methods run on the sampling thread; `progress` and `session_id` on any.

    clock: see session.clock. memory: (allocated, reserved) bytes now, None where unknown. peaks: the allocator's peak counters.
    mode_state: `Controller.state`. identity: a mapping of host, software, gpus, settings and model, see
    docs/session.schema.json. on_started, on_finished: get the session, whole in shape, with what is known by then.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        clock: StepClock | None = None,
        memory: Callable[[], tuple[int | None, int | None] | None] = lambda: None,
        peaks: Peaks | None = None,
        mode_state: Callable[[], dict[str, Any]] = dict,
        identity: Callable[[], dict[str, Any]] = dict,
        on_started: Callable[[_Session], None] | None = None,
        on_finished: Callable[[_Session], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        utc_now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._timeline = timeline
        self._clock: StepClock = clock or HostStepClock()
        self._memory, self._peaks = memory, peaks
        self._mode_state, self._identity = mode_state, identity
        self._on_started, self._on_finished = on_started, on_finished
        self._monotonic, self._utc_now = monotonic, utc_now
        self._lock = threading.RLock()
        self._job: _Job | None = None
        self._logged: set[tuple[str, str]] = set()

    @property
    def session_id(self) -> str | None:
        """The running job's session, None between jobs. Any thread."""
        job = self._job
        return None if job is None else job.builder.header.session_id

    # ------------------------------------------------------------------------------------------------ sampling thread

    @_never_raises
    def job_started(self, job: JobInfo) -> None:
        """Begins a session. Within a job it is ignored; from another thread it means that the job before never ended."""
        if self._job is not None:
            if self._job.thread == threading.get_ident():
                return
            self._finish(self._job, "error", "The job's end was never reported; the next job began.")
        self._job = started = self._begin(job)
        self._mark(started, "start", phase="other")
        self._tell(self._on_started, started.builder.session("running"))

    @_never_raises
    def phase_started(self, name: str) -> None:
        if self._job is not None:
            self._job.phase, self._job.step = name if name in PHASES else "other", None
            self._mark(self._job, "phase", phase=self._job.phase)
            self._read_peaks(self._job)

    @_never_raises
    def step_started(self, step: StepInfo) -> None:
        if self._job is not None:
            self._job.step = step
            self._mark(self._job, "step", step=StepKey(step.index, step.pass_name, step.image))

    @_never_raises
    def call_started(self) -> None:
        """Also tells of the step before: at the boundary it had not quite ended, and the next boundary may be seconds off."""
        if self._job is not None:
            self._job.calls += 1
            self._resolve(self._job)

    @_never_raises
    def job_finished(self, status: str, error: str | None = None) -> None:
        if self._job is not None:
            self._finish(self._job, status, error)

    # ------------------------------------------------------------------------------------------------ any thread

    def progress(self) -> dict[str, Any] | None:
        """Where the running job is, None between jobs: session_id, started_at, elapsed_s, phase, step, steps, pass, image."""
        job = self._job  # without the lock: the end of a job may hold it for as long as a device takes
        if job is None:
            return None
        header, step = job.builder.header, job.step
        return {
            "session_id": header.session_id,
            "started_at": header.started_at,
            "elapsed_s": self._monotonic() - job.builder.start_host_s,
            "phase": job.phase,
            "step": None if step is None else step.index,
            "steps": None if step is None else step.total,
            "pass": None if step is None else step.pass_name,
            "image": None if step is None else step.image,
        }

    # ------------------------------------------------------------------------------------------------ a job's two ends

    def _begin(self, job: JobInfo) -> _Job:
        now = self._utc_now()
        header = Header(new_id(now), now.isoformat(timespec="milliseconds"), request_json(job.request))
        header.identity = self._safely("identity", self._identity) or {}
        state = self._safely("mode", self._mode_state) or {}
        header.requested = mode_json(job.mode.to_json() if job.mode is not None else state.get("standing"))
        header.effective = mode_json(state.get("effective"))
        start_s, cursor = self._monotonic(), self._timeline.cursor
        self._timeline.append(
            JobStarted(
                start_s,
                header.session_id,
                header.started_at,
                dict(header.request),
                dict(header.requested or {}),
                header.identity.get("model"),
            )
        )
        if self._peaks is not None:
            self._safely("peaks", self._peaks.reset)
        return _Job(SessionBuilder(header, start_s), cursor, start_s)

    def _finish(self, job: _Job, status: str, error: str | None) -> None:
        self._job = None
        status = status if status in STATUSES[1:-1] else "error"
        try:
            self._mark(job, "end")
            self._read_peaks(job)
            self._safely("clock", self._clock.settle)
            self._resolve(job, final=True)
        finally:
            header = job.builder.header
            header.identity = {**header.identity, **(self._safely("identity", self._identity) or {})}
            session = job.builder.session(status, error)
            self._timeline.append(JobFinished(self._monotonic(), header.session_id, status, session["error"]))
            self._tell(self._on_finished, session)

    def _tell(self, listener: Callable[[_Session], None] | None, session: _Session) -> None:
        if listener is not None:
            self._safely("store", functools.partial(listener, session))

    # ------------------------------------------------------------------------------------------------ boundaries

    def _mark(self, job: _Job, kind: str, phase: str | None = None, step: StepKey | None = None) -> None:
        """Sets a mark, takes down what ends here, and gives out what is done by now."""
        token = self._safely("clock", self._clock.mark)
        self._collect(job)
        allocated, reserved = self._safely("memory", self._memory) or (None, None)
        streamed = self._streamed(job, kind)
        boundary = Boundary(kind, self._monotonic(), phase, step, job.calls, allocated, reserved, streamed)
        job.calls = 0
        job.pending.append((token, boundary))
        self._resolve(job)

    def _collect(self, job: _Job) -> None:
        """Takes the switches, notes and readings that others wrote into the timeline since the boundary before."""
        while True:
            found = self._timeline.after(job.cursor)
            job.cursor = found.cursor
            for record in found.records:
                if isinstance(record, (ModeChanged, Note)):
                    job.pending.append((None, record))
                elif isinstance(record, Sample):
                    job.builder.sample(record)
            if not found.records:
                return

    def _streamed(self, job: _Job, kind: str) -> int | None:
        """Bytes streamed since the boundary before. The mode's counter starts again when a mode is entered."""
        state = self._safely("mode", self._mode_state) or {}
        mode, count = mode_json(state.get("effective")), state.get("streamed_bytes")
        if kind != "end" and mode is not None:  # at the end the controller may have gone back to the standing mode already
            job.builder.header.effective = mode
        before, job.streamed = job.streamed, None if count is None else (mode, count)
        if count is None or before is None:
            return None
        same = before[0] == mode and before[1] <= count
        return int(count - before[1] if same else count)

    def _resolve(self, job: _Job, final: bool = False) -> None:
        """Works off `pending` from its front, as far as the clock knows the times; to its end when `final`."""
        while job.pending:
            token, item = job.pending[0]
            if isinstance(item, Boundary):
                elapsed = self._elapsed(job, token)
                if elapsed is None and not (final or job.clock_failed):
                    return
                self._place(job, token, item, elapsed)
            else:
                job.builder.event(item, job.t_s)  # the host's time of it says nothing where the host runs ahead
            job.pending.popleft()

    def _elapsed(self, job: _Job, token: Any) -> float | None:
        """Seconds from the last placed mark to `token`; 0 for the first; None while, or because, the clock cannot say."""
        job.clock_failed = job.clock_failed or token is None
        if job.clock_failed:
            return None
        if job.token is None:
            return 0.0
        try:
            return self._clock.resolve(job.token, token)
        except Exception as error:  # a device that failed: the host's clock goes on
            self._log_once("clock", error)
            job.clock_failed = True
            return None

    def _place(self, job: _Job, token: Any, boundary: Boundary, elapsed: float | None) -> None:
        job.t_s += max(boundary.host_s - job.host_s, 0.0) if elapsed is None else max(elapsed, 0.0)
        job.token, job.host_s = token, boundary.host_s
        for record in job.builder.boundary(boundary, job.t_s, measured=elapsed is not None):
            self._timeline.append(record)

    def _read_peaks(self, job: _Job) -> None:
        """At each phase and the end, so that a host that resets the counters in between hides little."""
        if self._peaks is not None:
            job.builder.header.raise_peaks(*(self._safely("peaks", self._peaks.read) or (None, None)))

    # ------------------------------------------------------------------------------------------------ faults

    def _safely(self, part: str, read: Callable[[], Any]) -> Any:
        """What `read` gives, None when it fails."""
        try:
            return read()
        except Exception as error:  # one part's failure hides that part only
            self._log_once(part, error)
            return None

    def _log_once(self, part: str, error: Exception) -> None:
        cause = (part, type(error).__name__)
        if cause not in self._logged:
            self._logged.add(cause)
            log.warning("VRAM Pilot: recording goes on without its %s", part, exc_info=error)
