"""A listener that writes down what a host tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vram_pilot.hosts.base import JobInfo, StepInfo


class RecordingListener:
    """events: one tuple each, in order. on: called with each event's tuple after it was written down; it may raise."""

    def __init__(self, on: Callable[[tuple[Any, ...]], None] = lambda event: None) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._on = on

    def job_started(self, job: JobInfo) -> None:
        self._add("job", job)

    def phase_started(self, name: str) -> None:
        self._add("phase", name)

    def step_started(self, step: StepInfo) -> None:
        self._add("step", step.pass_name, step.image, step.index, step.total)

    def call_started(self) -> None:
        self._add("call")

    def job_finished(self, status: str, error: str | None = None) -> None:
        self._add("end", status, error)

    def model_changing(self) -> None:
        self._add("changing")

    def model_changed(self) -> None:
        self._add("changed")

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] in names]

    def _add(self, *event: Any) -> None:
        self.events.append(event)
        self._on(event)
