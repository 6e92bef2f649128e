"""One way for control: a request from UI, API or autopilot is carried out on the sampling thread at the next step boundary, or,
when the host is idle, under the host's own queue. No other thread touches a weight.

Precedence for a job: what the job itself carries, then the standing mode: the one of the loaded model's family where that has
one of its own. A change in mid-job with scope "job" lasts to that job's end; with scope "standing" it is the standing mode from
then on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vram_pilot.errors import ActivationError, RefusedError, UsageError, VramPilotError
from vram_pilot.guard import ActivationGuard
from vram_pilot.hosts.base import Host, JobInfo, StepInfo
from vram_pilot.modes.base import Mode, ModeReport
from vram_pilot.modes.registry import MODES
from vram_pilot.session.records import ModeChanged, Note
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import LARGE_MODE, SCOPES, ModeRequest, check_built
from vram_pilot.streaming.bank import WeightBank

log = logging.getLogger(__name__)

AS_LAUNCHED = ModeRequest()


@dataclass(frozen=True)
class ModeAnswer:
    """What became of a request. applies: "now" (in force), "next_step" (at the running job's next step boundary), "next_job".
    refusal: why it was not taken, None when it was."""

    requested: ModeRequest
    effective: ModeRequest
    applies: str
    refusal: str | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "requested": self.requested.to_json(),
            "effective": self.effective.to_json(),
            "applies": self.applies,
            "refusal": self.refusal,
        }


class Controller:
    """Holds the standing mode, the mode in force, and the request that waits. A `HostListener` beside its public methods."""

    def __init__(self, host: Host, timeline: Timeline, state_dir: Path, *, pinned_share: float = 0.5) -> None:
        self.host = host
        self.timeline = timeline
        self.bank = WeightBank(pinned_share=pinned_share)
        self._guard = ActivationGuard(state_dir)
        self._modes: dict[str, Mode] = {mode.name: mode for mode in MODES}
        self._lock = threading.RLock()  # guards the requests below, never held while weights move
        self._standing = AS_LAUNCHED
        self._family_modes: Mapping[str, ModeRequest] = {}  # exchanged as a whole
        self._stopping = False  # from `stop` to `start` everything is as launched
        self._job: ModeRequest | None = None  # what the running job asked for, by itself or in mid-job
        self._in_job = False
        self._idle = threading.Event()
        self._idle.set()
        self._effective = AS_LAUNCHED
        self._model_known = False  # False: the mode in force must be entered again before the next call
        self._refusal: str | None = None
        self._crash_note: str | None = None  # shown until a mode is chosen
        self._given_up: ModeRequest | None = None  # it failed: not tried again before the next job, or a new request
        self._job_modes: list[ModeRequest] = []  # in force during the running or last job, in order
        self._session_id: str | None = None
        self._step: int | None = None

    # ------------------------------------------------------------------------------------------------ any thread

    def request(self, request: ModeRequest, scope: str | None = None, reason: str = "asked for") -> ModeAnswer:
        """Asks for a mode. scope "job": until the running job's end; "standing": from now on; None: "job" while one runs.

        Carried out before it returns when the host is idle; otherwise at the next step boundary.
        Raises UsageError, RefusedError or ActivationError, and then the mode in force has not changed.
        """
        check_built(request)
        if scope is not None and scope not in SCOPES:
            raise UsageError("scope has a value that is not allowed", found=scope, do="Use one of: " + ", ".join(SCOPES) + ".")
        self._check(request)
        with self._lock:
            in_job = self._in_job
            if scope == "job" and not in_job:
                raise RefusedError("No job is running", do='Use the scope "standing", or send the mode with the job itself.')
            before, self._given_up, self._crash_note = self._standing, None, None
            if scope == "standing" or not in_job:
                self._standing, self._job = request, None
            else:
                self._job = request
        refusal = None if self._job is request else self._overruled(request)
        if refusal is not None:
            return ModeAnswer(request, self._effective, "next_job", refusal)
        if in_job:
            return ModeAnswer(request, self._effective, "now" if self._effective == request else "next_step")
        failures: list[VramPilotError] = []
        if self.host.run_when_idle(lambda: self._try(request, reason, failures)) and failures:
            with self._lock:
                if self._standing is request:  # and not what somebody else asked for meanwhile
                    self._standing = before
            raise failures[0]
        return ModeAnswer(request, self._effective, "now" if self._effective == request else "next_job")

    def _try(self, request: ModeRequest, reason: str, failures: list[VramPilotError]) -> None:
        with self._lock:
            superseded = self._standing is not request
        if superseded:  # somebody asked for something else meanwhile
            return
        try:
            self._apply(request, reason)
        except VramPilotError as error:
            failures.append(error)

    def _overruled(self, request: ModeRequest) -> str | None:
        """Why a standing mode is not meant for the model that is loaded, None when it is."""
        own = self._family_mode()
        if own is None or own == request:
            return None
        return (
            f"Models of this family run in {own.infotext()} (setting '{LARGE_MODE.label}'); {request.infotext()} stands for "
            "the others. Change the setting, or let a job ask for the mode."
        )

    def set_family_modes(self, modes: Mapping[str, ModeRequest]) -> None:
        """Standing modes for families of models, instead of the one for all; from the next job on."""
        self._family_modes = modes

    def standing(self) -> ModeRequest:
        """For every model whose family has none of its own."""
        with self._lock:
            return self._standing

    def standing_here(self) -> ModeRequest:
        """For the model that is loaded."""
        own = self._family_mode()
        with self._lock:
            return self._standing if own is None else own

    def _family_mode(self) -> ModeRequest | None:
        """The loaded model's family's own; none until a mode is chosen after a crash."""
        if not self._family_modes or self._stopping or self._crash_note is not None:
            return None
        model = self.host.model()
        return None if model is None else self._family_modes.get(model.family)

    def effective(self) -> ModeRequest:
        return self._effective

    def job_modes(self) -> tuple[ModeRequest, ...]:
        """The modes that were in force during the running job, or the last one, in their order."""
        with self._lock:
            return tuple(self._job_modes)

    def refusal(self) -> str | None:
        """Why what was asked for is not in force, None when it is."""
        with self._lock:
            return self._refusal

    def refuse(self, text: str) -> None:
        """Records a request that came to nothing before it reached `request` (malformed arguments of a job)."""
        with self._lock:
            self._refusal = text
        self._note(text)

    def report(self) -> ModeReport:
        """Figures of the mode in force; cheap, takes no lock that a job holds."""
        return self._modes[self._effective.mode].report(self.bank)

    def state(self) -> dict[str, object]:
        """For GET state: what is asked for, what is in force, and why they differ."""
        report = self.report()
        with self._lock:
            return {
                "standing": self._standing.to_json(),
                "requested": self._wanted().to_json(),
                "effective": self._effective.to_json(),
                "in_job": self._in_job,
                "refusal": self._refusal,
                "resident_bytes": report.resident_bytes,
                "slot_bytes": report.slot_bytes,
                "streamed_bytes": report.streamed_bytes,
                "prefetch_misses": report.prefetch_misses,
                "graph_bytes": report.graph_bytes,
                "graph_replays": report.graph_replays,
                "pinned_bytes": report.pinned_bytes,
                "pageable_bytes": report.pageable_bytes,
                "notes": [*([self._crash_note] if self._crash_note else []), *report.notes],
            }

    def start(self, standing: ModeRequest) -> None:
        """Sets the standing mode at start; a crash during an activation makes it as-launched, with a note that says why."""
        crashed = self._guard.crashed_in()
        if crashed is not None:
            self._crash_note = (
                f"The last start ended while {crashed} was being entered, so this one begins as launched. "
                "Choose a mode again to try it once more."
            )
            self._note(self._crash_note)
            self._guard.clear()
            standing = AS_LAUNCHED
        with self._lock:
            self._standing, self._stopping = standing, False

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Puts everything back as it was launched, under the host's queue; waits for a running job's end.

        False when the job did not end in time: it goes back at its next step boundary, if it is still listened to.
        """
        with self._lock:
            self._standing, self._job, self._given_up, self._stopping = AS_LAUNCHED, None, None, True
        deadline = time.monotonic() + timeout_s
        while not self.host.run_when_idle(lambda: self._apply_or_note("stopped")):
            if not self._idle.wait(deadline - time.monotonic()) or time.monotonic() > deadline:
                return False
            time.sleep(0.01)  # the job has ended, and its thread is about to let the queue go
        return True

    # ------------------------------------------------------------------------------------------------ sampling thread

    def bind_session(self, session_id: str | None) -> None:
        """The id that mode changes are recorded under from now on."""
        self._session_id = session_id

    def job_started(self, job: JobInfo) -> None:
        with self._lock:
            if self._in_job:
                return
            self._in_job = True
            self._idle.clear()
            self._job = job.mode
            self._step = None
            self._refusal = self._given_up = None
            self._job_modes = []
        self.bank.job_started()
        self._look_at_weights()
        if self.bank.holds_anything() and not self.bank.looks_after(self.host.components()):
            self._model_known = False  # another model has taken its place without a word
        self._apply_or_note("job")
        with self._lock:
            if not self._job_modes:
                self._job_modes.append(self._effective)

    def phase_started(self, name: str) -> None:
        self._reenter_if_changed()
        self.bank.phase_started(name)

    def step_started(self, step: StepInfo) -> None:
        self._step = step.index
        self.bank.step_started()
        self._apply_or_note("asked for in mid-job")

    def call_started(self) -> None:
        self._look_at_weights()
        self._reenter_if_changed()

    def job_finished(self, status: str, error: str | None = None) -> None:
        with self._lock:
            self._in_job = False
            self._job = None
            self._step = None
        try:
            self._settle()
            self._apply_or_note("job ended")
        finally:
            self._idle.set()

    def model_changing(self) -> None:
        """The host moves or rewrites weights as a whole: everything goes back to as-launched, home copies are dropped."""
        if self._effective.mode != "as-launched" or self.bank.holds_anything():
            try:
                self._leave()
                self._modes["as-launched"].activate(self.host, AS_LAUNCHED, self.bank)
            except Exception:  # no room on the device for a model that is about to go, say
                log.exception("VRAM Pilot: putting the model back as it was launched failed")
                self._note("The model could not be put back as it was launched; its weights were left in main memory.")
                self._forget_model()
        with self._lock:
            self._effective, self._model_known = AS_LAUNCHED, False

    def model_changed(self) -> None:
        with self._lock:
            self._model_known, self._refusal, self._given_up = False, None, None

    # ------------------------------------------------------------------------------------------------ inside

    def _wanted(self) -> ModeRequest:
        return self._job if self._job is not None else self.standing_here()

    def _check(self, request: ModeRequest) -> None:
        refusal = self._modes[request.mode].check(self.host, request, self.bank)
        if refusal is not None:
            raise RefusedError(f"{request.mode} cannot be used: {refusal.reason}", do=refusal.do)

    def _apply_or_note(self, reason: str) -> None:
        """Brings the wanted mode into force; a refusal or a failure is recorded and the job goes on in the mode in force."""
        with self._lock:
            wanted = self._wanted()
            if wanted == self._given_up:
                wanted = self._effective
        if wanted == self._effective and self._model_known:
            return
        try:
            self._apply(wanted, reason)
        except VramPilotError as error:
            with self._lock:
                self._refusal, self._given_up = str(error), wanted
            self._note(f"{wanted.mode} was not entered, {self._effective.mode} stays in force: {error}")

    def _look_at_weights(self) -> None:
        """The mode is entered anew when the weights are not where it put them any more."""
        if self.bank.unsettled():
            self._model_known = False

    def _reenter_if_changed(self) -> None:
        if not self._model_known:
            self._apply_or_note("model changed")

    def _apply(self, request: ModeRequest, reason: str) -> None:
        """Switches from the mode in force to `request`. On failure the mode in force is entered again, then as-launched."""
        before, start = self._effective, time.monotonic()
        if self.host.model() is None:
            self._without_model()
            return
        if request == before and self._model_known:
            return
        self._check(request)
        if request.mode == "as-launched" and before.mode == "as-launched" and not self.bank.holds_anything():
            self._model_known = True
            return
        with self._guard.entering(request.mode):
            self._model_known = False  # until a mode is in force again, whatever interrupts this
            try:
                self._leave()
                self._modes[request.mode].activate(self.host, request, self.bank)
            except Exception as error:  # the gate for anything that a host or torch throws while weights move
                log.exception("VRAM Pilot: entering %s failed", request.mode)
                self._record(before, request, reason, failed=True, start=start)
                self._return_to(before)
                raise ActivationError(
                    f"{request.mode} could not be entered",
                    found=f"{type(error).__name__}: {error}",
                    do=f"{self._effective.mode} is in force instead.",
                ) from error
        self._in_force(request)
        with self._lock:
            self._refusal = None
        if request != before:
            self._record(before, request, reason, failed=False, start=start)

    def _in_force(self, request: ModeRequest) -> None:
        with self._lock:
            self._effective, self._model_known = request, True
            if self._in_job and self._job_modes[-1:] != [request]:
                self._job_modes.append(request)

    def _without_model(self) -> None:
        """The host has no model. What the bank may still hold is of one that it dropped without a word."""
        if self.bank.holds_anything():
            self._forget_model()
        with self._lock:
            self._effective, self._model_known = AS_LAUNCHED, False
            if self._wanted() != AS_LAUNCHED:
                self._refusal = "no model is loaded: the mode is applied when one is"

    def _forget_model(self) -> None:
        """Lets go of a model that is gone, or could not be put back; the host's own offload counts again all the same."""
        try:
            self.bank.forget()
        except Exception:  # a device that fails while weights are brought home
            log.exception("VRAM Pilot: the weights of a model that is gone could not be let go")
        self.host.give_back_offload()

    def _settle(self) -> None:
        """Nothing of the job that ended is left in flight; where that fails, the mode is entered anew."""
        try:
            self.bank.settle()
        except Exception:  # a device that fails while weights are brought home
            log.exception("VRAM Pilot: the end of a job could not be tidied up")
            self._model_known = False

    def _leave(self) -> None:
        self._modes[self._effective.mode].deactivate(self.host, self.bank)

    def _return_to(self, before: ModeRequest) -> None:
        """Enters `before` again after a failure; when that fails too, as-launched; when that fails, stops the job."""
        for fallback in dict.fromkeys((before, AS_LAUNCHED)):
            try:
                self._modes[fallback.mode].activate(self.host, fallback, self.bank)
            except Exception:
                log.exception("VRAM Pilot: going back to %s failed", fallback.mode)
                continue
            self._in_force(fallback)
            return
        with self._lock:
            self._effective, self._model_known = AS_LAUNCHED, False
        self._note("No mode could be entered any more, so no image is made that might be wrong. Load the model again.")
        if self._in_job:
            self.host.interrupt()

    def _record(self, before: ModeRequest, after: ModeRequest, reason: str, *, failed: bool, start: float) -> None:
        now = time.monotonic()
        self.timeline.append(
            ModeChanged(now, self._session_id, self._step, before.infotext(), after.infotext(), reason, failed, now - start)
        )

    def _note(self, text: str) -> None:
        log.warning("VRAM Pilot: %s", text)
        self.timeline.append(Note(time.monotonic(), self._session_id, text))
