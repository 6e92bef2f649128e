"""The step clock and the allocator's figures on a real card. Fails, not skips, where there is none."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from vram_pilot.hosts.base import JobInfo, StepInfo
from vram_pilot.session.recorder import Recorder
from vram_pilot.session.records import StepFinished
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.allocator import AllocatorPeaks, memory
from vram_pilot.telemetry.steps import CudaStepClock, step_clock
from vram_pilot.units import MIB

STEPS = 20


@pytest.fixture
def device() -> torch.device:
    assert torch.cuda.is_available(), "this test needs an NVIDIA card"
    return torch.device("cuda", 0)


class Work:
    """Matrix products that keep the card busy for some ten milliseconds a step, at next to no cost for the host."""

    def __init__(self, device: torch.device) -> None:
        self.matrix = torch.randn(8192, 8192, device=device, dtype=torch.float16)
        self.out = torch.empty_like(self.matrix)
        for _ in range(3):
            self.step()
        torch.cuda.synchronize(device)

    def step(self, products: int = 6) -> None:
        for _ in range(products):
            torch.mm(self.matrix, self.matrix, out=self.out)


def record(device: torch.device, work: Work) -> tuple[dict[str, Any], float, Recorder, Timeline]:
    """The session of a job of STEPS steps, and the seconds that the host took to hand it over."""
    finished: list[dict[str, Any]] = []
    timeline = Timeline()
    recorder = Recorder(
        timeline,
        clock=step_clock(device),
        memory=lambda: memory(device),
        peaks=AllocatorPeaks(device),
        on_finished=finished.append,
    )
    recorder.job_started(JobInfo({"steps": STEPS}))
    recorder.phase_started("denoise")
    start = time.perf_counter()
    for index in range(STEPS):
        recorder.step_started(StepInfo(index, STEPS))
        recorder.call_started()
        work.step()
    issued_s = time.perf_counter() - start
    recorder.phase_started("decode")
    recorder.job_finished("ok")
    return finished[0], issued_s, recorder, timeline


def test_steps_have_the_card_s_times_and_nothing_waits(device: torch.device) -> None:
    work = Work(device)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(STEPS):
        work.step()
    torch.cuda.synchronize(device)
    true_s = time.perf_counter() - start
    session, issued_s, _, timeline = record(device, work)
    durations = [step["duration_s"] for step in session["steps"]]
    assert None not in durations
    assert sum(durations) == pytest.approx(true_s, rel=0.05)
    assert issued_s < 0.5 * true_s  # the host was far ahead: recording did not make it wait
    assert session["summary"]["duration_s"] == pytest.approx(true_s, rel=0.1)
    reported = [record for record in timeline.after(0).records if isinstance(record, StepFinished)]
    assert [step.duration_s for step in reported] == durations


def test_bytes_are_the_allocator_s(device: torch.device) -> None:
    work = Work(device)
    before = torch.cuda.memory_allocated(device)
    extra = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    peaks = AllocatorPeaks(device)
    peaks.reset()
    assert memory(device) == (torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))
    assert memory(device)[0] == before + 256 * MIB
    passing = torch.empty(512 * MIB, dtype=torch.uint8, device=device)
    del passing
    assert peaks.read() == (torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
    assert (peaks.read()[0] or 0) == before + 768 * MIB
    del extra
    session, *_ = record(device, work)
    assert session["steps"][-1]["allocated_bytes"] == torch.cuda.memory_allocated(device)
    assert session["summary"]["peak_allocated_bytes"] >= session["steps"][-1]["allocated_bytes"]


def test_a_mark_within_a_capture_leaves_it_alone(device: torch.device) -> None:
    work = Work(device)
    clock = CudaStepClock(device)
    first = clock.mark()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = clock.mark()
        work.step(1)
    assert inside.event is None
    graph.replay()
    last = clock.mark()
    assert clock.settle()
    assert (clock.resolve(first, inside) or -1) >= 0
    assert (clock.resolve(inside, last) or -1) >= 0


def test_a_boundary_costs_microseconds(device: torch.device) -> None:
    """At 100 steps a second one per cent is 100 µs."""
    recorder = Recorder(Timeline(), clock=step_clock(device), memory=lambda: memory(device), peaks=AllocatorPeaks(device))
    torch.zeros(1, device=device)
    recorder.job_started(JobInfo())
    recorder.phase_started("denoise")
    start = time.perf_counter()
    for index in range(2000):
        recorder.step_started(StepInfo(index, 2000))
    cost_s = (time.perf_counter() - start) / 2000
    recorder.job_finished("ok")
    print(f"a step boundary costs {cost_s * 1e6:.1f} µs")
    assert cost_s < 300e-6
