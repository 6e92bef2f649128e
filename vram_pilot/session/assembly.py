"""Puts the boundaries of one job together into phases, steps and a session. Standard library only; knows no clock and no host.

The boundaries come in order, each with its time. Between two of them lies one phase at most and one step at most, so the phases
cover the whole job without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vram_pilot.session import facts
from vram_pilot.session.card_totals import CardTotals
from vram_pilot.session.plain import plain
from vram_pilot.session.privacy import redact
from vram_pilot.session.records import ModeChanged, Note, PhaseFinished, Sample, StepFinished
from vram_pilot.session.samples import SampleColumns
from vram_pilot.session.stats import largest, percentile, rate
from vram_pilot.units import MIB

SCHEMA = "vram-pilot/session/1"
STATUSES = ("running", "ok", "interrupted", "oom", "error", "aborted")
#: Steps, and as many phases, mode changes and notes, kept of one job. What comes later is counted, not kept.
MAX_KEPT = 20_000

_SETTING_KEYS = ("dtype", "attention", "accelerate", "budget_bytes", "allocator")
_GPU_KEYS = ("uuid", "name", "nvml_index", "cuda_index", "total_bytes", "compute_capability")


@dataclass(frozen=True)
class StepKey:
    """Which step begins: its index within its pass, the pass, and the batch within the job."""

    index: int
    pass_name: str
    image: int


@dataclass(frozen=True)
class Boundary:
    """A point between two pieces of work. kind: "start", "phase", "step" or "end"; host_s: monotonic seconds at which the
    host was there; the rest describes what ends here: forwards of the denoiser, bytes held, bytes streamed."""

    kind: str
    host_s: float
    phase: str | None = None
    step: StepKey | None = None
    calls: int = 0
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    streamed_bytes: int | None = None


@dataclass
class Header:
    """What is known of a job without timing it. Values are filled in as they become known."""

    session_id: str
    started_at: str
    request: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    requested: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None

    def raise_peaks(self, allocated: int | None, reserved: int | None) -> None:
        self.peak_allocated_bytes = largest(self.peak_allocated_bytes, allocated)
        self.peak_reserved_bytes = largest(self.peak_reserved_bytes, reserved)


class SessionBuilder:
    """Not thread-safe: the recorder's lock guards it."""

    def __init__(self, header: Header, start_host_s: float) -> None:
        self.header = header
        self.start_host_s = start_host_s
        self._phases: list[dict[str, Any]] = []
        self._steps: list[dict[str, Any]] = []
        self._history: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []
        self._samples = SampleColumns()
        self._card = CardTotals()
        self._phase: tuple[str, float] | None = None
        self._step: tuple[StepKey, float] | None = None
        self._measured = True  # the boundary before was timed by the clock, not guessed from the host's
        self._step_count = 0
        self._timed_count = 0
        self._timed_s = 0.0
        self._streamed: int | None = None
        self._truncated = False
        self._duration_s: float | None = None

    def boundary(self, boundary: Boundary, t_s: float, measured: bool) -> list[PhaseFinished | StepFinished]:
        """Ends what `boundary` ends and begins what it begins. t_s: seconds since the job's start; measured: False when the
        clock could not say and the host's time stands in, which is good enough for a place but not for a step's duration."""
        ended: list[PhaseFinished | StepFinished] = []
        if self._step is not None:
            ended.append(self._end_step(*self._step, boundary, t_s, measured and self._measured))
        if self._phase is not None and boundary.kind != "step":
            ended.append(self._end_phase(*self._phase, t_s))
        self._measured = measured
        self._step = None if boundary.step is None else (boundary.step, t_s)
        if boundary.kind != "step":
            self._phase = None if boundary.phase is None else (boundary.phase, t_s)
        if boundary.kind == "end":
            self._duration_s = t_s
        return ended

    def event(self, record: ModeChanged | Note, t_s: float) -> None:
        """A switch or a note. t_s: seconds since the job's start, of the boundary that it came after."""
        if isinstance(record, Note):
            self._keep(self._notes, {"t_s": t_s, "text": redact(record.text)})
            return
        self._keep(
            self._history,
            {
                "t_s": t_s,
                "step": record.step,
                "from": record.from_mode,
                "to": record.to_mode,
                "reason": redact(record.reason),
                "failed": record.failed,
                "duration_s": record.duration_s,
            },
        )

    def sample(self, record: Sample) -> None:
        t_s = record.t_s - self.start_host_s
        self._samples.add(t_s, record.values)
        self._card.add(t_s, record.values)

    def session(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The session as JSON, see docs/session.schema.json. The answer is the caller's own."""
        header, identity = self.header, self.header.identity
        session = {
            "schema": SCHEMA,
            "id": header.session_id,
            "status": status,
            "error": None if error is None else redact(error),
            "truncated": self._truncated,
            "started_at": header.started_at,
            "host": facts.texts(identity.get("host")),
            "software": facts.texts(identity.get("software")),
            "gpus": [facts.only(gpu, _GPU_KEYS) for gpu in identity.get("gpus") or ()],
            "model": facts.model_json(identity.get("model")),
            "request": facts.request_json(header.request),
            "mode": {"requested": header.requested, "effective": header.effective, "history": list(self._history)},
            "settings": self._settings(),
            "prediction": {"peak_bytes": None, "error_ratio": None},
            "phases": list(self._phases),
            "steps": list(self._steps),
            "samples": self._samples.to_json(),
            "heatmap": None,
            "recoveries": [],
            "findings": [],
            "notes": list(self._notes),
            "summary": self._summary(status),
        }
        return {key: plain(value) for key, value in session.items()}

    def _end_step(self, key: StepKey, start_s: float, boundary: Boundary, t_s: float, measured: bool) -> StepFinished:
        duration_s = max(t_s - start_s, 0.0) if measured else None
        self._count(duration_s, boundary.streamed_bytes)
        step = {
            "index": key.index,
            "pass": key.pass_name,
            "image": key.image,
            "calls": boundary.calls,
            "start_s": start_s,
            "duration_s": duration_s,
            "allocated_bytes": boundary.allocated_bytes,
            "reserved_bytes": boundary.reserved_bytes,
            "streamed_bytes": boundary.streamed_bytes,
        }
        self._keep(self._steps, step)
        return StepFinished(
            self.start_host_s + t_s,
            self.header.session_id,
            key.index,
            key.pass_name,
            key.image,
            boundary.calls,
            self.start_host_s + start_s,
            duration_s,
            boundary.allocated_bytes,
            boundary.reserved_bytes,
            boundary.streamed_bytes,
        )

    def _end_phase(self, name: str, start_s: float, t_s: float) -> PhaseFinished:
        duration_s = max(t_s - start_s, 0.0)
        self._keep(self._phases, {"name": name, "start_s": start_s, "duration_s": duration_s})
        zero = self.start_host_s
        return PhaseFinished(zero + t_s, self.header.session_id, name, zero + start_s, duration_s)

    def _count(self, duration_s: float | None, streamed_bytes: int | None) -> None:
        self._step_count += 1
        if duration_s is not None:
            self._timed_count += 1
            self._timed_s += duration_s
        if streamed_bytes is not None:
            self._streamed = (self._streamed or 0) + streamed_bytes

    def _keep(self, kept: list[dict[str, Any]], entry: dict[str, Any]) -> None:
        if len(kept) < MAX_KEPT:
            kept.append(entry)
        else:
            self._truncated = True

    def _settings(self) -> dict[str, Any]:
        """The identity's settings; how the denoiser is run and its budget are the mode's, when one was in force."""
        settings = facts.only(self.header.identity.get("settings"), _SETTING_KEYS)
        effective = self.header.effective
        if effective is not None:
            budget_mib = effective.get("budget_mib")
            settings["accelerate"] = effective.get("accelerate")
            settings["budget_bytes"] = None if budget_mib is None else budget_mib * MIB
        return settings

    def _summary(self, status: str) -> dict[str, Any]:
        durations = [step["duration_s"] for step in self._steps if step["duration_s"] is not None]
        energy_j = self._card.energy_j(self._duration_s)
        images = facts.image_count(self.header.request) if status == "ok" else None
        return {
            "duration_s": self._duration_s,
            "step_count": self._step_count,
            "image_count": images,
            "steps_per_s": rate(self._timed_count or None, self._timed_s),
            "images_per_s": rate(images, self._duration_s),
            "step_p50_s": percentile(durations, 0.50),
            "step_p95_s": percentile(durations, 0.95),
            "peak_allocated_bytes": self.header.peak_allocated_bytes,
            "peak_reserved_bytes": self.header.peak_reserved_bytes,
            "peak_device_bytes": self._card.peak_device_bytes,
            "streamed_bytes": self._streamed,
            "energy_j": energy_j,
            "joules_per_image": None if energy_j is None or not images else energy_j / images,
            "copy_gib_per_s": None,
            "overlap_ratio": None,
            "resident_ratio": None,
        }
