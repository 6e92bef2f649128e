"""A denoiser whose calls are captured by a pretended device."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.graphs import RecordedGraphs
from tests.fakes.models import DIFFUSERS, LDM, Family
from vram_pilot.graphs.runner import GraphRunner
from vram_pilot.hosts.base import Component

CPU = torch.device("cpu")
FAMILIES = pytest.mark.parametrize("family", [LDM, DIFFUSERS], ids=lambda family: family.name)


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Rig:
    """call: the denoiser as a host calls it. eager: the same without the runner. state: the host's, part of the key."""

    def __init__(self, root: nn.Module, family: Family = LDM, **options: Any) -> None:
        self.root = root
        self.family = family
        self.state: Any = None
        self.graphs = RecordedGraphs()
        self.runner = GraphRunner(root, CPU, lambda: self.state, graphs=lambda _device: self.graphs, **options)

    def inputs(self, seed: int = 0, *, batch: int = 2, tokens: int = 8, size: int = 8) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        latent = torch.randn(batch, 4, size, size, generator=generator)
        return latent, torch.full((batch,), 900.0 - seed), torch.randn(batch, tokens, 32, generator=generator)

    def call(self, seed: int = 0, **shape: int) -> torch.Tensor:
        return self.family.denoise(self.root, *self.inputs(seed, **shape))

    def eager(self, seed: int = 0, **shape: int) -> torch.Tensor:
        forward = vars(self.root).pop("forward", None)
        try:
            return self.family.denoise(self.root, *self.inputs(seed, **shape))
        finally:
            if forward is not None:
                self.root.forward = forward

    def trusted(self, seed: int = 0, **shape: int) -> torch.Tensor:
        """The result of a call that has been captured, compared and replayed."""
        before = self.runner.replays
        for _ in range(6):
            result = self.call(seed, **shape)
            if self.runner.replays > before:
                return result
        raise AssertionError(f"not replayed: {self.runner.reason}")

    def events(self) -> list[str]:
        """Since the last time."""
        found, self.graphs.events[:] = list(self.graphs.events), []
        return found


@pytest.fixture
def small() -> Iterator[Rig]:
    """For what depends on the order of calls alone."""
    made = Rig(SMALL.make(0)[1].module, SMALL)
    made.runner.install()
    yield made
    made.runner.remove()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(LDM.make(0)[1].module)
    made.runner.install()
    yield made
    made.runner.remove()


@pytest.fixture
def diffusers_rig() -> Iterator[Rig]:
    made = Rig(DIFFUSERS.make(0)[1].module, DIFFUSERS)
    made.runner.install()
    yield made
    made.runner.remove()


def component(rig: Rig) -> tuple[Component, ...]:
    return (Component("denoiser", "denoiser", rig.root),)


def known(source: str, **names: Any) -> types.SimpleNamespace:
    """What the source defines, as if it stood in a package whose functions are known to be repeatable."""
    space: dict[str, Any] = {"__name__": "ldm.modules.example", "torch": torch, "nn": nn, **names}
    exec(compile(source, "example.py", "exec"), space)
    return types.SimpleNamespace(**space)


def _small(_seed: int) -> tuple[Component, ...]:
    source = """
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Sequential(nn.SiLU(), nn.Conv2d(4, 4, 1))
    def forward(self, latent, time, states):
        return self.out(latent) + time.mean() + states.mean()
"""
    root = known(source).Small()
    return Component("text_encoder", "text_encoder", root), Component("denoiser", "denoiser", root)


SMALL = Family("small", _small, LDM.encode, LDM.denoise, LDM.decode)
