"""The contract of every mode on every host: the same image, the promised memory, and the model handed back as it was."""

from __future__ import annotations

import torch

import pytest

from tests.contracts.subjects import MODE_IDS, Subject, denoiser_of, modes_for
from tests.fakes.device import FakeDevice, weights_of
from tests.fakes.state import add_hooks_of_others, differences, state_of
from vram_pilot.settings import ModeRequest

every_mode = pytest.mark.parametrize("which", range(len(MODE_IDS)), ids=MODE_IDS)


@every_mode
def test_the_image_is_the_same_and_everything_is_put_back(subject: Subject, which: int, device: FakeDevice) -> None:
    wanted = modes_for(subject)[which]
    expected = subject.generate()
    assert subject.controller.request(wanted).effective == wanted
    with device.guard():
        for _ in range(3):  # the first call of a job is seen, the following ones are expected
            assert torch.equal(subject.generate(), expected)
    assert subject.faults() == []


@every_mode
def test_hooks_of_others_keep_their_places(subject: Subject, which: int) -> None:
    module = denoiser_of(subject)
    before_all = state_of(subject.components())
    hooks = {id(child): {key: dict(value) for key, value in vars(child).items() if "hooks" in key} for child in module.modules()}
    add_hooks_of_others(module)
    before = state_of(subject.components())
    subject.controller.request(modes_for(subject)[which])
    subject.generate(1)
    subject.controller.request(ModeRequest())
    assert differences(before, state_of(subject.components())) == []
    for child in module.modules():
        for key, value in hooks[id(child)].items():
            vars(child)[key].clear()
            vars(child)[key].update(value)
    assert differences(before_all, state_of(subject.components())) == []
