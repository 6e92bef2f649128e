"""The hosts under contract, behind one face: a model that can be generated with, and a controller that listens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from tests.fakes.host import FakeHost
from tests.fakes.models import DIFFUSERS, LDM, Family
from vram_pilot.control import Controller
from vram_pilot.hosts.base import Component, Host, StepInfo
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.request import ImageRequest
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import ModeRequest

AtStep = Callable[[int], None]


class Subject(Protocol):
    """generate: one job of `steps` denoiser steps; at_step is called at each step's boundary. Answers the image."""

    host: Host
    controller: Controller

    def components(self) -> tuple[Component, ...]: ...

    def generate(
        self, steps: int = 3, *, mode: ModeRequest | None = None, at_step: AtStep | None = None, seed: int = 7
    ) -> torch.Tensor: ...

    def faults(self) -> list[Exception]: ...


class FakeSubject:
    def __init__(self, family: Family, components: tuple[Component, ...], state_dir: Path) -> None:
        self.host = FakeHost(components, family)
        self.controller = Controller(self.host, Timeline(), state_dir)
        self.host.subscribe(self.controller)

    def components(self) -> tuple[Component, ...]:
        return self.host.components()

    def generate(
        self, steps: int = 3, *, mode: ModeRequest | None = None, at_step: AtStep | None = None, seed: int = 7
    ) -> torch.Tensor:
        return self.host.generate(steps, mode, at_step, seed)

    def faults(self) -> list[Exception]:
        return self.host.faults


class StandaloneSubject:
    def __init__(self, host: StandaloneHost, state_dir: Path) -> None:
        self.host = host
        self.controller = Controller(host, Timeline(), state_dir)
        self._listener = _AtSteps(self.controller)
        host.subscribe(self._listener)

    def components(self) -> tuple[Component, ...]:
        return self.host.components()

    def generate(
        self, steps: int = 3, *, mode: ModeRequest | None = None, at_step: AtStep | None = None, seed: int = 7
    ) -> torch.Tensor:
        self._listener.at_step = at_step
        request = ImageRequest(
            prompt="a lighthouse", width=64, height=64, steps=steps, sampler="Euler", cfg_scale=2.0, seed=seed
        )
        try:
            result = self.host.generate(request, mode)
        finally:
            self._listener.at_step = None
        if result.error is not None:
            raise result.error
        if not result.images:
            return torch.empty(0)
        return torch.frombuffer(bytearray(result.images[0].tobytes()), dtype=torch.uint8)

    def faults(self) -> list[Exception]:
        return self._listener.faults


class _AtSteps:
    """Passes everything on to the controller, and stops at each step's boundary."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.at_step: AtStep | None = None
        self.faults: list[Exception] = []

    def __getattr__(self, event: str) -> Callable[..., None]:
        def tell(*args: Any) -> None:
            try:
                getattr(self._controller, event)(*args)
            except Exception as fault:
                self.faults.append(fault)
                raise

        return tell

    def step_started(self, step: StepInfo) -> None:
        self._controller.step_started(step)
        if self.at_step is not None:
            self.at_step(step.index)


FAMILIES = {family.name: family for family in (LDM, DIFFUSERS)}
NAMES = (*FAMILIES, "standalone")
_models: dict[str, Any] = {}


def make_subject(name: str, state_dir: Path) -> Subject:
    """A fresh host and controller over a model that is made once: every test hands it back as it was."""
    if name == "standalone":
        if name not in _models:
            _models[name] = StandaloneHost("cpu")
            _models[name].load("tiny")
            StandaloneSubject(_models[name], state_dir).generate(1)  # the first job places the weights
        return StandaloneSubject(_models[name], state_dir)
    if name not in _models:
        _models[name] = FAMILIES[name].make(0)
    return FakeSubject(FAMILIES[name], _models[name], state_dir)


def denoiser_of(subject: Subject) -> torch.nn.Module:
    return next(part.module for part in subject.components() if part.role == "denoiser")


def modes_for(subject: Subject) -> list[ModeRequest]:
    """Every mode, and lowvram with each kind of budget: left to the program, none, half of the denoiser, more than all."""
    size = sum(tensor.nbytes for tensor in denoiser_of(subject).parameters())
    half = max(size // 2 // 2**20, 1)
    budgets = (None, 0, half, 2 * half + 2)
    return [ModeRequest(), ModeRequest("full"), ModeRequest("medvram"), *(ModeRequest("lowvram", budget) for budget in budgets)]


MODE_IDS = ("as-launched", "full", "medvram", "lowvram", "lowvram-0", "lowvram-half", "lowvram-all")
