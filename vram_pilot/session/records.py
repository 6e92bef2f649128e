"""The records of the timeline. Frozen; times in seconds of one monotonic clock; missing is None. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class JobStarted:
    """t_s: monotonic seconds; started_at: UTC ISO 8601; request: see docs/session.schema.json, no prompt in it."""

    t_s: float
    session_id: str
    started_at: str
    request: dict[str, Any] = field(default_factory=dict)
    mode: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] | None = None


@dataclass(frozen=True)
class PhaseFinished:
    """name: one of hosts.base.PHASES; start_s: monotonic seconds."""

    t_s: float
    session_id: str
    name: str
    start_s: float
    duration_s: float


@dataclass(frozen=True)
class StepFinished:
    """One sampler iteration. index: from 0 within its pass; calls: denoiser forwards; bytes: at the step's end."""

    t_s: float
    session_id: str
    index: int
    pass_name: str
    image: int
    calls: int
    start_s: float
    duration_s: float | None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    streamed_bytes: int | None = None


@dataclass(frozen=True)
class ModeChanged:
    """A switch that was carried out, or (failed True) tried and undone. step: None between jobs."""

    t_s: float
    session_id: str | None
    step: int | None
    from_mode: str
    to_mode: str
    reason: str
    failed: bool = False
    duration_s: float | None = None


@dataclass(frozen=True)
class Note:
    """Something a user should know: a fallback, a refusal, a part that is off."""

    t_s: float
    session_id: str | None
    text: str


@dataclass(frozen=True)
class Sample:
    """One reading of the instruments. values: metric name (docs/metrics.md) to value; unsupported is None."""

    t_s: float
    values: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class MapColumn:
    """One look at torch's blocks, as a column of a picture of the address space. Only for who looks; kept in no session.

    row_bytes: what one row stands for; layout: another number when rows no longer mean the same addresses; held, active: one
    byte a row in base64, lowest address first, as far as torch holds anything: the row's share that torch holds, and that is in
    use (0 nothing, 255 all); note: why there is nothing to draw, and then the rest is empty.
    """

    t_s: float
    row_bytes: int = 0
    layout: int = 0
    held_bytes: int | None = None
    active_bytes: int | None = None
    held: str = ""
    active: str = ""
    note: str | None = None


@dataclass(frozen=True)
class JobFinished:
    """status: ok, interrupted, oom, error."""

    t_s: float
    session_id: str
    status: str
    error: str | None = None


Record = JobStarted | PhaseFinished | StepFinished | ModeChanged | Note | Sample | MapColumn | JobFinished

#: Bytes of a record without its readings and texts, and of one reading: object and place in its mapping. As CPython has them.
_RECORD_BYTES, _READING_BYTES = 400, 24


def size_bytes(record: Record) -> int:
    """About what `record` holds in memory; the same number each time."""
    if isinstance(record, Sample):
        return _RECORD_BYTES + _READING_BYTES * len(record.values)
    if isinstance(record, MapColumn):
        return _RECORD_BYTES + len(record.held) + len(record.active)
    return _RECORD_BYTES + (len(record.text) if isinstance(record, Note) else 0)


def to_json(record: Record) -> dict[str, Any]:
    """A mapping with "type" (the class name) and the record's fields."""
    return {"type": type(record).__name__, **asdict(record)}
