"""The clock of CUDA events, on a device made of plain objects. tests/gpu has the real one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from vram_pilot.session.clock import HostStepClock
from vram_pilot.telemetry.steps import CudaStepClock, step_clock


class Cuda:
    """Stands in for torch.cuda. An event is done once `done_ms` has reached it."""

    def __init__(self) -> None:
        self.initialized = True
        self.capturing = False
        self.queued_ms = 0.0
        self.done_ms = 0.0
        self.events: list[Any] = []
        self.streams: list[object] = []

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        made = Event(self)
        self.events.append(made)
        return made


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.at_ms = -1.0

    def record(self, stream: object) -> None:
        self.cuda.streams.append(stream)
        self.at_ms = self.cuda.queued_ms

    def query(self) -> bool:
        return self.at_ms <= self.cuda.done_ms

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms

    def synchronize(self) -> None:
        raise AssertionError("nothing may synchronise")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: made.initialized)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("nothing may synchronise"))
    return made


DEVICE = torch.device("cuda", 1)


def test_a_time_is_known_when_the_device_is_there(cuda: Cuda) -> None:
    clock = CudaStepClock(DEVICE)
    first = clock.mark()
    cuda.queued_ms = 40.0
    second = clock.mark()
    assert clock.resolve(first, second) is None
    cuda.done_ms = 40.0
    assert clock.resolve(first, second) == pytest.approx(0.04)
    assert set(cuda.streams) == {"stream of cuda:1"}


def test_events_are_used_again(cuda: Cuda) -> None:
    """A job of ten thousand steps needs as many events as marks wait at once, no more."""
    clock = CudaStepClock(DEVICE)
    last = clock.mark()
    total = 0.0
    for _ in range(10_000):
        cuda.queued_ms += 10.0
        mark = clock.mark()
        cuda.done_ms = cuda.queued_ms
        total += clock.resolve(last, mark) or 0.0
        last = mark
    assert len(cuda.events) == 2
    assert total == pytest.approx(100.0)


def test_an_event_that_waits_is_not_used_again(cuda: Cuda) -> None:
    clock = CudaStepClock(DEVICE)
    marks = []
    for _ in range(5):
        marks.append(clock.mark())
        cuda.queued_ms += 10.0
    assert [clock.resolve(one, other) for one, other in pairwise(marks)] == [None] * 4
    assert len(cuda.events) == 5
    cuda.done_ms = 100.0
    assert [clock.resolve(one, other) for one, other in pairwise(marks)] == pytest.approx([0.01] * 4)


@pytest.mark.parametrize("state", ["not started", "capturing"])
def test_the_host_s_clock_steps_in(cuda: Cuda, state: str) -> None:
    """No context is started, and no event goes into somebody's capture."""
    cuda.initialized, cuda.capturing = state == "capturing", state == "capturing"
    clock = CudaStepClock(DEVICE)
    first, second = clock.mark(), clock.mark()
    assert cuda.events == []
    elapsed = clock.resolve(first, second)
    assert elapsed is not None
    assert 0 <= elapsed < 5
    assert clock.settle()


def test_a_device_that_starts_between_two_marks(cuda: Cuda) -> None:
    cuda.initialized = False
    clock = CudaStepClock(DEVICE)
    first = clock.mark()
    cuda.initialized, cuda.queued_ms = True, 5.0
    second = clock.mark()
    assert clock.resolve(first, second) is None
    cuda.done_ms = 5.0
    assert (clock.resolve(first, second) or 0) >= 0


def test_settling_waits_for_the_device_but_not_for_ever(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CudaStepClock(DEVICE)
    assert clock.settle()
    cuda.queued_ms = 10.0
    clock.mark()

    def catch_up(_: float) -> None:
        cuda.done_ms += 4.0

    monkeypatch.setattr("vram_pilot.telemetry.steps.time.sleep", catch_up)
    assert clock.settle()
    assert cuda.done_ms == 12.0
    cuda.queued_ms = 1e9
    clock.mark()
    monkeypatch.setattr("vram_pilot.telemetry.steps._SETTLE_TIMEOUT_S", 0.0)
    assert not clock.settle()


def test_the_host_s_clock() -> None:
    clock = HostStepClock()
    first, second = clock.mark(), clock.mark()
    assert clock.resolve(first, second) == second - first >= 0
    assert clock.settle()


@pytest.mark.parametrize(("kind", "expected"), [("cuda", CudaStepClock), ("cpu", HostStepClock), ("mps", HostStepClock)])
def test_the_clock_of_a_device(kind: str, expected: type) -> None:
    assert type(step_clock(torch.device(kind))) is expected
