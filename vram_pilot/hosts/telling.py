"""Tells a listener what the host does, and keeps the listener's faults away from the generation."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vram_pilot.hosts.base import HostListener, JobInfo, StepInfo

log = logging.getLogger(__name__)


class Teller:
    """One listener at a time; without one nothing happens. Same calls as `HostListener`, which never raise."""

    def __init__(self) -> None:
        self._listener: HostListener | None = None
        self._logged: set[tuple[str, type]] = set()

    def subscribe(self, listener: HostListener) -> Callable[[], None]:
        """Starts telling `listener`; the answer ends it, unless another one has come in between."""
        self._listener = listener

        def end() -> None:
            if self._listener is listener:
                self._listener = None

        return end

    def job_started(self, job: JobInfo) -> None:
        self._tell("job_started", lambda listener: listener.job_started(job))

    def phase_started(self, name: str) -> None:
        self._tell("phase_started", lambda listener: listener.phase_started(name))

    def step_started(self, step: StepInfo) -> None:
        self._tell("step_started", lambda listener: listener.step_started(step))

    def call_started(self) -> None:
        self._tell("call_started", lambda listener: listener.call_started())

    def job_finished(self, status: str, error: str | None = None) -> None:
        self._tell("job_finished", lambda listener: listener.job_finished(status, error))

    def model_changing(self) -> None:
        self._tell("model_changing", lambda listener: listener.model_changing())

    def model_changed(self) -> None:
        self._tell("model_changed", lambda listener: listener.model_changed())

    def _tell(self, event: str, send: Callable[[HostListener], None]) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            send(listener)
        except Exception as error:  # the gate: no fault of a listener may reach the generation
            cause = (event, type(error))
            if cause not in self._logged:
                self._logged.add(cause)
                log.exception("VRAM Pilot: the listener failed at %s; the generation goes on", event)
