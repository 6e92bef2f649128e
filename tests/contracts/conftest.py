"""What each contract test gets: a host with its controller, whose model must be handed back as it was, on a device of
pretence."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.contracts.subjects import NAMES, Subject, make_subject
from tests.fakes.device import FakeDevice
from tests.fakes.state import differences, state_of
from vram_pilot.settings import ModeRequest


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


@pytest.fixture(params=NAMES)
def every_subject(request: pytest.FixtureRequest, tmp_path: Path, device: FakeDevice) -> Iterator[Subject]:
    """Each host in every run. Afterwards the model goes back to as-launched, and everything must be as it was before."""
    yield from _lent(request.param, tmp_path, device)


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name != NAMES[0])) for name in NAMES])
def subject(request: pytest.FixtureRequest, tmp_path: Path, device: FakeDevice) -> Iterator[Subject]:
    """The same; in quick runs the first host only."""
    yield from _lent(request.param, tmp_path, device)


def _lent(name: str, tmp_path: Path, device: FakeDevice) -> Iterator[Subject]:
    made = make_subject(name, tmp_path)
    before = state_of(made.components())
    yield made
    leave(made, device)
    assert differences(before, state_of(made.components())) == []


def leave(subject: Subject, device: FakeDevice) -> None:
    """Back to as-launched, with nothing of ours left behind."""
    controller = subject.controller
    assert controller.request(ModeRequest()).applies == "now"
    if controller.bank.memory.pageable_bytes:
        gc.collect()  # a caught exception may hold frames
    assert controller.bank.memory.pageable_bytes == 0
    assert controller.bank.memory.pinned_bytes == 0
    assert device.home_copies() == 0
    assert not controller.bank.holds_anything()
    assert controller.bank.executor is None
