"""The streamed denoiser gives the same image whatever order its blocks take, and whenever its copies arrive."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from tests.fakes.blocks import BLOCKS, WIDTH, Block, Blocks
from tests.fakes.copies import DelayedCopies
from tests.fakes.device import FakeDevice
from tests.fakes.models import DIFFUSERS, LDM, Family
from tests.fakes.state import differences, raw, state_of
from tests.unit.streaming.conftest import Rig
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.units import Unit

MakeRig = Callable[..., Rig]
LOWVRAM = ModeRequest("lowvram", 0)
BLOCK_BYTES = 526336  # of tests.fakes.blocks.Block, in whole pages of a unit


def streamed(host: object, controller: object) -> int:
    """Units of the denoiser that pass through the arena."""
    return len(controller.bank.executor._streamed)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------- order of events


@pytest.mark.parametrize(
    "family", [LDM, pytest.param(DIFFUSERS, marks=pytest.mark.slow), BLOCKS], ids=lambda family: family.name
)
@pytest.mark.parametrize("room", [1, 1_500_000, 100_000_000])
@pytest.mark.parametrize("budget", [0, 2])
def test_no_copy_is_used_before_it_is_done_and_no_place_before_it_is_free(
    family: Family,
    room: int,
    budget: int,
    rig: MakeRig,
    copies: DelayedCopies,
    arena: Callable[[int], None],
    device: FakeDevice,
) -> None:
    host, controller = rig(family)
    expected = [host.generate(4, seed=seed) for seed in (1, 2)]
    before = state_of(host.components())
    arena(room)
    controller.request(ModeRequest("lowvram", budget))
    copies.watch(host.module("denoiser"))
    with device.guard():
        for seed, image in zip((1, 2), expected):
            assert torch.equal(host.generate(4, seed=seed), image)
            assert copies.in_flight == 0, "a job leaves nothing in flight"
    assert copies.hazards == []
    controller.request(ModeRequest())
    for module in host.module("denoiser").modules():
        module._forward_hooks.clear()
    assert differences(before, state_of(host.components())) == []


def test_the_engine_of_the_tests_would_notice() -> None:
    """Late copies are poison until they are waited for, early ones are hazards, torn ones stay poison."""
    engine, layer = DelayedCopies(), nn.Linear(8, 8, bias=False)
    flat, source = torch.zeros(256, dtype=torch.uint8), torch.ones(256, dtype=torch.uint8)
    layer.weight.data = flat.view(torch.float32).view(8, 8)
    engine.watch(layer)
    freed = engine.mark()
    layer(torch.ones(8))
    ready = engine.upload(flat, source, freed)
    assert len(engine.hazards) == 1
    assert layer(torch.ones(8)).isnan().all()
    engine.wait(ready)
    assert torch.equal(flat, source)
    ready = engine.upload(flat, source, engine.mark())
    source.zero_()
    engine.wait(ready)
    assert layer(torch.ones(8)).isnan().all()
    assert len(engine.hazards) == 1


# ---------------------------------------------------------------------------------------------------------------- other orders


def alternately(*routes: Sequence[int]) -> Callable[[int], Sequence[int]]:
    return lambda call: routes[call % len(routes)]


ROUTES = {
    "reversed": alternately(range(7, -1, -1)),
    "turns round at each call": alternately(range(8), range(7, -1, -1)),
    "skips blocks": alternately(range(8), (0, 1, 7), (0, 1, 7)),  # as DeepCache does
    "only one": alternately((3,)),
    "none": alternately(()),
    "one twice in a row": alternately((0, 1, 1, 2, 3, 4, 5, 6, 7)),
    "one twice": alternately((0, 1, 2, 3, 0, 4, 5, 6, 7)),
    "everything twice": alternately((*range(8), *range(8))),
    "never the same": lambda call: list(itertools.permutations(range(8)))[call * 1237],
    "backwards and on": alternately((4, 3, 2, 1, 0, 5, 6, 7)),
}


@pytest.mark.parametrize("room", [1, 3 * BLOCK_BYTES, 100 * BLOCK_BYTES])
@pytest.mark.parametrize("name", ROUTES)
def test_case_c3_blocks_in_another_order(
    name: str, room: int, rig: MakeRig, copies: DelayedCopies, arena: Callable[[int], None], device: FakeDevice
) -> None:
    host, controller = rig()
    denoiser = host.module("denoiser")
    assert isinstance(denoiser, Blocks)
    denoiser.route = ROUTES[name]
    expected = host.generate(7)
    arena(room)
    controller.request(LOWVRAM)
    copies.watch(denoiser)
    for _ in range(2):
        denoiser.calls = 0
        with device.guard():
            assert torch.equal(host.generate(7), expected)
    assert copies.hazards == []


def test_case_c3_an_unexpected_order_counts_as_misses_and_is_learnt(rig: MakeRig, copies: DelayedCopies) -> None:
    host, controller = rig()
    denoiser = host.module("denoiser")
    assert isinstance(denoiser, Blocks)
    controller.request(LOWVRAM)
    host.generate(4)
    assert controller.report().prefetch_misses == 0
    denoiser.route = alternately((0, 5, 1, 2, 6, 7))
    host.generate(1)
    surprised = controller.report().prefetch_misses
    assert surprised > 0
    host.generate(6)
    learnt = controller.report().prefetch_misses
    host.generate(6)
    assert controller.report().prefetch_misses == learnt, "an order that stays is expected from then on"


class Within(nn.Module):
    """A block that calls another of its siblings inside its own forward, or itself."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.own = Block()
        self.other = [block]  # not a child

    def forward(self, x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        x = self.own(x)
        if depth < 2:
            x = self(x, depth + 1) if self.other[0] is self else self.other[0](x)
        return self.own(x)


@pytest.mark.parametrize("inside", ["a sibling", "itself"])
def test_a_block_inside_another_or_itself(inside: str, rig: MakeRig, copies: DelayedCopies, device: FakeDevice) -> None:
    host, controller = rig()
    denoiser = host.module("denoiser")
    assert isinstance(denoiser, Blocks)
    denoiser.blocks[2] = Within(denoiser.blocks[6])
    if inside == "itself":
        denoiser.blocks[2].other = [denoiser.blocks[2]]
    expected = host.generate(4)
    controller.request(LOWVRAM)
    copies.watch(denoiser)
    with device.guard():
        assert torch.equal(host.generate(4), expected)
        assert torch.equal(host.generate(4), expected)
    assert copies.hazards == []


def test_the_denoiser_inside_itself(rig: MakeRig, copies: DelayedCopies, device: FakeDevice) -> None:
    """As guidance of another extension does it: from a hook in the middle of a call."""
    host, controller = rig()
    denoiser = host.module("denoiser")
    inner: list[torch.Tensor] = []

    def again(_module: nn.Module, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor | None:
        if inner:
            return None
        inner.append(args[0])
        with torch.no_grad():
            return out + 0.1 * denoiser(inner[0]).mean()

    expected = None
    for mode in (ModeRequest(), LOWVRAM):
        controller.request(mode)
        inner.clear()
        handle = denoiser.blocks[3].inner.register_forward_hook(again)
        with device.guard():
            images = [host.generate(2), host.generate(2)]
        handle.remove()
        assert expected is None or all(torch.equal(*pair) for pair in zip(images, expected))
        expected = images


def test_a_block_called_by_itself_between_calls(rig: MakeRig, copies: DelayedCopies, device: FakeDevice) -> None:
    host, controller = rig()
    block = host.module("denoiser").blocks[4]
    probe = torch.linspace(-1, 1, WIDTH)[None]
    expected = host.generate(3)
    with torch.no_grad():
        expected_alone = block(probe)
    controller.request(LOWVRAM)

    def alone(_step: int) -> None:
        assert torch.equal(block(probe), expected_alone)
        assert torch.is_autocast_cache_enabled(), "nothing of ours holds outside the denoiser's call"

    with device.guard(), torch.no_grad():
        alone(0)
        assert torch.equal(host.generate(3, at_step=alone), expected)
    assert torch.is_autocast_cache_enabled()
    assert copies.in_flight == 0


# ------------------------------------------------------------------------------------------------------------------ exceptions


class Stop(BaseException):
    """As hosts raise it to break a job off: not an Exception, so that torch runs no hook behind it."""


@pytest.mark.parametrize("kind", [ValueError, Stop, KeyboardInterrupt])
@pytest.mark.parametrize("where", [0, 4, 7])
def test_an_exception_in_a_block(
    kind: type[BaseException], where: int, rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    host, controller = rig()
    expected = host.generate(3)
    controller.request(LOWVRAM)
    host.generate(3)
    block = host.module("denoiser").blocks[where].outer

    def fail(*_: object) -> None:
        raise kind("in the block")

    handle = block.register_forward_pre_hook(fail)
    with pytest.raises(kind):
        host.generate(3)
    handle.remove()
    assert torch.is_autocast_cache_enabled()
    assert copies.in_flight == 0
    assert all(not device.holds(tensor) for tensor in block.parameters()), "no block stays bound to the arena"
    with device.guard():
        assert torch.equal(host.generate(3), expected)


@pytest.mark.parametrize("kind", [ValueError, Stop])
def test_an_exception_that_the_denoiser_catches_itself(
    kind: type[BaseException], rig: MakeRig, copies: DelayedCopies, device: FakeDevice
) -> None:
    host, controller = rig()
    denoiser = host.module("denoiser")
    whole = denoiser.forward

    def survives(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            denoiser.blocks[2](x[:, :3])  # of a wrong shape
        with contextlib.suppress(TypeError, kind):
            denoiser.blocks[3](x, kind)
        return whole(x)

    denoiser.forward = survives
    fails = denoiser.blocks[3].register_forward_pre_hook(_raise_when_asked, with_kwargs=False)
    expected = host.generate(3)
    controller.request(LOWVRAM)
    copies.watch(denoiser)
    with device.guard():
        for _ in range(3):
            assert torch.equal(host.generate(3), expected)
    assert copies.hazards == []
    fails.remove()


def _raise_when_asked(_module: nn.Module, args: tuple[object, ...]) -> None:
    if len(args) > 1:
        raise args[1]()  # type: ignore[operator]


# ---------------------------------------------------------------------------------------------------- modules that come and go


def test_a_block_exchanged_added_or_taken_away_while_streaming(rig: MakeRig, copies: DelayedCopies, device: FakeDevice) -> None:
    host, controller = rig()
    denoiser = host.module("denoiser")
    assert isinstance(denoiser, Blocks)
    original = list(denoiser.blocks)
    torch.manual_seed(5)
    newcomer, wrapper = Block(), nn.Sequential(original[1], nn.Linear(WIDTH, WIDTH))

    def change(step: int) -> None:
        if step == 1:
            denoiser.blocks[5] = newcomer
        elif step == 2:
            denoiser.blocks[1] = wrapper
        elif step == 3:
            denoiser.blocks.append(newcomer)
            denoiser.route = lambda call: (0, 1, 2, 8, 4, 5)
        elif step == 4:
            del denoiser.blocks[8]
            denoiser.blocks[1], denoiser.blocks[5] = original[1], original[5]
            denoiser.route = lambda call: range(8)

    expected = host.generate(6, at_step=change)
    before = state_of(host.components())
    controller.request(LOWVRAM)
    with device.guard():
        assert torch.equal(host.generate(6, at_step=change), expected)
        denoiser.blocks[5] = newcomer
    controller.request(ModeRequest("lowvram", 1))  # takes stock anew
    with device.guard():
        host.generate(2)
    assert all(not device.holds(tensor) for tensor in newcomer.parameters()) or controller.report().resident_bytes
    controller.request(ModeRequest())
    denoiser.blocks[5] = original[5]
    assert differences(before, state_of(host.components())) == []


# -------------------------------------------------------------------------------------------------------------------- autocast


@pytest.mark.parametrize("mode", [LOWVRAM, ModeRequest("lowvram", 1), ModeRequest("medvram"), ModeRequest("full")], ids=str)
def test_autocast_does_not_remember_casts_of_weights_that_have_gone(
    mode: ModeRequest, rig: MakeRig, device: FakeDevice
) -> None:
    """Autocast keeps a cast by the Parameter's identity as long as the outermost context lasts: across jobs here."""
    host, controller = rig(LDM)
    weight = host.module("denoiser").input_blocks[0][0].weight
    assert weight.requires_grad and weight.dtype == torch.float32
    images = []
    for chosen in (ModeRequest(), mode):
        controller.request(chosen)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            first = host.generate(2)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            images.append((first, host.generate(2)))
            weight.mul_(2)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            images[-1] += (host.generate(2),)
        with torch.no_grad():
            weight.div_(2)
        assert torch.is_autocast_cache_enabled()
    assert all(torch.equal(*pair) for pair in zip(*images))
    assert not torch.equal(images[0][1], images[0][2])


def test_streaming_uses_fresh_weights_within_one_autocast(rig: MakeRig) -> None:
    host, controller = rig(LDM)
    weight = host.module("denoiser").input_blocks[0][0].weight
    controller.request(LOWVRAM)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        first = host.generate(2)
        weight.mul_(2)
        second = host.generate(2)
        weight.div_(2)
        third = host.generate(2)
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


# ---------------------------------------------------------------------------------------------------------------------- stress


def test_case_c2_checksums_after_200_steps(rig: MakeRig, copies: DelayedCopies, arena: Callable[[int], None]) -> None:
    host, controller = rig()
    before = [raw(tensor) for tensor in host.module("denoiser").parameters()]
    expected = host.generate(200)
    arena(3 * BLOCK_BYTES)
    controller.request(LOWVRAM)
    copies.watch(host.module("denoiser"))
    assert torch.equal(host.generate(200), expected)
    assert copies.hazards == []
    assert controller.report().streamed_bytes >= 200 * 7 * BLOCK_BYTES
    assert all(torch.equal(raw(tensor), was) for tensor, was in zip(host.module("denoiser").parameters(), before))
    controller.request(ModeRequest())
    assert all(torch.equal(raw(tensor), was) for tensor, was in zip(host.module("denoiser").parameters(), before))


@pytest.mark.parametrize("at", range(8))
def test_planning_anew_that_fails_half_way_costs_no_image(
    at: int, rig: MakeRig, copies: DelayedCopies, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is full at the moment when the blocks are seen to take another order."""
    host, controller = rig()
    denoiser = host.module("denoiser")
    assert isinstance(denoiser, Blocks)
    denoiser.route = ROUTES["reversed"]
    expected = host.generate(5)
    controller.request(ModeRequest("lowvram", 2))
    load, left = Unit.load, [at]

    def sometimes(unit: Unit, target: torch.device) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        load(unit, target)

    with monkeypatch.context() as patch, device.guard():
        patch.setattr(Unit, "load", sometimes)
        assert torch.equal(host.generate(5), expected)
    with device.guard():
        assert torch.equal(host.generate(5), expected)
    assert controller.effective() == ModeRequest("lowvram", 2)
    assert copies.hazards == []
