"""An application for the panel: nothing generates, the test says what happens."""

from __future__ import annotations

import contextlib
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vram_pilot.control import ModeAnswer
from vram_pilot.errors import RefusedError
from vram_pilot.hosts.base import Capabilities, ModelInfo
from vram_pilot.session.assembly import Boundary, Header, SessionBuilder, StepKey
from vram_pilot.session.records import (
    JobFinished,
    JobStarted,
    MapColumn,
    ModeChanged,
    Note,
    PhaseFinished,
    Sample,
    StepFinished,
)
from vram_pilot.session.store import SessionStore
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import ModeRequest, check_built

MIB = 2**20
REQUEST = {"width": 512, "height": 512, "batch_size": 1, "n_iter": 1, "steps": 20, "sampler": "Euler a", "cfg_scale": 7.0}


class FakeController:
    """Carries requests out at once when idle, at `step` in a job."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.in_job = False
        self.refusal: str | None = None
        self.requests: list[tuple[ModeRequest, str, str]] = []
        self.refuses: str | None = None
        self._standing = self._wanted = self._effective = ModeRequest()

    def request(self, request: ModeRequest, scope: str = "standing", reason: str = "asked for") -> ModeAnswer:
        check_built(request)
        self.requests.append((request, scope, threading.current_thread().name))
        if self.refuses:
            raise RefusedError(self.refuses, do="Choose another mode.")
        self._wanted = request
        if scope == "standing":
            self._standing = request
        if not self.in_job:
            self.apply(reason)
        return ModeAnswer(request, self._effective, "next_step" if self.in_job else "now")

    def apply(self, reason: str = "asked for") -> None:
        """The step boundary."""
        before, self._effective = self._effective, self._wanted
        if before != self._effective:
            change = ModeChanged(time.monotonic(), None, None, before.infotext(), self._effective.infotext(), reason)
            self.timeline.append(change)

    def standing(self) -> ModeRequest:
        return self._standing

    def effective(self) -> ModeRequest:
        return self._effective

    def state(self) -> dict[str, object]:
        lowvram = self._effective.mode == "lowvram"
        return {
            "standing": self._standing.to_json(),
            "requested": self._wanted.to_json(),
            "effective": self._effective.to_json(),
            "in_job": self.in_job,
            "refusal": self.refusal,
            "resident_bytes": (self._effective.budget_mib or 0) * MIB if lowvram else 1639 * MIB,
            "slot_bytes": 240 * MIB if lowvram else 0,
            "streamed_bytes": 31 * 1639 * MIB if lowvram else 0,
            "pinned_bytes": 1639 * MIB if lowvram else 0,
            "pageable_bytes": 0,
            "notes": [],
        }


class FakeHost:
    name, version = "fake", "1.0"

    def __init__(self) -> None:
        self.loaded: ModelInfo | None = ModelInfo("sd1", "v1-5-pruned", "6ce0161689")
        self.device_name = "cuda:0"

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def device(self) -> Any:
        return self.device_name

    def model(self) -> ModelInfo | None:
        return self.loaded


class FakeApp:
    """state_dir: where its sessions are kept."""

    def __init__(self, state_dir: Path) -> None:
        self.off = False
        self.open = True
        self.timeline = Timeline()
        self.controller = FakeController(self.timeline)
        self.host = FakeHost()
        self.store = SessionStore(state_dir)
        self.map_watchers = 0
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []

    @contextlib.contextmanager
    def watching(self, memory_map: bool = False) -> Iterator[None]:
        self.map_watchers += memory_map
        try:
            yield
        finally:
            self.map_watchers -= memory_map

    def telemetry_state(self) -> dict[str, Any] | None:
        card = self.host.device_name.startswith("cuda")
        return {"running": False, "card": card, "facts": self.facts, "notes": self.notes}

    def remote_control_allowed(self) -> bool:
        return self.open

    def keep(self, session: dict[str, Any]) -> str:
        self.store.finish(session)
        assert self.store.flush()
        return str(session["id"])

    # ---------------------------------------------------------------------------------------------------- a job, by hand

    def start_job(self, session_id: str = "20260101-000000-00000001", **request: Any) -> str:
        self.controller.in_job = True
        now = time.monotonic()
        self.timeline.append(JobStarted(now, session_id, "2026-01-01T00:00:00Z", {**REQUEST, **request}))
        return session_id

    def step(self, session_id: str, index: int, duration_s: float | None = 0.034, pass_name: str = "base", **more: Any) -> None:
        now = time.monotonic()
        held = {"allocated_bytes": 2681 * MIB, "reserved_bytes": 3012 * MIB, **more}
        self.timeline.append(StepFinished(now, session_id, index, pass_name, 0, 1, now - 0.034, duration_s, **held))

    def phase(self, session_id: str, name: str, duration_s: float) -> None:
        now = time.monotonic()
        self.timeline.append(PhaseFinished(now, session_id, name, now - duration_s, duration_s))

    def note(self, text: str) -> None:
        self.timeline.append(Note(time.monotonic(), None, text))

    def sample(self, t_s: float | None = None, **values: float | None) -> None:
        self.timeline.append(Sample(time.monotonic() if t_s is None else t_s, values))

    def column(
        self, held: list[int], active: list[int], t_s: float | None = None, row_bytes: int = 16 * MIB, **more: Any
    ) -> None:
        """held, active: of each row, lowest first, 255 is all of it."""
        sums = [round(sum(shares) / 255 * row_bytes) for shares in (held, active)]
        cells = [b64encode(bytes(shares)).decode("ascii") for shares in (held, active)]
        at_s = time.monotonic() if t_s is None else t_s
        self.timeline.append(MapColumn(at_s, row_bytes, more.pop("layout", 0), *sums, *cells, **more))

    def finish_job(self, session_id: str, status: str = "ok", error: str | None = None) -> None:
        self.controller.in_job = False
        self.timeline.append(JobFinished(time.monotonic(), session_id, status, error))


def session(session_id: str, mode: str = "full", *, step_s: float = 0.034, status: str = "ok", **header: Any) -> dict[str, Any]:
    """A session of 20 equal steps as the recorder makes it."""
    started = (
        f"{session_id[:4]}-{session_id[4:6]}-{session_id[6:8]}T{session_id[9:11]}:{session_id[11:13]}:{session_id[13:15]}Z"
    )
    known = Header(
        session_id,
        started,
        dict(REQUEST),
        {
            "host": {"name": "fake", "version": "1.0"},
            "model": {"family": "sd1", "name": "v1-5-pruned", "hash": None},
        },
        ModeRequest(mode).to_json(),
        ModeRequest(mode).to_json(),
        2681 * MIB,
        3012 * MIB,
    )
    builder = SessionBuilder(replace(known, **header), 0.0)
    builder.boundary(Boundary("phase", 0.0, phase="encode"), 0.0, True)
    for index in range(20):
        phase = "denoise" if index == 0 else None
        held = {"allocated_bytes": 2681 * MIB, "reserved_bytes": 3012 * MIB, "streamed_bytes": 0}
        builder.boundary(
            Boundary("phase" if phase else "step", 0.0, phase, StepKey(index, "base", 0), **held), 0.1 + index * step_s, True
        )
    builder.boundary(Boundary("phase", 0.0, phase="decode", calls=1), 0.1 + 20 * step_s, True)
    builder.boundary(Boundary("end", 0.0), 0.3 + 20 * step_s, True)
    return builder.session(status)


def no_login() -> SimpleNamespace:
    """A gradio application that asks nobody."""
    return SimpleNamespace(tokens={}, auth=None, blocks=None)
