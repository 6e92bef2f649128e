"""What hosts and extensions do to weights behind our back, in every mode and across switches: the image stays what
they meant."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.blocks import BLOCKS, WIDTH
from tests.fakes.copies import DelayedCopies
from tests.fakes.device import FakeDevice
from tests.fakes.host import FakeHost
from tests.fakes.lora import WAYS, Lora
from tests.fakes.models import LDM
from tests.fakes.state import differences, state_of
from tests.unit.streaming.conftest import Rig
from vram_pilot.settings import ModeRequest

MakeRig = Callable[..., Rig]
MODES = {
    "full": ModeRequest("full"),
    "medvram": ModeRequest("medvram"),
    "lowvram": ModeRequest("lowvram", 0),
    "lowvram-half": ModeRequest("lowvram", 2),
    "lowvram-all": ModeRequest("lowvram", 99),
}
OTHERS = [mode for name, mode in MODES.items() if name != "lowvram-half"]
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)

# ------------------------------------------------------------------------------------------------------------------------ LoRA

SEQUENCE = [(), ("A",), (), ("B",), ("A",), ("A", "B"), ()]


#: In every run: one mode of each kind with the WebUI's own way and with the rudest; the others in full runs.
QUICK = [(mode, way) for mode in ("medvram", "lowvram-half") for way in ("copy_", "a new Parameter")]


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        pytest.param(MODES[mode], way, id=f"{mode}-{way}", marks=[pytest.mark.slow] * ((mode, way) not in QUICK))
        for mode in MODES
        for way in WAYS
    ],
)
def test_a_lora_written_in_the_forward(
    mode: ModeRequest, way: str, rig: MakeRig, copies: DelayedCopies, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, controller = rig(LDM)
    before = state_of(host.components())
    lora = Lora((layer for part in host.components() for layer in part.module.modules()), WAYS[way]).patch(monkeypatch)

    def images() -> list[torch.Tensor]:
        made = []
        for lora.wanted in SEQUENCE:
            made.append(host.generate(2))
        for lora.wanted in SEQUENCE[:2]:  # and in mid-job, at each step another
            made.append(host.generate(6, at_step=lambda step: setattr(lora, "wanted", SEQUENCE[step])))
        lora.wanted = ()
        return [*made, host.generate(2)]

    expected = images()
    assert torch.equal(expected[0], expected[-1])
    assert not torch.equal(expected[0], expected[1])
    controller.request(mode)
    with device.guard():
        found = images()
    assert [torch.equal(*pair) for pair in zip(found, expected)] == [True] * len(expected)
    assert copies.hazards == []
    controller.request(ModeRequest())
    lora.remove()
    assert differences(before, state_of(host.components())) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_lora_that_changes_with_the_mode(
    way: str, rig: MakeRig, copies: DelayedCopies, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at the same step boundaries, in one job."""
    host, controller = rig(LDM)
    before = state_of(host.components())
    lora = Lora((layer for part in host.components() for layer in part.module.modules()), WAYS[way]).patch(monkeypatch)
    walk = [*MODES.values(), ModeRequest(), *reversed(MODES.values())]

    def change(step: int) -> None:
        lora.wanted = SEQUENCE[step % len(SEQUENCE)]
        if switching:
            controller.request(walk[step], scope="job")

    switching = False
    expected = host.generate(len(walk), at_step=change)
    lora.wanted = ()
    again = host.generate(2)
    switching = True
    with device.guard():
        assert torch.equal(host.generate(len(walk), at_step=change), expected)
        switching, lora.wanted = False, ()
        assert torch.equal(host.generate(2), again)
    assert copies.hazards == []
    assert host.faults == []
    lora.remove()
    controller.request(ModeRequest())
    assert differences(before, state_of(host.components())) == []


@every_mode
def test_a_lora_in_a_block_that_is_called_twice(
    mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    """The copy for the second visit, or for the next call, has started before the first visit changes the weights."""
    host, controller = rig(BLOCKS)
    denoiser = host.module("denoiser")
    visits: list[int] = []

    class Late(Lora):
        def apply(self, layer: nn.Module) -> None:
            visits.append(1)
            if len(visits) % 5 == 0:  # at some visits only, be it the first or the second of a call
                super().apply(layer)

        def restore(self) -> None:
            self.wanted = ()
            for layer in self._layers:
                super().apply(layer)

    denoiser.route = lambda call: (0, 1, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 0, 7)

    def images() -> list[torch.Tensor]:
        visits.clear()
        lora = Late(denoiser.modules())
        with pytest.MonkeyPatch.context() as patch:
            lora.patch(patch)
            made = [host.generate(3) for lora.wanted in SEQUENCE]
        with device.host_at_work():
            lora.restore()
        return made

    expected = images()
    controller.request(mode)
    with device.guard():
        found = images()
    assert [torch.equal(*pair) for pair in zip(found, expected)] == [True] * len(expected)
    assert not all(torch.equal(image, expected[0]) for image in expected)
    assert copies.hazards == []


# --------------------------------------------------------------------------------------------------------------- at a boundary

Undo = Callable[[], None]


def put(weight: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        weight.copy_(value)


def written_in_place(layer: nn.Linear) -> Undo:
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.mul_(1.5)
    return lambda: put(layer.weight, before)


def added_in_place(layer: nn.Linear) -> Undo:
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    with torch.no_grad():
        layer.weight += 0.25
        layer.bias += 0.25

    def undo() -> None:
        put(layer.weight, before[0])
        put(layer.bias, before[1])

    return undo


def data_set(layer: nn.Linear) -> Undo:
    before = layer.weight.detach().clone()
    layer.weight.data = layer.weight.data * 1.5
    return lambda: setattr(layer.weight, "data", before)


def data_written(layer: nn.Linear) -> Undo:
    before = layer.weight.detach().clone()
    layer.weight.data.mul_(1.5)
    return lambda: put(layer.weight.data, before)


def data_turned_round(layer: nn.Linear) -> Undo:
    """The same numbers in another order."""
    before = layer.weight.detach().clone()
    layer.weight.data.copy_(before.flip(0))
    return lambda: put(layer.weight.data, before)


def parameter_replaced(layer: nn.Linear) -> Undo:
    before = layer.weight
    layer.weight = nn.Parameter(layer.weight.detach() * 1.5)
    return lambda: setattr(layer, "weight", before)


def parameters_exchanged(layer: nn.Linear) -> Undo:
    """Two weights change places."""
    other = layer.partner
    layer.weight, other.weight = other.weight, layer.weight

    def undo() -> None:
        layer.weight, other.weight = other.weight, layer.weight

    return undo


def parameter_tied(layer: nn.Linear) -> Undo:
    """Two layers share one weight from here on; it is changed through one of them."""
    before, other = layer.weight, layer.partner
    layer.weight = other.weight
    with torch.no_grad():
        other.weight.mul_(2)

    def undo() -> None:
        layer.weight = before
        with torch.no_grad():
            other.weight.div_(2)

    return undo


def bias_taken_away(layer: nn.Linear) -> Undo:
    before = layer.bias
    layer.bias = None
    return lambda: setattr(layer, "bias", before)


def bias_added(layer: nn.Linear) -> Undo:
    """To a layer that had none, made where its weight is."""
    bare = layer.bare
    bare.bias = nn.Parameter(torch.full_like(bare.weight[0], 0.5))
    return lambda: setattr(bare, "bias", None)


def buffer_registered(layer: nn.Linear) -> Undo:
    layer.register_buffer("scale", torch.full_like(layer.weight[0], 0.5))
    handle = layer.register_forward_hook(lambda module, _args, out: out * module.scale)

    def undo() -> None:
        handle.remove()
        del layer.scale

    return undo


def cast_there_and_back(layer: nn.Linear) -> Undo:
    """Rounded to bfloat16."""
    before = copy.deepcopy(layer.state_dict())
    layer.to(torch.bfloat16)
    layer.to(torch.float32)

    def undo() -> None:
        layer.load_state_dict(before)

    return undo


def cast(layer: nn.Linear) -> Undo:
    """To another dtype, and it stays so."""
    layer.to(torch.float64)
    handles = [
        layer.register_forward_pre_hook(lambda module, args: (args[0].to(module.weight.dtype),)),
        layer.register_forward_hook(lambda _module, _args, out: out.float()),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()
        layer.to(torch.float32)

    return undo


def moved_to_the_device(layer: nn.Linear) -> Undo:
    layer.weight.data = layer.weight.data.clone()  # what .to(device) does where the device is another
    return lambda: None


def state_loaded(layer: nn.Linear) -> Undo:
    before = copy.deepcopy(layer.state_dict())
    layer.load_state_dict({key: tensor * 1.5 for key, tensor in before.items()})

    def undo() -> None:
        layer.load_state_dict(before)

    return undo


def state_assigned(layer: nn.Linear) -> Undo:
    before = dict(layer._parameters)
    layer.load_state_dict({key: tensor * 1.5 for key, tensor in layer.state_dict().items()}, assign=True)
    return lambda: layer._parameters.update(before)


def strides_changed(layer: nn.Linear) -> Undo:
    layer.weight.data = layer.weight.data.t().contiguous().t()
    return lambda: setattr(layer.weight, "data", layer.weight.data.contiguous())


def made_an_inference_tensor(layer: nn.Linear) -> Undo:
    before = layer.weight
    with torch.inference_mode():
        layer.weight = nn.Parameter(before * 1.5, requires_grad=False)
    return lambda: setattr(layer, "weight", before)


CHANGES: dict[str, Callable[[Any], Undo]] = {
    change.__name__: change
    for change in (
        *(
            written_in_place,
            added_in_place,
            data_set,
            data_written,
            data_turned_round,
            parameter_replaced,
            parameters_exchanged,
        ),
        *(parameter_tied, bias_taken_away, bias_added, buffer_registered, cast_there_and_back, cast, moved_to_the_device),
        *(state_loaded, state_assigned, strides_changed, made_an_inference_tensor),
    )
}
#: A write through `.data` leaves no trace, and while a job runs the copy of the next call's first blocks has started before it.
UNSEEN = ("data_written", "data_turned_round")


class Bare(nn.Module):
    """A block with a layer that has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(x))


def prepared(rig: MakeRig) -> tuple[FakeHost, Any, nn.Linear]:
    """A host whose first block's layer knows a partner in a later block and a layer without a bias, neither as a child."""
    host, controller = rig(BLOCKS)
    denoiser = host.module("denoiser")
    torch.manual_seed(3)
    denoiser.blocks[6] = Bare()
    layer = denoiser.blocks[0].inner
    object.__setattr__(layer, "partner", denoiser.blocks[5].inner)
    object.__setattr__(layer, "bare", denoiser.blocks[6].layer)
    return host, controller, layer


@every_mode
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_jobs(name: str, mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice) -> None:
    host, controller, layer = prepared(rig)
    before = state_of(host.components())
    unchanged = host.generate(2)
    undo = CHANGES[name](layer)
    expected = host.generate(2)
    undo()
    controller.request(mode)
    with device.guard():
        assert torch.equal(host.generate(2), unchanged)
        with device.host_at_work():
            undo = CHANGES[name](layer)
        assert torch.equal(host.generate(2), expected)
        assert torch.equal(host.generate(2), expected)
        with device.host_at_work():
            undo()
        assert torch.equal(host.generate(2), unchanged)
    assert copies.hazards == []
    controller.request(ModeRequest())
    assert differences(before, state_of(host.components())) == []


@every_mode
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_mid_job(
    name: str, mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice, request: pytest.FixtureRequest
) -> None:
    if name in UNSEEN and mode == MODES["lowvram"]:
        request.applymarker(pytest.mark.xfail(strict=True, reason="a write through .data leaves no trace"))
    host, controller, layer = prepared(rig)
    before = state_of(host.components())
    undo: list[Undo] = []

    def change(step: int) -> None:
        with device.host_at_work():
            if step == 2:
                undo.append(CHANGES[name](layer))
            elif step == 4:
                undo.pop()()

    expected = host.generate(6, at_step=change)
    assert expected.isfinite().all()
    controller.request(mode)
    with device.guard():
        found = host.generate(6, at_step=change)
    controller.request(ModeRequest())
    assert copies.hazards == []
    assert torch.equal(found, expected)
    assert differences(before, state_of(host.components())) == []


@pytest.mark.parametrize(
    "mode", [MODES["lowvram-half"], *(pytest.param(mode, marks=pytest.mark.slow) for mode in OTHERS)], ids=str
)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_outlives_its_mode(
    name: str, mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    host, controller, layer = prepared(rig)
    before = state_of(host.components())
    undo = CHANGES[name](layer)
    expected = host.generate(2)
    undo()
    for leaving in (ModeRequest(), *MODES.values()):
        controller.request(mode)
        undo = CHANGES[name](layer)
        controller.request(leaving)
        with device.guard():
            assert torch.equal(host.generate(2), expected)
        controller.request(ModeRequest())
        assert torch.equal(host.generate(2), expected)
        undo()
        assert differences(before, state_of(host.components())) == []
    assert copies.hazards == []


# ------------------------------------------------------------------------------------------------------------ other components


@every_mode
def test_case_b6_and_vae_swap_by_loading_weights_into_it(
    mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    host, controller = rig(LDM)
    vae = host.module("vae")
    own, other = copy.deepcopy(vae.state_dict()), LDM.make(9)[2].module.state_dict()

    def images() -> list[torch.Tensor]:
        made = []
        for state in (own, other, own):
            vae.load_state_dict(state)
            vae.to(torch.float64)
            vae.to(torch.float32)
            made.append(host.generate(2))
            made.append(host.generate(2, at_step=lambda step: vae.load_state_dict((own, other)[step])))
        return made

    expected = images()
    controller.request(mode)
    with device.guard():
        assert all(torch.equal(*pair) for pair in zip(images(), expected))


@every_mode
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_a_component_exchanged_as_an_object(
    told: bool, mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    """The VAE's module itself: with the events that belong to it, and by a host that says nothing."""
    host, controller = rig(LDM)
    own = host.components()
    other = (*own[:2], LDM.make(9)[2])
    before = state_of(own), state_of(other)
    images = [host.generate(2)]
    host.components_now = other
    images.append(host.generate(2))
    host.components_now = own
    controller.request(mode)
    for components in (other, own):
        if told:
            host.exchange(components)
        else:
            host.components_now = components
        assert torch.equal(host.generate(2), images[components is other])
        controller.request(ModeRequest("full"))
        controller.request(mode)
        assert torch.equal(host.generate(2), images[components is other])
        assert controller.effective() == mode
    controller.request(ModeRequest())
    assert differences(before[0], state_of(own)) == []
    assert differences(before[1], state_of(other)) == []


@every_mode
def test_case_b6_an_extension_in_the_denoiser_is_not_ignored(
    mode: ModeRequest, rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    """In the manner of ControlNet's adapters: the denoiser's forward replaced, and a block called by itself."""
    host, controller = rig(LDM)
    denoiser = host.module("denoiser")
    plain = host.generate(3)
    original, hint = denoiser.forward, torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)

    def adapted(x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        emb = denoiser.time_embed(torch.cos(timesteps[:, None] * torch.linspace(0, 1, 32)))
        first = denoiser.input_blocks[0](x + hint, emb, context)
        return original(x + 0.1 * first.mean(), timesteps, context)

    denoiser.forward = adapted
    expected = host.generate(3)
    assert not torch.equal(expected, plain)
    controller.request(mode)
    with device.guard():
        assert torch.equal(host.generate(3), expected)
        assert torch.equal(host.generate(3), expected)
        del denoiser.forward
        assert torch.equal(host.generate(3), plain)
