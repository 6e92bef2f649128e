"""What GET state answers: the mode in force and why, the model, the host, and what this version offers."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from vram_pilot import __version__
from vram_pilot.panel.base import PanelApp
from vram_pilot.panel.sessions import formats
from vram_pilot.panel.stream import Hub
from vram_pilot.session.records import Sample, StepFinished
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import BUDGET, BUILT_ACCELERATES, BUILT_MODES, MAX_BUDGET_MIB

OFF = {"off": True, "version": __version__}
#: Records looked through for the newest memory figures.
RECENT = 200


def state(app: PanelApp, hub: Hub) -> dict[str, Any]:
    """May wait for a lock of the host's for a moment: a worker thread's work."""
    host, model = app.host, app.host.model()
    return {
        "off": False,
        "version": __version__,
        "stream": hub.stream_id,
        "cursor": app.timeline.cursor,
        "now_s": time.monotonic(),
        "host": {
            "name": host.name,
            "version": host.version,
            "device": str(host.device()),
            "capabilities": asdict(host.capabilities()),
        },
        "model": None if model is None else asdict(model),
        "mode": app.controller.state(),
        "job": hub.job.look(),
        "memory": memory(app.timeline),
        "telemetry": app.telemetry_state(),
        "offers": {
            "modes": list(BUILT_MODES),
            "accelerates": list(BUILT_ACCELERATES),
            "budget_mib": {"minimum": int(BUDGET.minimum or 0), "maximum": MAX_BUDGET_MIB},
            "reports": formats(),
        },
        "remote_control": app.remote_control_allowed(),
        "store_note": app.store.status_note,
    }


def memory(timeline: Timeline) -> dict[str, Any] | None:
    """The newest figures that a step or a sample brought, None when none is remembered."""
    recent = timeline.after(max(timeline.cursor - RECENT, 0), RECENT).records
    figures: dict[str, Any] = {}
    for record in recent:
        if isinstance(record, StepFinished):
            figures.update(allocated_bytes=record.allocated_bytes, reserved_bytes=record.reserved_bytes, t_s=record.t_s)
        elif isinstance(record, Sample):
            figures.update(record.values, t_s=record.t_s)
    return figures or None
