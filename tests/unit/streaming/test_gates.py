"""The doors of components that come in when they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.fakes.blocks import WIDTH
from tests.fakes.device import FakeDevice
from tests.unit.streaming.conftest import Rig
from vram_pilot.hosts.base import Component
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.gates import Gates
from vram_pilot.streaming.part import Part
from vram_pilot.streaming.pinned import HostMemory

ELSEWHERE = torch.device("meta")  # a device other than the CPU that every machine has


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 64)
        self.layer = nn.Linear(64, 64)


class PartElsewhere(Part):
    """torch points no tensor of the CPU at memory of this device, so it is moved whole."""

    def load(self) -> None:
        self.component.module.to(self.device)
        self.loaded = True


@pytest.fixture
def encoder() -> Iterator[Encoder]:
    """In main memory, behind gates."""
    module = Encoder()
    part = PartElsewhere(Component("text_encoder", "text_encoder", module), frozenset(), HostMemory(0.5), ELSEWHERE)
    gates = Gates([part])
    gates.install()
    yield module
    gates.remove()
    assert not any(child._forward_pre_hooks for child in (module, *module.children()))


def test_inputs_follow_the_weights_that_their_call_brings_in(encoder: Encoder) -> None:
    """A caller asks a layer where its weights lie, is told main memory, and calls the layer with inputs from there."""
    seen: list[torch.device] = []
    look = encoder.table.register_forward_pre_hook(lambda _module, args: seen.append(args[0].device))
    ids = torch.tensor([1, 2]).to(encoder.table.weight.device)
    assert ids.device == torch.device("cpu")
    assert encoder.table(ids).device == ELSEWHERE
    assert seen == [ELSEWHERE]
    look.remove()


def test_inputs_of_a_component_that_was_there_are_its_callers_own(encoder: Encoder) -> None:
    encoder.table(torch.tensor([1]))
    seen: list[torch.Tensor] = []
    look = encoder.layer.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    given = torch.zeros(1, 64, device=ELSEWHERE)
    encoder.layer(given)
    assert seen[0] is given
    look.remove()


def test_a_component_that_has_failed_is_sent_away_like_any_other(rig: Callable[..., Rig], device: FakeDevice) -> None:
    """A preview that fails in mid-job, say: the VAE does not stay beside the denoiser for the rest of it."""
    host, controller = rig()
    controller.request(ModeRequest("medvram"))
    denoiser, vae, seen = host.module("denoiser"), host.module("vae"), []
    look = denoiser.blocks[3].register_forward_pre_hook(lambda *_: seen.append(device.names_on(host.components())))
    layer = [module for module in vae.modules() if module._parameters][-1]

    def fails(*_: object) -> None:
        raise ValueError("put in")

    def preview(step: int) -> None:
        if step == 1:
            handle = layer.register_forward_pre_hook(fails)
            with pytest.raises(ValueError, match="put in"), torch.no_grad():
                vae(torch.zeros(1, WIDTH))
            handle.remove()

    host.generate(3, at_step=preview)
    look.remove()
    assert seen
    assert all(names == {"denoiser"} for names in seen)
