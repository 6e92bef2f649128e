"""Every kind of weight moves and comes back as it was, and what cannot be moved is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.blocks import BLOCKS, WIDTH
from tests.fakes.copies import DelayedCopies
from tests.fakes.device import FakeDevice, weights_of
from tests.fakes.host import FakeHost
from tests.fakes.state import differences, raw, state_of
from tests.unit.streaming.conftest import Rig
from vram_pilot.errors import RefusedError
from vram_pilot.hosts.base import Component
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.units import Unit, fingerprint
from vram_pilot.streaming.weights import all_weights

MakeRig = Callable[..., Rig]
CPU = torch.device("cpu")
LEAN = [ModeRequest("full"), ModeRequest("medvram"), ModeRequest("lowvram", 0), ModeRequest("lowvram", 99)]

# ------------------------------------------------------------------------------------------------------------ kinds of tensors


def everything() -> nn.Module:
    """Weights of every dtype, stride and size that a module may hold."""
    module = nn.Module()
    torch.manual_seed(0)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        module.register_parameter("a_" + str(dtype)[6:], nn.Parameter(torch.randn(5, 7).to(dtype)))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        module.register_buffer("a_" + str(dtype)[6:], torch.randn(5, 7).to(dtype))
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        module.register_buffer("a_" + str(dtype)[6:], torch.randint(0, 2, (3, 5)).to(dtype))
    module.register_buffer("complex", torch.randn(3, 3, dtype=torch.complex64))
    module.register_buffer("nothing", None)
    module.register_buffer("empty", torch.empty(0, 4))
    module.register_buffer("scalar", torch.tensor(3.5))
    module.register_buffer("passing", torch.tensor([1, 2]), persistent=False)
    module.register_buffer("expanded", torch.randn(1, 3).expand(4, 3))
    module.register_buffer("wide", torch.randn(()).expand(4, 4))
    module.register_buffer("with_holes", torch.randn(6, 8)[:, :3])
    module.register_buffer("every_second", torch.arange(10.0)[1::2])
    module.register_parameter("frozen", nn.Parameter(torch.randn(4), requires_grad=False))
    module.register_parameter("transposed", nn.Parameter(torch.randn(4, 6).t()))
    module.register_parameter("channels_last", nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)))
    module.register_parameter("nan", nn.Parameter(torch.tensor([float("nan"), -0.0, float("inf")])))
    return module


def parts(module: nn.Module) -> tuple[Component, ...]:
    return (Component("part", "other", module),)


def test_every_kind_of_weight_is_the_same_at_home_away_and_afterwards() -> None:
    module, memory = everything(), HostMemory(0.5)
    before = state_of(parts(module))
    content = {
        name: (raw(tensor), tensor.stride(), tensor.dtype) for name, tensor in module._buffers.items() if tensor is not None
    }
    unit = Unit("everything", module, all_weights(module))
    for move in (
        lambda: unit.take_home(memory, CPU),
        lambda: unit.load(CPU),
        lambda: unit.drop(),
        lambda: unit.go_home(),
        lambda: unit.load(CPU),
        lambda: unit.release(),
    ):
        move()
        for name, (data, strides, dtype) in content.items():
            tensor = module._buffers[name]
            assert tensor is not None
            assert (tensor.stride(), tensor.dtype) == (strides, dtype), name
            assert torch.equal(raw(tensor), data), name
    assert differences(before, state_of(parts(module))) == []
    assert memory.pageable_bytes == 0


def test_every_kind_of_weight_may_be_changed_where_it_is() -> None:
    module, memory = everything(), HostMemory(0.5)
    unit = Unit("everything", module, all_weights(module))
    unit.take_home(memory, CPU)
    unit.load(CPU)
    with torch.no_grad():
        for tensor in weights_of(module):
            if (
                tensor.is_floating_point()
                and tensor.element_size() > 1
                and 0 not in tensor.stride()
                and not tensor.isnan().any()
            ):
                tensor.mul_(2)
        module.scalar.add_(1)
    expected = copy.deepcopy({name: raw(tensor) for name, tensor in module.named_parameters()})
    assert unit.drop() > 0
    unit.release()
    assert all(torch.equal(raw(tensor), expected[name]) for name, tensor in module.named_parameters())
    assert module.scalar == 8.0


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.mul_(2),
        lambda data: data.copy_(data.flip(0)),
        lambda data: data.copy_(data.flip(1)),
        lambda data: data.copy_(data.roll(2, 1)),
        lambda data: data.copy_(data[torch.randperm(len(data), generator=torch.Generator().manual_seed(1))]),
        lambda data: data.neg_(),
        lambda data: data[0, 0].add_(1e-3),
        lambda data: data.view(-1)[-1:].add_(1e-3),
    ],
)
def test_a_write_past_the_version_counter_changes_the_fingerprint(edit: Callable[[torch.Tensor], Any]) -> None:
    module = nn.Linear(64, 64)
    unit = Unit("", module, all_weights(module))
    unit.take_home(HostMemory(0.5), CPU)
    unit.load(CPU)
    assert unit.drop() == 0
    unit.load(CPU)
    edit(module.weight.data)
    expected = module.weight.detach().clone()
    assert unit.drop() > 0
    assert torch.equal(module.weight, expected)


def test_the_fingerprint_of_nothing() -> None:
    assert torch.equal(fingerprint(torch.empty(0, dtype=torch.uint8)), torch.zeros(2, dtype=torch.int64))


def test_a_bias_that_comes_and_goes_is_taken_along() -> None:
    module, memory = nn.Linear(8, 8, bias=False), HostMemory(0.5)
    unit = Unit("", module, all_weights(module))
    unit.take_home(memory, CPU)
    unit.load(CPU)
    module.bias = nn.Parameter(torch.ones(8))
    assert unit.drop() > 0
    assert module.bias.data_ptr() == unit.home_views[1].data_ptr()
    module.bias = None
    unit.load(CPU)
    unit.drop()
    module.bias = nn.Parameter(torch.full((8,), 2.0))
    unit.go_home()
    unit.release()
    assert torch.equal(module.bias, torch.full((8,), 2.0))
    assert memory.pageable_bytes == 0


# -------------------------------------------------------------------------------------------------------------------- failures


class Broken(Exception):
    pass


@contextmanager
def copies_fail(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """The copy of a tensor fails, after so many have gone well."""
    left, copy_ = [after], torch.Tensor.copy_

    def sometimes(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if left[0] == 0:
            raise Broken
        left[0] -= 1
        return copy_(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", sometimes)
        yield


@pytest.mark.parametrize("step", ["take_home", "load", "drop", "go_home", "release"])
@pytest.mark.parametrize("after", range(5))
def test_a_move_that_fails_leaves_the_weights_as_they_were(step: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, memory = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), HostMemory(0.5)
    identity = [id(tensor) for tensor in module.parameters()]
    unit = Unit("", module, all_weights(module))

    def changed() -> None:
        with torch.no_grad():
            for tensor in module.parameters():
                tensor.add_(1).sub_(1)

    if step != "take_home":
        unit.take_home(memory, CPU)
    if step in ("drop", "release"):
        unit.load(CPU)
    if step == "go_home":
        unit.bind(unit.views(unit.home.flat.clone()))  # type: ignore[union-attr]
    changed()
    expected = {name: raw(tensor) for name, tensor in module.named_parameters()}
    arguments = {"take_home": (memory, CPU), "load": (CPU,)}.get(step, ())
    try:
        with copies_fail(monkeypatch, after):
            getattr(unit, step)(*arguments)
    except Broken:
        assert all(torch.equal(raw(tensor), expected[name]) for name, tensor in module.named_parameters())
        getattr(unit, step)(*arguments)  # and it can be done over again
    assert all(torch.equal(raw(tensor), expected[name]) for name, tensor in module.named_parameters())
    unit.release()
    assert [id(tensor) for tensor in module.parameters()] == identity
    assert all(torch.equal(raw(tensor), expected[name]) for name, tensor in module.named_parameters())
    assert memory.pageable_bytes == 0


# ------------------------------------------------------------------------------------------------------------------------ ties


def tied_in_one_block(host: FakeHost) -> None:
    block = host.module("denoiser").blocks[2]
    block.outer.weight = block.inner.weight


def tied_in_two_blocks(host: FakeHost) -> None:
    blocks = host.module("denoiser").blocks
    blocks[2].outer.weight = blocks[5].outer.weight


def one_storage_in_two_blocks(host: FakeHost) -> None:
    blocks = host.module("denoiser").blocks
    blocks[2].outer.weight.data = blocks[5].outer.weight.data


def one_block_in_two_places(host: FakeHost) -> None:
    blocks = host.module("denoiser").blocks
    blocks[2] = blocks[5]


def tied_with_the_root(host: FakeHost) -> None:
    denoiser = host.module("denoiser")
    denoiser.alias = denoiser.blocks[4].inner.bias
    denoiser.register_forward_pre_hook(lambda module, args: (args[0] + module.alias,))


def tied_between_components(host: FakeHost) -> None:
    host.module("vae").weight = nn.Parameter(torch.randn(8, WIDTH))
    host.module("text_encoder").bias = host.module("denoiser").blocks[1].inner.bias


def one_storage_in_two_components(host: FakeHost) -> None:
    host.module("text_encoder").bias.data = host.module("denoiser").blocks[1].inner.bias.data


def a_component_inside_another(host: FakeHost) -> None:
    host.module("denoiser").blocks[3].register_module("encoder", host.module("text_encoder"))


def slices_of_one_buffer(host: FakeHost) -> None:
    """As some loaders do it: every weight of a block lies in one flat tensor."""
    block = host.module("denoiser").blocks[2]
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in block.parameters()])
    start = 0
    for tensor in block.parameters():
        tensor.data = flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()


def parameters_in_a_list(host: FakeHost) -> None:
    """A list of parameters is never called, so nothing brackets their use."""
    denoiser = host.module("denoiser")
    denoiser.extra = nn.ParameterList([torch.randn(1, WIDTH) for _ in range(3)])
    denoiser.register_forward_pre_hook(lambda module, args: (args[0] + module.extra[1],))


TIES = {
    tie.__name__: tie
    for tie in (
        *(tied_in_one_block, tied_in_two_blocks, one_storage_in_two_blocks, one_block_in_two_places, tied_with_the_root),
        *(tied_between_components, one_storage_in_two_components, a_component_inside_another, slices_of_one_buffer),
        parameters_in_a_list,
    )
}


@pytest.mark.parametrize("name", TIES)
def test_weights_that_are_used_in_several_places(name: str, rig: MakeRig, copies: DelayedCopies, device: FakeDevice) -> None:
    host, controller = rig(BLOCKS)
    TIES[name](host)
    before = state_of(host.components())
    block = host.module("denoiser").blocks[5]
    plain = host.generate(3)

    def change(factor: float) -> None:
        with torch.no_grad():
            block.outer.weight.mul_(factor)
            host.module("denoiser").blocks[1].inner.bias.mul_(factor)

    change(2)
    changed = host.generate(3)
    change(0.5)
    assert not torch.equal(plain, changed)
    for mode in [*LEAN, ModeRequest(), LEAN[2]]:
        controller.request(mode)
        assert controller.effective() == mode
        with device.guard():
            assert torch.equal(host.generate(3), plain), mode
            with device.host_at_work():
                change(2)
            assert torch.equal(host.generate(3), changed), mode
            with device.host_at_work():
                change(0.5)
            assert torch.equal(host.generate(3), plain), mode
        if mode.mode != "as-launched":
            assert device.bytes_of(host.module("denoiser")) <= _allowed(controller, mode), "and they count"
    assert copies.hazards == []
    controller.request(ModeRequest())
    assert differences(before, state_of(host.components())) == []


def _allowed(controller: Any, mode: ModeRequest) -> int:
    report = controller.report()
    if mode.mode != "lowvram":
        return 2**60
    return int(report.resident_bytes + report.slot_bytes)


# -------------------------------------------------------------------------------------------------------------------- refusals


class Quantised(torch.Tensor):
    """As a library for quantised weights has it."""


def a_subclass(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Quantised), requires_grad=False)


def on_meta(layer: nn.Linear) -> None:
    layer.to("meta")


def not_made_yet(layer: nn.Linear) -> None:
    layer.weight = nn.UninitializedParameter()


def sparse(layer: nn.Linear) -> None:
    layer.register_buffer("mask", torch.eye(4).to_sparse())


def made_in_inference_mode(layer: nn.Linear) -> None:
    with torch.inference_mode():
        layer.weight = nn.Parameter(layer.weight.detach().clone())


def half_over_another(layer: nn.Linear) -> None:
    base = torch.randn(300)
    layer.register_buffer("one", base[:200])
    layer.register_buffer("two", base[100:])


def within_another(layer: nn.Linear) -> None:
    base = torch.randn(300)
    layer.register_buffer("one", base)
    layer.register_buffer("two", base[100:110])


def in_another_dtype(layer: nn.Linear) -> None:
    base = torch.randn(300)
    layer.register_buffer("one", base)
    layer.register_buffer("two", base.view(torch.int32))


def in_another_shape(layer: nn.Linear) -> None:
    layer.register_buffer("flipped", layer.weight.detach().t())


def conjugated(layer: nn.Linear) -> None:
    layer.register_buffer("phase", torch.randn(4, dtype=torch.complex64).conj())


REFUSED = {
    a_subclass: "Quantised",
    on_meta: "not loaded",
    not_made_yet: "not made yet",
    sparse: "sparse",
    made_in_inference_mode: "inference_mode",
    half_over_another: "lie over each other",
    within_another: "lie over each other",
    in_another_dtype: "lie over each other",
    in_another_shape: "lie over each other",
    conjugated: "conjugate",
}


@pytest.mark.parametrize("role", ["text_encoder", "denoiser", "vae"])
@pytest.mark.parametrize("spoil", REFUSED, ids=lambda spoil: spoil.__name__)
def test_what_cannot_be_moved_is_refused_by_name(spoil: Callable[[nn.Linear], None], role: str, rig: MakeRig) -> None:
    host, controller = rig(BLOCKS)
    layer = next(module for module in host.module(role).modules() if isinstance(module, nn.Linear))
    spoil(layer)
    hooks = {id(module): dict(module._forward_hooks) for part in host.components() for module in part.module.modules()}
    for mode in LEAN:
        with pytest.raises(RefusedError) as refusal:
            controller.request(mode)
        assert REFUSED[spoil] in str(refusal.value)
        assert role in str(refusal.value)
    assert controller.effective() == controller.standing() == ModeRequest()
    assert host.taken_over is None
    assert hooks == {id(module): dict(module._forward_hooks) for part in host.components() for module in part.module.modules()}


def test_neighbours_in_one_buffer_are_not_mistaken_for_one_another(rig: MakeRig) -> None:
    """Offsets count elements: half the elements of twice the size begin at another address."""
    host, controller = rig(BLOCKS)
    layer = host.module("denoiser").blocks[0].inner
    base = torch.randn(1024)
    layer.register_buffer("whole", base[128:256])
    layer.register_buffer("part", base.view(torch.float16)[128:256])
    before = state_of(host.components())
    expected = host.generate(2)
    for mode in LEAN:
        controller.request(mode)
        assert torch.equal(host.generate(2), expected)
    controller.request(ModeRequest())
    assert differences(before, state_of(host.components())) == []


# -------------------------------------------------------------------------------------------------------------- inference mode


def test_switching_under_inference_mode_leaves_ordinary_weights(rig: MakeRig, copies: DelayedCopies) -> None:
    host, controller = rig(BLOCKS)
    before = state_of(host.components())
    expected = host.generate(len(LEAN) + 1)
    with torch.inference_mode():
        found = host.generate(
            len(LEAN) + 1, at_step=lambda step: controller.request(LEAN[step], scope="standing") if step < len(LEAN) else None
        )
    assert torch.equal(found, expected)
    assert controller.effective() == LEAN[-1]
    layer = host.module("denoiser").blocks[0].inner
    assert not any(tensor.is_inference() for part in host.components() for tensor in weights_of(part.module))
    with torch.no_grad():
        layer.weight.mul_(2).div_(2)
    for mode in [*LEAN, ModeRequest()]:
        with torch.inference_mode():
            controller.request(mode)
            host.generate(1)
        with torch.no_grad():
            layer.weight.mul_(2).div_(2)
        assert torch.equal(host.generate(len(LEAN) + 1), expected)
    assert differences(before, state_of(host.components())) == []
