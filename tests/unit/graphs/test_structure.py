"""What the comparison of modules and weights sees beyond the changes that alter a result, and what it must not take for one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.graphs.conftest import Rig, known
from vram_pilot.graphs import weights as weights_module
from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.graphs.structure import Structure
from vram_pilot.graphs.trace import Trace
from vram_pilot.graphs.weights import WeightState


@pytest.fixture
def structure(rig: Rig) -> Structure:
    trace = Trace()
    with trace:
        rig.eager()
    return Structure(rig.root, trace)


def test_nothing_that_calls_do_counts_as_a_change(rig: Rig, structure: Structure) -> None:
    weights = WeightState(rig.root)
    for seed in range(2):
        rig.eager(seed)
        assert structure.same() and weights.same() and weights.in_place()


def test_hooks_elsewhere_are_no_change(rig: Rig, structure: Structure) -> None:
    other = nn.Linear(1, 1)
    for _ in range(3):
        handle = other.register_forward_hook(lambda *_: None)
        assert structure.same()
        handle.remove()
        assert structure.same()


def test_a_hook_exchanged_for_another_is_a_change(rig: Rig) -> None:
    handle = rig.root.out[0].register_forward_hook(lambda *_: None)
    structure = Structure(rig.root)
    assert structure.same()
    handle.remove()
    rig.root.out[0].register_forward_hook(lambda *_: None)
    assert not structure.same()


def test_a_hook_taken_away_is_a_change(rig: Rig) -> None:
    handle = rig.root.out[0].register_forward_pre_hook(lambda *_: None)
    structure = Structure(rig.root)
    handle.remove()
    assert not structure.same()


def test_training_is_an_attribute(rig: Rig, structure: Structure) -> None:
    rig.root.out[0].train()
    assert not structure.same()


def test_an_attribute_that_no_code_reads_is_no_change(rig: Rig, structure: Structure) -> None:
    everything = Structure(rig.root)
    rig.root.out[2].in_channels = 5  # Conv2d.forward asks its weight
    assert structure.same() and not everything.same()


def test_a_tensor_among_the_attributes_is_followed(rig: Rig) -> None:
    rig.root.out[0].table = torch.zeros(1)
    structure = Structure(rig.root)
    rig.root.out[0].table.add_(1)  # a graph reads the same memory
    assert structure.same()
    rig.root.out[0].table = torch.ones(1)
    assert not structure.same()


@pytest.mark.parametrize("value", [[torch.zeros(1)], {"a": (torch.zeros(1),)}, (1, [torch.zeros(2)])], ids=str)
def test_tensors_in_containers_are_refused(rig: Rig, value: Any) -> None:
    rig.root.out[0].tables = value
    with pytest.raises(NotCapturable, match=r"GroupNorm32\.tables holds tensors"):
        Structure(rig.root)


def test_an_attribute_of_an_attribute_is_seen(rig: Rig) -> None:
    class Processor:
        scale = 1.0

        def __init__(self) -> None:
            self.scales = [1.0]

    rig.root.out[0].processor = Processor()
    structure = Structure(rig.root)
    assert structure.same()
    rig.root.out[0].processor.scales[0] = 2.0
    assert not structure.same()
    rig.root.out[0].processor.scales[0] = 1.0
    assert structure.same()
    rig.root.out[0].processor.scale = 2.0
    assert not structure.same()


def test_a_function_that_a_class_gets_anew_is_seen() -> None:
    space = known("class A(nn.Module):\n    def forward(self, x):\n        return x\nclass B(A):\n    pass")
    root = nn.Sequential(space.B())
    trace = Trace()
    with trace:
        root(torch.zeros(1))
    structure = Structure(root, trace)
    assert structure.same()
    space.B.forward = lambda self, x: x + 1
    assert not structure.same()


def test_an_address_that_has_changed_is_seen_before_a_replay(rig: Rig) -> None:
    weights = WeightState(rig.root)
    rig.root.out[2].weight.data = rig.root.out[2].weight.data.clone()
    assert not weights.in_place()


def test_torch_s_own_comparison_of_addresses_is_used_where_there_is_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def equal(tensors: list[torch.Tensor], addresses: list[int], indices: list[int]) -> bool:
        asked.append((len(tensors), len(addresses), len(indices)))
        return all(tensors[index].data_ptr() == addresses[index] for index in indices)

    monkeypatch.setattr(weights_module, "_addresses_equal", equal)
    weights = WeightState(rig.root)
    assert weights.in_place()
    rig.root.out[2].weight.data = rig.root.out[2].weight.data.clone()
    assert not weights.in_place()
    assert len(set(asked)) == 1 and len(set(asked[0])) == 1


def test_weights_that_hide_their_changes_are_refused() -> None:
    with torch.inference_mode():
        root = nn.Linear(2, 2)
    with pytest.raises(NotCapturable, match="inference_mode hide changes"):
        WeightState(root)
