"""How far the newest job is, as the bar on top says it."""

from __future__ import annotations

from vram_pilot.panel.running import NEWEST_STEPS, NewestJob
from vram_pilot.session.records import JobFinished, JobStarted, Sample, StepFinished
from vram_pilot.session.timeline import Timeline


def step(t_s: float, duration_s: float | None, session: str = "a") -> StepFinished:
    return StepFinished(t_s, session, 0, "base", 0, 1, t_s - 1, duration_s)


def test_joules_are_those_since_the_jobs_start() -> None:
    timeline = Timeline()
    job = NewestJob(timeline)
    timeline.append(Sample(99.0, {"gpu_energy_j": 1000.0, "gpu_power_w": 50.0}))
    timeline.append(JobStarted(100.0, "a", ""))
    assert (job.look() or {})["energy_j"] is None, "nothing was read since it began"
    for t_s, joules in ((100.0, 1050.0), (102.0, 1650.0), (104.0, 2250.0)):
        timeline.append(Sample(t_s, {"gpu_energy_j": joules, "gpu_power_w": 300.0}))
    assert (job.look() or {})["energy_j"] == 1200
    timeline.append(JobFinished(104.0, "a", "ok"))
    timeline.append(Sample(110.0, {"gpu_energy_j": 9999.0, "gpu_power_w": 300.0}))
    found = job.look() or {}
    assert (found["energy_j"], found["running"]) == (1200, False), "what the card does after it is not the job's"


def test_the_speed_is_that_of_the_newest_steps() -> None:
    timeline = Timeline()
    timeline.append(JobStarted(0.0, "a", ""))
    for index in range(30):
        timeline.append(step(index, 1.0 if index < 30 - NEWEST_STEPS else 0.25))
    timeline.append(step(99.0, 9.0, session="another"))
    job = NewestJob(timeline)
    found = job.look() or {}
    assert (found["steps_per_s"], found["steps"]) == (4.0, 30)
    timeline.append(JobFinished(100.0, "a", "ok"))
    assert (job.look() or {})["steps_per_s"] == 30 / 22.5, "a finished job's is that of its session"


def test_a_job_without_measured_steps_has_no_speed() -> None:
    timeline = Timeline()
    timeline.append(JobStarted(0.0, "a", ""))
    timeline.append(step(1.0, None))
    found = NewestJob(timeline).look() or {}
    assert (found["steps"], found["steps_per_s"], found["energy_j"]) == (1, None, None)


def test_a_job_whose_start_fell_out_is_known_by_its_steps() -> None:
    timeline = Timeline(capacity=5)
    for index in range(20):
        timeline.append(step(index, 0.5))
    found = NewestJob(timeline).look() or {}
    assert (found["session_id"], found["steps"], found["cursor"]) == ("a", 5, 15)


def test_a_new_job_begins_anew() -> None:
    timeline = Timeline()
    job = NewestJob(timeline)
    for record in (JobStarted(0.0, "a", ""), step(1.0, 0.5), JobFinished(2.0, "a", "ok"), JobStarted(3.0, "b", "")):
        timeline.append(record)
        job.look()
    assert job.look() == {
        "session_id": "b",
        "running": True,
        "cursor": 3,
        "steps": 0,
        "steps_per_s": None,
        "energy_j": None,
    }
