"""A job that runs for a day, with somebody who watches: what is held in memory grows no further."""

from __future__ import annotations

import gc
import json
import sys

import pytest

from tests.fakes.jobs import Bench
from vram_pilot.hosts.base import StepInfo
from vram_pilot.panel.running import NewestJob
from vram_pilot.session.assembly import MAX_KEPT
from vram_pilot.session.records import Sample
from vram_pilot.units import MIB

STEP_S, HOUR_S = 2, 3600


class Day:
    def __init__(self) -> None:
        self.bench = Bench()
        self.watcher = NewestJob(self.bench.timeline)
        self.cursor = self.steps = self.lost = 0
        self.bench.start(steps=10**6)
        self.bench.recorder.phase_started("denoise")

    def run(self, duration_s: int) -> int:
        """A step every two seconds, two readings in each, a look every minute. The answer: how many blocks are held after."""
        device, timeline = self.bench.device, self.bench.timeline
        for _ in range(duration_s // STEP_S):
            self.bench.recorder.step_started(StepInfo(self.steps, 10**6))
            self.bench.recorder.call_started()
            for half in (0.25, 1.25):
                power_w = 200.0 + self.steps % 50
                timeline.append(Sample(device.host_s + half, {"gpu_power_w": power_w, "gpu_used_bytes": self.steps * MIB}))
            device.work(STEP_S - 0.0001)
            device.wait()
            self.steps += 1
            if self.steps % 30 == 0:
                self._look()
        gc.collect()
        return sys.getallocatedblocks()

    def _look(self) -> None:
        """As a page does: what is new, and how far the job is."""
        self.watcher.look()
        part = self.bench.timeline.after(self.cursor)
        self.cursor, self.lost = part.cursor, self.lost + part.lost


@pytest.mark.slow
def test_memory_is_flat_over_a_day_of_steps_and_readings() -> None:
    day = Day()
    before, after = day.run(16 * HOUR_S), day.run(8 * HOUR_S)  # all that is bounded is full by the first
    assert day.steps == 43_200 and day.lost == 0
    assert after - before < before / 100, "less than one block in four steps"
    session = day.bench.finish()
    assert len(session["steps"]) == MAX_KEPT and session["truncated"]
    assert 2_000 <= len(session["samples"]["t_s"]) <= 4_000
    assert session["summary"]["step_count"] == 43_200
    assert session["summary"]["energy_j"] == pytest.approx(224.5 * 86_400, rel=0.001)
    assert len(json.dumps(session)) < 8 * MIB
