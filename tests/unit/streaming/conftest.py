"""A pretended device with late copies, and hosts over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.fakes.blocks import BLOCKS
from tests.fakes.copies import DelayedCopies
from tests.fakes.device import FakeDevice
from tests.fakes.host import FakeHost
from tests.fakes.models import Family
from vram_pilot.control import Controller
from vram_pilot.hosts.base import Component
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming import bank as bank_module

Rig = tuple[FakeHost, Controller]
#: Every mode of ours, and lowvram with nothing, half or all of the fakes' denoisers on the device.
MODES = {
    "full": ModeRequest("full"),
    "medvram": ModeRequest("medvram"),
    "lowvram": ModeRequest("lowvram", 0),
    "lowvram-half": ModeRequest("lowvram", 2),
    "lowvram-all": ModeRequest("lowvram", 99),
}


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _autocast_as_it_was() -> Iterator[None]:
    """A fault of one test must not fail the next."""
    yield
    torch.set_autocast_cache_enabled(True)
    torch.clear_autocast_cache()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch, device: FakeDevice) -> DelayedCopies:
    """The engine of every bank that is made from now on."""
    engine = DelayedCopies(alive=lambda tensor: not device.holds(tensor))
    monkeypatch.setattr(bank_module, "copy_engine", lambda _device: engine)
    return engine


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the bytes that streamed weights pass through."""
    return lambda size: monkeypatch.setattr(bank_module, "ARENA_BYTES", size)


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
    """(host, controller) over a new model of a family, or over given components."""

    def make(family: Family = BLOCKS, components: tuple[Component, ...] | None = None) -> Rig:
        host = FakeHost(components or family.make(0), family)
        controller = Controller(host, Timeline(), tmp_path)
        host.subscribe(controller)
        return host, controller

    return make
