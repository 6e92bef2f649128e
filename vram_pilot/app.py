"""The composition root: what belongs together is put together here, once, and started and stopped as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vram_pilot.control import Controller
from vram_pilot.hosts.base import Host, HostListener, JobInfo, StepInfo
from vram_pilot.session.recorder import Recorder
from vram_pilot.session.store import Retention, SessionStore
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import (
    KEEP_DAYS,
    KEEP_MIB,
    KEEP_SESSIONS,
    KEEP_SNAPSHOTS,
    LARGE_MODE,
    PINNED_SHARE,
    READINGS_MS,
    RECORD,
    WRITE_INFOTEXT,
    ModeRequest,
    modes_by_family,
)
from vram_pilot.units import MIB

if TYPE_CHECKING:
    from vram_pilot.telemetry.samplers import Telemetry
    from vram_pilot.telemetry.snapshot import SnapshotTaker

log = logging.getLogger(__name__)


class App:
    """One program with one host. `off` (--vram-pilot-off): nothing is heard, recorded or switched; the routes say so.

    state_dir: where sessions and the crash marker are kept. allow_control: whether a caller of the routes may change what holds
    for everybody.
    """

    def __init__(
        self,
        host: Host,
        state_dir: Path,
        *,
        off: bool = False,
        allow_control: Callable[[], bool] = lambda: True,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.host = host
        self.state_dir = state_dir
        self.off = off
        self.timeline = Timeline()
        self.controller = Controller(host, self.timeline, state_dir)
        self.store = SessionStore(state_dir)
        self.recorder: Recorder | None = None
        self.telemetry: Telemetry | None = None
        self.snapshots: SnapshotTaker | None = None
        self._allow_control = allow_control
        self._unsubscribe: Callable[[], None] | None = None
        self._leaving = False  # `stop` was called in mid-job: everything goes back at its end
        self.configure(settings or {})

    def configure(self, settings: dict[str, Any]) -> None:
        """Takes the machine settings over, defaults for those that are left out. They hold from the next job on."""
        self.controller.set_family_modes(modes_by_family(settings.get(LARGE_MODE.key, LARGE_MODE.default)))
        self.controller.bank.memory.set_share(settings.get(PINNED_SHARE.key, PINNED_SHARE.default))
        self.store.set_retention(_retention(settings))
        self.record = bool(settings.get(RECORD.key, RECORD.default))
        self.write_infotext = bool(settings.get(WRITE_INFOTEXT.key, WRITE_INFOTEXT.default))
        self._keep_snapshots = self.record and bool(settings.get(KEEP_SNAPSHOTS.key, KEEP_SNAPSHOTS.default))
        if self.snapshots is not None:
            self.snapshots.enabled = self._keep_snapshots
        self._readings_s = settings.get(READINGS_MS.key, READINGS_MS.default) / 1000
        if self.telemetry is not None:
            self.telemetry.set_period(self._readings_s)

    def remote_control_allowed(self) -> bool:
        return self._allow_control()

    def watching(self, memory_map: bool = False) -> AbstractContextManager[None]:
        """Somebody looks at the instruments, and at the map of torch's memory if so said, while the block runs. Any thread."""
        return nullcontext() if self.telemetry is None else self.telemetry.watching(memory_map)

    def telemetry_state(self) -> dict[str, Any] | None:
        """See `Telemetry.state`; None before the first start."""
        return None if self.telemetry is None else self.telemetry.state()

    def start(self, standing: ModeRequest | None = None) -> None:
        """Begins to listen; standing: the mode to begin with, None for the one before `stop`. Does nothing when it listens
        already or is off."""
        self._leaving = False
        if self.off or self._unsubscribe is not None:
            return
        self.controller.start(standing or self.controller.standing())
        self.telemetry = self.telemetry or self._make_telemetry()
        self.telemetry.pump.start()
        self.snapshots = self._make_snapshots()
        self.recorder = self._make_recorder(self.telemetry)
        self._unsubscribe = self.host.subscribe(_Events(self))

    def stop(self) -> None:
        """Puts the host back as it was launched and stops listening. `start` may follow.

        A job that runs on and on keeps its mode, and this is made up for at its end, unless `start` has been called by then.
        """
        if self._unsubscribe is None:
            return
        standing = self.controller.standing()
        self._leaving = not self.controller.stop()
        self.controller.start(standing)
        if self._leaving:
            log.warning("VRAM Pilot: a job is still running; everything goes back as it was launched when it ends")
            return
        self._unsubscribe()
        self._unsubscribe = None
        self._stop_telemetry()
        self.store.flush()

    def job_ended(self) -> None:
        """Called by the listener below when a job has ended and its mode is left."""
        if self._leaving and self._unsubscribe is not None:
            self.controller.model_changing()
            self._unsubscribe()
            self._unsubscribe = None
            self._stop_telemetry()

    def infotext(self) -> str | None:
        """The field "VRAM mode" of an image that is being made: the modes in force, None when nothing of ours was."""
        modes = self.controller.job_modes()
        if not self.write_infotext or all(mode.mode == "as-launched" for mode in modes):
            return None
        return " > ".join(mode.infotext() for mode in modes)

    def _stop_telemetry(self) -> None:
        if self.telemetry is not None:
            self.telemetry.pump.stop()

    def _make_telemetry(self) -> Telemetry:
        from vram_pilot.telemetry.samplers import telemetry

        memory = self.controller.bank.memory
        return telemetry(self.timeline, self.host.device(), fast_s=self._readings_s, pinned=lambda: memory.pinned_bytes)

    def _make_snapshots(self) -> SnapshotTaker:
        from vram_pilot.telemetry.snapshot import SnapshotTaker

        made = SnapshotTaker(self.host.device(), self.store.keep_snapshot)
        made.enabled = self._keep_snapshots
        return made

    def _make_recorder(self, telemetry: Telemetry) -> Recorder:
        from vram_pilot.telemetry.allocator import AllocatorPeaks, memory
        from vram_pilot.telemetry.identity import identity
        from vram_pilot.telemetry.steps import step_clock

        device = self.host.device()
        return Recorder(
            self.timeline,
            clock=step_clock(device),
            memory=lambda: memory(device),
            peaks=AllocatorPeaks(device),
            mode_state=self.controller.state,
            identity=lambda: identity(self.host, self.controller, telemetry.match()),
            on_started=lambda session: self._keep(session, self.store.begin),
            on_finished=lambda session: self._keep(session, self.store.finish),
        )

    def _keep(self, session: dict[str, Any], into: Callable[[dict[str, Any]], None]) -> None:
        if self.record:
            into(session)


def _retention(settings: dict[str, Any]) -> Retention:
    count, days, mib = (settings.get(each.key, each.default) for each in (KEEP_SESSIONS, KEEP_DAYS, KEEP_MIB))
    return Retention(count, days * 86_400.0 if days else None, mib * MIB if mib else None)


class _Events:
    """The host's listener: the recorder hears first, so that what happens at a boundary belongs to what begins there."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._controller: HostListener = app.controller

    @property
    def _recorder(self) -> Recorder | None:
        return self._app.recorder

    def job_started(self, job: JobInfo) -> None:
        if self._recorder is not None:
            self._recorder.job_started(job)
            self._app.controller.bind_session(self._recorder.session_id)
        self._read_instruments(self._app.record)  # for nobody else, unless somebody watches
        if self._app.snapshots is not None:
            self._app.snapshots.job_started()
        self._controller.job_started(job)

    def phase_started(self, name: str) -> None:
        if self._recorder is not None:
            self._recorder.phase_started(name)
        self._controller.phase_started(name)

    def step_started(self, step: StepInfo) -> None:
        if self._recorder is not None:
            self._recorder.step_started(step)
        self._controller.step_started(step)

    def call_started(self) -> None:
        if self._recorder is not None:
            self._recorder.call_started()
        self._controller.call_started()

    def job_finished(self, status: str, error: str | None = None) -> None:
        if self._app.snapshots is not None:  # before anything of the job is moved away
            self._app.snapshots.job_finished(None if self._recorder is None else self._recorder.session_id)
        try:
            self._controller.job_finished(status, error)
        finally:
            if self._app.recorder is not None:
                self._app.recorder.job_finished(status, error)
            self._app.controller.bind_session(None)
            self._read_instruments(False)
            self._app.job_ended()

    def model_changing(self) -> None:
        self._controller.model_changing()

    def model_changed(self) -> None:
        self._controller.model_changed()

    def _read_instruments(self, running: bool) -> None:
        if self._app.telemetry is not None:
            self._app.telemetry.pump.job(running)
