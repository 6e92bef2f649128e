"""The recorder where something fails, and over jobs of any length: the image never suffers, and what is left stays right."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.fakes.jobs import Bench
from tests.unit.session.test_recorder import check, durations
from vram_pilot.hosts.base import StepInfo
from vram_pilot.session.records import Note, Sample
from vram_pilot.settings import ModeRequest


class Broken:
    """Whatever is asked of it fails, as everything does once a device has failed."""

    def __call__(self, *args: object) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    mark = resolve = settle = reset = read = __call__


class TestFaults:
    PARTS = ("memory", "mode_state", "identity", "on_started", "on_finished", "clock", "peaks")

    @pytest.mark.parametrize("part", PARTS)
    def test_one_part_s_fault_hides_that_part_only(self, part: str, caplog: pytest.LogCaptureFixture) -> None:
        """Case A2: what cannot be read while memory runs out is said once, and the job's own error stands."""
        bench = Bench(**{part: Broken()})
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                bench.start()
                bench.steps([0.05, 0.05])
                bench.recorder.job_finished("oom", "CUDA out of memory. Tried to allocate 2.00 GiB")
        told = [record for record in caplog.records if record.exc_info]
        assert len(told) == 1
        assert part == "on_finished" or len(bench.finished) == 2
        for session in bench.finished:
            check(session)
            assert session["error"] == "CUDA out of memory. Tried to allocate 2.00 GiB"
            assert len(session["steps"]) == 2
            assert (session["steps"][0]["allocated_bytes"] is None) == (part == "memory")

    def test_a_device_that_fails_in_mid_job(self) -> None:
        """The host's clock places what comes after; a duration that nobody measured is null."""
        bench = Bench()
        bench.start()
        bench.steps([0.05] * 2)
        bench.device.wait()
        bench.recorder.step_started(StepInfo(2, 4))
        bench.device.broken = True
        bench.device.idle(0.5)
        bench.recorder.step_started(StepInfo(3, 4))
        bench.device.idle(0.25)
        session = bench.finish("error", "illegal memory access")
        check(session)
        assert [duration is None for duration in durations(session)] == [False, False, True, True]
        assert session["steps"][3]["start_s"] - session["steps"][2]["start_s"] == pytest.approx(0.5, abs=1e-6)
        assert session["summary"]["duration_s"] == pytest.approx(bench.device.host_s - 1000.0, abs=1e-6)

    def test_a_device_that_never_answers(self) -> None:
        bench = Bench()
        bench.start()
        bench.device.stuck = True
        bench.steps([5.0] * 3)
        session = bench.finish("error", "hung")
        check(session)
        assert durations(session) == [None, None, None]
        assert session["summary"]["steps_per_s"] is None
        assert session["summary"]["step_count"] == 3

    def test_strange_arguments(self) -> None:
        bench = Bench()
        bench.recorder.job_started(None)  # type: ignore[arg-type]
        bench.start(width="wide", cfg_scale=float("nan"), hires="yes")
        bench.recorder.step_started(None)  # type: ignore[arg-type]
        session = bench.finish()
        check(session)
        assert session["request"]["width"] is None


class TestLongJobs:
    def test_ten_thousand_steps(self) -> None:
        bench = Bench()
        bench.start(steps=10_000)
        bench.steps([0.01] * 10_000)
        session = bench.finish()
        assert len(session["steps"]) == 10_000
        assert not session["truncated"]

    def test_more_than_is_kept_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vram_pilot.session.assembly.MAX_KEPT", 10)
        bench = Bench()
        bench.start(steps=25)
        bench.steps([0.01] * 25)
        for number in range(15):
            bench.timeline.append(Note(bench.device.host_s, None, str(number)))
        session = bench.finish()
        check(session)
        assert session["truncated"]
        assert (len(session["steps"]), len(session["notes"]), session["summary"]["step_count"]) == (10, 10, 25)
        assert session["summary"]["steps_per_s"] == pytest.approx(100, rel=0.02)

    def test_no_record_of_others_is_missed_when_the_timeline_overflows_later(self) -> None:
        """The timeline forgets within the job; what the session needs was taken at each boundary."""
        bench = Bench()
        bench.start()
        bench.steps([0.01] * 3, switches={1: ModeRequest("medvram")})
        bench.recorder.phase_started("other")
        for number in range(25_000):
            bench.timeline.append(Sample(bench.device.host_s + number / 100, {"power_w": 1.0}))
            if number % 5000 == 0:
                bench.recorder.phase_started("other")
        session = bench.finish()
        assert [change["to"] for change in session["mode"]["history"]] == ["medvram"]
        assert 2000 <= len(session["samples"]["t_s"]) <= 4000
