"""What the recorder makes of a host's events."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.jobs import IDENTITY, Bench, plain_session, rich_session
from vram_pilot.hosts.base import JobInfo, StepInfo
from vram_pilot.session.records import JobFinished, JobStarted, Note, PhaseFinished, Sample, StepFinished
from vram_pilot.settings import ModeRequest

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "session.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def check(session: dict[str, Any]) -> None:
    """The session, as a reader gets it, is what the schema says."""
    VALIDATOR.validate(json.loads(json.dumps(session, allow_nan=False)))


def durations(session: dict[str, Any]) -> list[float | None]:
    return [step["duration_s"] for step in session["steps"]]


class TestSession:
    def test_the_schema_is_one(self) -> None:
        jsonschema.Draft202012Validator.check_schema(SCHEMA)

    @pytest.mark.parametrize("session", [plain_session(), rich_session()], ids=["plain", "rich"])
    def test_a_recorded_session_is_valid(self, session: dict[str, Any]) -> None:
        check(session)

    @pytest.mark.parametrize("where", [("extra",), ("summary", "extra"), ("mode", "extra"), ("request", "prompt")])
    def test_the_schema_refuses_what_is_not_in_it(self, where: tuple[str, ...]) -> None:
        session = plain_session()
        target = session
        for key in where[:-1]:
            target = target[key]
        target[where[-1]] = "x"
        with pytest.raises(jsonschema.ValidationError):
            check(session)

    def test_the_header_is_a_session_too(self) -> None:
        bench = Bench()
        bench.start(ModeRequest("lowvram", 512))
        header = bench.started[0]
        check(header)
        assert header["status"] == "running"
        assert header["id"] == bench.recorder.session_id
        assert header["mode"]["requested"] == {"mode": "lowvram", "budget_mib": 512, "accelerate": "off"}
        assert bench.finish()["id"] == header["id"]

    def test_identity_and_request(self) -> None:
        session = plain_session()
        assert session["gpus"] == IDENTITY["gpus"]
        assert session["model"]["hash"] == "4dab1c7e93"
        assert session["request"]["sampler"] == "Euler a"
        assert session["started_at"] == "2026-01-31T23:59:59.250+00:00"
        assert session["id"].startswith("20260131-235959-")

    def test_a_model_that_is_loaded_in_the_job_is_in_its_session(self) -> None:
        bench = Bench()
        bench.identity = {**IDENTITY, "model": None}
        bench.start()
        bench.identity = IDENTITY  # type: ignore[assignment]
        assert bench.finish()["model"]["name"] == "dream.safetensors"

    def test_an_empty_job(self) -> None:
        bench = Bench()
        bench.start()
        session = bench.finish("interrupted")
        check(session)
        assert (session["steps"], session["summary"]["steps_per_s"], session["summary"]["step_p50_s"]) == ([], None, None)
        assert session["summary"]["images_per_s"] is None

    def test_a_recorder_with_nothing_to_read(self) -> None:
        finished: list[dict[str, Any]] = []
        recorder = Bench(memory=lambda: None, mode_state=dict, identity=dict, on_finished=finished.append).recorder
        recorder.job_started(JobInfo())
        recorder.step_started(StepInfo(0, 1))
        recorder.job_finished("ok")
        check(finished[0])
        assert finished[0]["host"] is None
        assert finished[0]["mode"] == {"requested": None, "effective": None, "history": []}
        assert finished[0]["steps"][0]["allocated_bytes"] is None

    def test_no_folder_and_no_prompt(self) -> None:
        bench = Bench()
        bench.start(prompt="a cat", sampler="Euler")
        bench.timeline.append(Note(bench.device.host_s, bench.recorder.session_id, "reading /srv/bob/x.pt failed"))
        session = bench.finish("error", "FileNotFoundError: '/srv/bob/models/dream.safetensors'")
        check(session)
        assert "bob" not in json.dumps(session)
        assert "a cat" not in json.dumps(session)
        assert session["error"] == "FileNotFoundError: '…/dream.safetensors'"


class TestTimes:
    def test_steps_have_the_device_s_times(self) -> None:
        """The host hands over all steps in a millisecond; what counts is what the device took."""
        bench = Bench()
        bench.start()
        bench.steps([0.05, 0.06, 0.07])
        assert bench.device.host_s - 1000.0 < 0.01
        session = bench.finish()
        assert durations(session) == pytest.approx([0.05, 0.06, 0.07], abs=2e-4)
        assert session["summary"]["steps_per_s"] == pytest.approx(3 / 0.18, rel=0.01)
        assert session["summary"]["step_p50_s"] == pytest.approx(0.06, abs=2e-4)

    def test_nothing_waits_in_the_step_path(self) -> None:
        bench = Bench()
        bench.start()
        bench.phase("encode", 1.0)
        bench.steps([0.5] * 10)
        bench.phase("decode", 1.0)
        assert bench.device.settles == 0
        assert not [record for record in bench.timeline.after(0).records if isinstance(record, StepFinished)]
        bench.finish()
        assert bench.device.settles == 1

    def test_a_slow_step_appears_as_the_next_one_begins(self) -> None:
        """The device is done with it microseconds after the boundary, and the next boundary is two seconds off."""
        bench = Bench()
        bench.start()
        bench.recorder.step_started(StepInfo(0, 2))
        bench.device.work(2.0)
        bench.device.wait()
        bench.device.work(0.0001)
        bench.recorder.step_started(StepInfo(1, 2))
        bench.device.idle(0.001)
        bench.recorder.call_started()
        assert [record.index for record in bench.timeline.after(0).records if isinstance(record, StepFinished)] == [0]

    def test_steps_appear_while_the_job_runs(self) -> None:
        bench = Bench()
        bench.start()
        bench.steps([0.05] * 3)
        bench.device.idle(0.12)
        bench.recorder.call_started()
        seen = [record for record in bench.timeline.after(0).records if isinstance(record, StepFinished)]
        assert [record.index for record in seen] == [0, 1]
        assert seen[1].t_s == pytest.approx(1000.1, abs=1e-3)
        assert seen[1].duration_s == pytest.approx(0.05, abs=2e-4)

    def test_a_step_ends_with_its_denoise_phase(self) -> None:
        bench = Bench()
        bench.start()
        bench.steps([0.05, 0.05])
        bench.phase("decode", 3.0)
        assert durations(bench.finish()) == pytest.approx([0.05, 0.05], abs=2e-4)

    def test_passes_and_images_do_not_run_into_each_other(self) -> None:
        session = rich_session()
        keys = [(step["image"], step["pass"], step["index"]) for step in session["steps"]]
        expected = [(image, name, index) for image in (0, 1) for name, n in (("base", 20), ("hires", 8)) for index in range(n)]
        assert keys == expected
        assert max(duration or 0 for duration in durations(session)) < 0.4

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("phase"), st.sampled_from(["load", "encode", "denoise", "decode", "other", "strange"])),
                st.tuples(st.just("step"), st.integers(0, 5)),
                st.tuples(st.just("work"), st.floats(0, 2)),
                st.tuples(st.just("wait"), st.none()),
                st.tuples(st.just("idle"), st.floats(0, 1)),
                st.tuples(st.just("call"), st.none()),
                st.tuples(st.just("switch"), st.sampled_from(["full", "lowvram", "medvram"])),
            ),
            max_size=60,
        )
    )
    def test_any_order_of_events(self, events: list[tuple[str, Any]]) -> None:
        """Phases cover the job without a gap, each step lies within one phase, and every step is reported once."""
        bench = Bench()
        bench.start()
        calls = steps = 0
        in_step = False
        for kind, value in events:
            if kind == "phase":
                bench.recorder.phase_started(value)
                in_step = False
            elif kind == "step":
                bench.recorder.step_started(StepInfo(value, 6))
                steps, in_step = steps + 1, True
            elif kind == "call":
                bench.recorder.call_started()
                calls += in_step
            elif kind == "switch":
                bench.switch(ModeRequest(value), None)
            elif kind == "work":
                bench.device.work(value)
            elif kind == "idle":
                bench.device.idle(value)
            else:
                bench.device.wait()
        session = bench.finish()
        check(session)
        end = 0.0
        for phase in session["phases"]:
            assert phase["start_s"] == pytest.approx(end, abs=1e-6)
            end = phase["start_s"] + phase["duration_s"]
        assert end == pytest.approx(session["summary"]["duration_s"], abs=1e-6)
        assert end == pytest.approx(
            bench.device.queued_s - 1000.0 if bench.device.queued_s > bench.device.host_s else end, abs=1e-6
        )
        assert len(session["steps"]) == steps == session["summary"]["step_count"]
        assert sum(step["calls"] for step in session["steps"]) == calls
        reported = [record for record in bench.timeline.after(0, 10**6).records if isinstance(record, StepFinished)]
        assert [record.duration_s for record in reported] == durations(session)
        assert len(session["mode"]["history"]) == sum(kind == "switch" for kind, _ in events)


class TestModes:
    def test_history_is_placed_at_the_step_it_was_made_at(self) -> None:
        bench = Bench()
        bench.start()
        bench.steps([0.05] * 6, switches={2: ModeRequest("lowvram", 0), 4: ModeRequest("full")})
        session = bench.finish()
        history = session["mode"]["history"]
        assert [(change["step"], change["from"], change["to"]) for change in history] == [
            (2, "full", "lowvram, budget 0 MiB"),
            (4, "lowvram, budget 0 MiB", "full"),
        ]
        assert [change["t_s"] for change in history] == [session["steps"][2]["start_s"], session["steps"][4]["start_s"]]

    def test_streamed_bytes_are_each_step_s_own(self) -> None:
        bench = Bench()
        bench.start()
        bench.steps([0.05] * 6, switches={2: ModeRequest("lowvram", 0), 4: ModeRequest("full")})
        session = bench.finish()
        step = 1639 * 2**20
        assert [entry["streamed_bytes"] for entry in session["steps"]] == [0, 0, step, step, 0, 0]
        assert session["summary"]["streamed_bytes"] == 2 * step

    def test_a_mode_entered_anew_counts_from_zero(self) -> None:
        bench = Bench()
        bench.standing = bench.effective = ModeRequest("lowvram", 0)
        bench.streamed = 10_000
        bench.start()
        bench.recorder.phase_started("denoise")
        bench.recorder.step_started(StepInfo(0, 2))
        bench.streamed = 300  # the model changed: the counter began again
        bench.recorder.step_started(StepInfo(1, 2))
        bench.streamed = 500
        session = bench.finish()
        assert [step["streamed_bytes"] for step in session["steps"]] == [300, 200]

    def test_requested_is_the_job_s_own_or_the_standing_one(self) -> None:
        bench = Bench()
        bench.start(ModeRequest("medvram"))
        assert bench.finish()["mode"]["requested"]["mode"] == "medvram"
        bench.standing = ModeRequest("lowvram", 64)
        bench.start()
        assert bench.finish()["mode"]["requested"] == {"mode": "lowvram", "budget_mib": 64, "accelerate": "off"}

    def test_effective_is_not_what_comes_back_after_the_job(self) -> None:
        bench = Bench()
        bench.start()
        bench.steps([0.05] * 3, switches={1: ModeRequest("lowvram", 8)})
        bench.phase("decode", 0.1)
        bench.effective = ModeRequest("as-launched")  # the controller heard of the end first
        session = bench.finish()
        assert session["mode"]["effective"]["mode"] == "lowvram"
        assert session["settings"]["budget_bytes"] == 8 * 2**20

    def test_notes_and_samples_of_others_are_taken_in(self) -> None:
        bench = Bench()
        bench.timeline.append(Note(bench.device.host_s, None, "before the job"))
        bench.start()
        bench.timeline.append(Note(bench.device.host_s, bench.recorder.session_id, "lowvram was refused"))
        bench.timeline.append(Sample(bench.device.host_s + 0.25, {"gpu_utilization_ratio": 0.5, "power_w": float("nan")}))
        session = bench.finish()
        check(session)
        assert [note["text"] for note in session["notes"]] == ["lowvram was refused"]
        assert session["samples"] == {"t_s": [0.25], "gpu_utilization_ratio": [0.5], "power_w": [None]}


class TestMemory:
    def test_bytes_are_those_at_the_step_s_end(self) -> None:
        bench = Bench()
        bench.start()
        bench.recorder.phase_started("denoise")
        for index in range(3):
            bench.recorder.step_started(StepInfo(index, 3))
            bench.allocated, bench.reserved = 100 + index, 200 + index
        session = bench.finish()
        assert [step["allocated_bytes"] for step in session["steps"]] == [100, 101, 102]
        assert [step["reserved_bytes"] for step in session["steps"]] == [200, 201, 202]

    def test_peaks_survive_a_host_that_resets_them(self) -> None:
        peaks = Peaks()
        bench = Bench(peaks=peaks)
        bench.start()
        assert peaks.resets == 1
        peaks.value = (900, 1000)
        bench.phase("decode", 0.1)
        peaks.value = (10, 20)
        session = bench.finish()
        assert session["summary"]["peak_allocated_bytes"] == 900
        assert session["summary"]["peak_reserved_bytes"] == 1000

    def test_without_a_counter_there_is_no_peak(self) -> None:
        assert plain_session()["summary"]["peak_allocated_bytes"] is None


class Peaks:
    def __init__(self) -> None:
        self.resets = 0
        self.value: tuple[int | None, int | None] = (0, 0)

    def reset(self) -> None:
        self.resets += 1

    def read(self) -> tuple[int | None, int | None]:
        return self.value


class TestOrder:
    def test_a_nested_job_is_part_of_the_outer_one(self) -> None:
        bench = Bench()
        bench.start()
        bench.start(steps=99)
        assert len(bench.started) == 1
        assert bench.finish()["request"]["steps"] == 20
        assert len(bench.finished) == 1

    def test_an_end_without_a_job_is_ignored(self) -> None:
        bench = Bench()
        bench.recorder.job_finished("ok")
        bench.recorder.phase_started("denoise")
        bench.recorder.step_started(StepInfo(0, 1))
        bench.recorder.call_started()
        assert bench.finished == []
        assert bench.timeline.cursor == 0

    def test_a_lost_end_is_an_error(self) -> None:
        """The next job comes from another worker of the host: the one before must have ended without a word."""
        bench = Bench()
        bench.start()
        bench.steps([0.05])
        worker = threading.Thread(target=bench.start)
        worker.start()
        worker.join()
        lost = bench.finished[0]
        check(lost)
        assert lost["status"] == "error"
        assert "never reported" in lost["error"]
        assert len(lost["steps"]) == 1
        assert bench.recorder.session_id == bench.started[1]["id"] != lost["id"]
        assert bench.finish()["status"] == "ok"

    @pytest.mark.parametrize("status", ["ok", "interrupted", "oom", "error"])
    def test_the_host_s_status_is_kept(self, status: str) -> None:
        bench = Bench()
        bench.start()
        session = bench.finish(status, "CUDA out of memory" if status == "oom" else None)
        check(session)
        assert session["status"] == status
        ends = [record for record in bench.timeline.after(0).records if isinstance(record, JobFinished)]
        assert [(end.status, end.session_id) for end in ends] == [(status, session["id"])]

    @pytest.mark.parametrize("status", ["running", "aborted", "fine", ""])
    def test_no_other_status_ends_a_job(self, status: str) -> None:
        bench = Bench()
        bench.start()
        assert bench.finish(status)["status"] == "error"

    def test_records_come_in_order(self) -> None:
        bench = Bench()
        bench.start()
        bench.phase("encode", 0.01)
        bench.steps([0.05, 0.05])
        bench.phase("decode", 0.1)
        bench.finish()
        kinds = [type(record) for record in bench.timeline.after(0).records]
        assert kinds == [
            JobStarted,
            *[PhaseFinished] * 2,
            StepFinished,
            StepFinished,
            *[PhaseFinished] * 2,
            JobFinished,
        ]

    def test_progress(self) -> None:
        bench = Bench()
        assert bench.recorder.progress() is None
        assert bench.recorder.session_id is None
        bench.start()
        bench.steps([0.05] * 3, pass_name="hires", image=1)
        progress = bench.recorder.progress()
        assert progress is not None
        assert {key: progress[key] for key in ("phase", "step", "steps", "pass", "image")} == {
            "phase": "denoise",
            "step": 2,
            "steps": 3,
            "pass": "hires",
            "image": 1,
        }
        bench.phase("decode", 0.1)
        assert (bench.recorder.progress() or {})["step"] is None
