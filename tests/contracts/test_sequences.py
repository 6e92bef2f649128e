"""Whatever order things happen in: switches, jobs, interrupts, exceptions and changed weights, every image is the right one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.conftest import leave
from tests.contracts.subjects import FAMILIES, MODE_IDS, Subject, make_subject, modes_for
from tests.fakes.device import FakeDevice
from tests.fakes.host import FakeHost
from tests.fakes.state import differences, state_of
from vram_pilot.errors import RefusedError
from vram_pilot.hosts.base import Component
from vram_pilot.settings import ModeRequest

pytestmark = pytest.mark.slow  # many cases, each with a model of its own

modes = st.sampled_from(range(len(MODE_IDS)))
in_job = st.tuples(st.integers(0, 3), modes, st.sampled_from(["job", "standing", None]))
actions = st.one_of(
    st.tuples(st.just("request"), modes, st.sampled_from(["standing", None])),
    st.tuples(st.just("job"), st.one_of(st.none(), modes), st.lists(in_job, max_size=3)),
    st.tuples(st.just("interrupt"), st.integers(0, 3), st.lists(in_job, max_size=2)),
    st.tuples(st.just("exception"), st.integers(0, 40), st.lists(in_job, max_size=2)),
    st.tuples(st.just("weights"), st.integers(0, 40), st.sampled_from([2.0, 0.5])),
    st.tuples(st.just("nothing loaded"), modes),
)


class Fault(RuntimeError):
    """An exception in the model."""


class Reference:
    """A second model with the same weights, on a host that nobody listens to."""

    def __init__(self, name: str) -> None:
        self._host = FakeHost(FAMILIES[name].make(0), FAMILIES[name])
        self._layers = layers_of(self._host.components())
        self._images: dict[frozenset[tuple[int, float]], torch.Tensor] = {}

    def image(self, factors: dict[int, float]) -> torch.Tensor:
        """With each of these layers' weights multiplied, by powers of two."""
        key = frozenset((number, factor) for number, factor in factors.items() if factor != 1)
        if key not in self._images:
            with torch.no_grad():
                for number, factor in key:
                    self._layers[number].weight.mul_(factor)
                self._images[key] = self._host.generate(4)
                for number, factor in key:
                    self._layers[number].weight.div_(factor)
        return self._images[key]


def layers_of(components: tuple[Component, ...]) -> list[Any]:
    denoiser = next(part.module for part in components if part.role == "denoiser")
    return [module for module in denoiser.modules() if module._parameters and hasattr(module, "weight")]


class Run:
    """Carries actions out, and knows which image each job must give: that of its weights, whatever the mode."""

    def __init__(self, subject: Subject, device: FakeDevice, reference: Reference) -> None:
        self.subject, self.device, self._reference = subject, device, reference
        self.layers = layers_of(subject.components())
        self.factors: dict[int, float] = {}

    def request(self, which: int, scope: str | None) -> None:
        wanted = modes_for(self.subject)[which]
        assert self.subject.controller.request(wanted, scope).effective == wanted

    def job(self, own: int | None, switches: list[tuple[int, int, str | None]]) -> None:
        mode = None if own is None else modes_for(self.subject)[own]
        with self.device.guard():
            image = self.subject.generate(4, mode=mode, at_step=self._switch(switches))
        assert torch.equal(image, self._reference.image(self.factors))

    def interrupt(self, at: int, switches: list[tuple[int, int, str | None]]) -> None:
        switch = self._switch(switches)

        def stop(step: int) -> None:
            switch(step)
            if step == at:
                self.subject.host.interrupt()

        with self.device.guard():
            self.subject.generate(4, at_step=stop)

    def exception(self, layer: int, switches: list[tuple[int, int, str | None]]) -> None:
        def fail(_module: Any, _args: Any) -> None:
            raise Fault

        handle = self.layers[layer % len(self.layers)].register_forward_pre_hook(fail)
        with self.device.guard(), pytest.raises(Fault):
            self.subject.generate(4, at_step=self._switch(switches))
        handle.remove()

    def weights(self, layer: int, factor: float) -> None:
        layer %= len(self.layers)
        with torch.no_grad():
            self.layers[layer].weight.mul_(factor)
        self.factors[layer] = self.factors.get(layer, 1) * factor

    def nothing_loaded(self, which: int) -> None:
        """The host unloads its model, is asked for a mode, and loads the model again."""
        host: Any = self.subject.host
        components = host.components_now
        host.exchange(())
        assert self.subject.controller.request(modes_for_components(which)).effective == ModeRequest()
        host.exchange(components)

    def restore(self) -> None:
        for layer, factor in self.factors.items():
            with torch.no_grad():
                self.layers[layer].weight.div_(factor)

    def _switch(self, switches: list[tuple[int, int, str | None]]) -> Callable[[int], None]:
        def at_step(step: int) -> None:
            for when, which, scope in switches:
                if when == step:
                    self.subject.controller.request(modes_for(self.subject)[which], scope)

        return at_step


def modes_for_components(which: int) -> ModeRequest:
    return [ModeRequest(), ModeRequest("full"), ModeRequest("medvram"), *(ModeRequest("lowvram", n) for n in (None, 0, 1, 9))][
        which
    ]


def check(name: str, sequence: list[tuple[Any, ...]], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        device = FakeDevice(patch)
        subject = make_subject(name, tmp_path)
        before = state_of(subject.components())
        run = Run(subject, device, reference_for(name))
        for kind, *arguments in sequence:
            getattr(run, kind.replace(" ", "_"))(*arguments)
            assert torch.is_autocast_cache_enabled()
        run.restore()
        leave(subject, device)
        assert differences(before, state_of(subject.components())) == []
        assert subject.faults() == []


reference_for = functools.cache(Reference)
ordinary = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}


@given(sequence=st.lists(actions, min_size=2, max_size=7))
@settings(max_examples=15, **ordinary)
def test_any_sequence_gives_the_right_images(sequence: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory) -> None:
    check("ldm", sequence, tmp_path_factory.mktemp("state"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@given(sequence=st.lists(actions, min_size=2, max_size=12))
@settings(max_examples=100, **ordinary)
def test_any_long_sequence_gives_the_right_images(
    name: str, sequence: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(name, sequence, tmp_path_factory.mktemp("state"))


def test_a_request_that_belongs_to_a_job_needs_one(subject: Subject) -> None:
    with pytest.raises(RefusedError, match="No job is running"):
        subject.controller.request(ModeRequest("full"), scope="job")
