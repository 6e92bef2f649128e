"""Streamed weights and captured calls together: copies are part of the graph, and every result is the resident eager one's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.lora import WAYS, Lora
from tests.fakes.models import LDM, Family
from tests.fakes.state import differences, state_of
from tests.unit.graphs.conftest import CPU, FAMILIES, Rig, component
from vram_pilot.streaming.copies import PlainCopies
from vram_pilot.streaming.executor import StreamExecutor
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.split import size_of, split
from vram_pilot.streaming.units import Unit

ARENA = 1_500_000


class Streamed(Rig):
    """share: the part of the weights that stays."""

    def __init__(self, family: Family = LDM, share: float = 0.0, pinned: bool = True) -> None:
        root = family.make(0)[1].module
        self.expected = [Rig(root, family).call(seed) for seed in range(8)]
        self.before = state_of(component(Rig(root)))
        memory = HostMemory(0.5)
        self.units, self.held = split(root)
        for unit in [*self.units, *self.held]:
            unit.take_home(memory, CPU)
            assert unit.home is not None
            unit.home.pinned = pinned  # there is nothing to pin for here
        budget = int(size_of(root) * share)
        self.executor = StreamExecutor(root, self.units, self.held, budget, ARENA, PlainCopies(CPU))
        self.executor.install(bracket_root=False)
        super().__init__(root, family, surroundings=self.executor)
        self.runner.install()

    def close(self) -> None:
        self.runner.remove()
        self.executor.remove()
        for unit in [*self.units, *self.held]:
            unit.release(CPU)
        assert [line for line in differences(self.before, state_of(component(self))) if "autocast" in line] == []
        assert torch.is_autocast_cache_enabled()


@pytest.fixture
def streamed() -> Iterator[Streamed]:
    made = Streamed()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@FAMILIES
def test_captured_and_eager_calls_give_the_resident_result_at_every_budget(family: Family, share: float) -> None:
    rig = Streamed(family, share)
    for seed in range(8):
        assert torch.equal(rig.call(seed), rig.expected[seed])
    assert rig.runner.replays >= 3
    assert rig.runner.mismatches == 0
    assert torch.equal(rig.call(1, tokens=16), rig.call(1, tokens=16))  # an eager call between replays
    assert torch.equal(rig.call(2), rig.expected[2])
    rig.close()
    assert torch.equal(rig.call(3), rig.expected[3])


def test_a_replay_copies_every_streamed_byte(streamed: Streamed) -> None:
    streamed.trusted()
    before, misses = streamed.executor.streamed_bytes, streamed.executor.misses
    streamed.call(1)
    whole = sum(unit.size_bytes for unit in streamed.units)
    assert streamed.executor.streamed_bytes - before == whole
    assert streamed.executor.misses == misses


def test_weights_that_are_not_page_locked_are_not_captured() -> None:
    rig = Streamed(pinned=False)
    for seed in range(4):
        assert torch.equal(rig.call(seed), rig.expected[seed])
    assert rig.runner.reason == "some weights are in memory that is not page-locked"
    rig.close()


@pytest.mark.slow
@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_networks_come_and_go(share: float, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A, none, B, A: written into the weights inside the forward, by the first call that wants them."""
    resident = LDM.make(0)[1].module
    reference = Lora(resident.modules(), write).patch(monkeypatch)
    expected: dict[tuple[str, ...], list[torch.Tensor]] = {}
    for names in (("A",), (), ("B",)):
        reference.wanted = names
        expected[names] = [Rig(resident).call(seed) for seed in range(5)]
    reference.remove()
    monkeypatch.undo()

    rig = Streamed(share=share)
    lora = Lora(rig.root.modules(), write).patch(monkeypatch)
    monkeypatch.setattr("vram_pilot.graphs.rehearsal.Trace.stranger", lambda _self: None)  # it is the WebUI's own here
    for names in (("A",), (), ("B",), ("A",)):
        lora.wanted = rig.state = names
        rig.runner.job_started()
        for seed in range(5):
            assert torch.equal(rig.call(seed), expected[names][seed]), (names, seed)
    rig.trusted()
    lora.remove()
    monkeypatch.undo()
    rig.close()


def failing_at(rig: Rig, times: int) -> Callable[[], None]:
    """The module in the middle fails so often; the answer ends it."""
    left = [times]

    def fail(_module: nn.Module, _args: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("broken off")

    handle = rig.root.middle_block[1].register_forward_pre_hook(fail)
    return handle.remove


@pytest.mark.slow
def test_an_exception_in_a_block_leaves_the_next_call_right(streamed: Streamed) -> None:
    for calls in range(7):
        for seed in range(calls):
            assert torch.equal(streamed.call(seed), streamed.expected[seed])
        end = failing_at(streamed, 1)
        with pytest.raises(RuntimeError, match="broken off"):
            streamed.call()
        end()
        assert torch.is_autocast_cache_enabled()
    assert torch.equal(streamed.call(1), streamed.expected[1])
    assert torch.equal(streamed.trusted(), streamed.expected[0])


def test_a_capture_that_fails_in_mid_call_leaves_no_trace(streamed: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    record, unit = streamed.graphs.record, streamed.units[len(streamed.units) // 2]
    broken: list[str] = []

    def fail(_views: Any) -> None:
        broken.append(unit.name)
        monkeypatch.setattr(unit, "bind", Unit.bind.__get__(unit))
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def breaking(work: Callable[[], Any]) -> Any:
        monkeypatch.setattr(unit, "bind", fail)
        return record(work)

    monkeypatch.setattr(streamed.graphs, "record", breaking)
    for seed in range(6):
        assert torch.equal(streamed.call(seed), streamed.expected[seed])
    assert broken == [unit.name]
    assert "previous error during capture" in (streamed.runner.reason or "")
    monkeypatch.undo()
    streamed.runner.job_started()
    assert torch.equal(streamed.trusted(), streamed.expected[0])


def test_a_job_that_ends_between_replays_leaves_the_next_one_right(streamed: Streamed) -> None:
    streamed.trusted()
    for _ in range(3):
        streamed.executor.settle()
        streamed.executor.forget_ahead()
        streamed.runner.job_started()
        for seed in range(4):
            assert torch.equal(streamed.call(seed), streamed.expected[seed])
    assert streamed.runner.captures == 1


def test_weights_changed_at_home_reach_the_next_call(streamed: Streamed) -> None:
    streamed.trusted()
    for index in (0, len(streamed.units) // 2, -1):
        streamed.units[index].weights[0].tensor.data.mul_(1.0)  # nothing changed, so that the graph may stay
    before = streamed.runner.replays
    assert torch.equal(streamed.call(), streamed.expected[0])
    assert streamed.runner.replays == before + 1
    for index in (0, len(streamed.units) // 2, -1):
        streamed.units[index].weights[0].tensor.mul_(1.5)
    reference = LDM.make(0)[1].module
    reference.load_state_dict(streamed.root.state_dict())
    for seed in range(5):
        assert torch.equal(streamed.call(seed), Rig(reference).call(seed))
    assert streamed.runner.captures == 2
