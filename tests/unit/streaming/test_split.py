"""Units bracket every use of their weights: nothing that is never called, or used elsewhere, becomes one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.fakes.models import DIFFUSERS, LDM, Family
from vram_pilot.streaming.split import LARGEST_BYTES, split
from vram_pilot.streaming.weights import all_weights, size_of, storage_key


class Reads(nn.Module):
    """Has a weight of its own, and multiplies by its child's without calling it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.inner.weight * self.scale


class Root(nn.Module):
    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        for number, child in enumerate(children):
            self.add_module(f"child{number}", child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def names(root: nn.Module) -> list[str]:
    return [unit.name for unit in split(root)[0]]


def held(root: nn.Module) -> set[tuple[int, str]]:
    return {weight.name for unit in split(root)[1] for weight in unit.weights}


BIG = 600  # a square layer of this width is larger than a mebibyte


def test_a_module_with_weights_of_its_own_is_never_divided() -> None:
    assert names(Root(Reads(BIG), Reads(BIG))) == ["child0", "child1"]


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(BIG, 4),
        nn.TransformerEncoderLayer(BIG, 4, BIG),
        nn.TransformerDecoderLayer(BIG, 4, BIG),
        nn.Sequential(nn.TransformerEncoderLayer(BIG, 4, BIG)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_torch_runs_without_calling_its_parts_is_never_divided(module: nn.Module) -> None:
    (name,) = names(Root(module))
    assert name in ("child0", "child0.0")


def test_what_is_never_called_itself_is_held_or_divided() -> None:
    lists = Root(
        nn.ModuleList([nn.Linear(BIG, BIG)]),
        nn.ModuleDict({"key": nn.Linear(BIG, BIG)}),
        nn.Sequential(nn.Linear(BIG, BIG), nn.ReLU()),
        nn.ParameterList([torch.ones(BIG, BIG)]),
        nn.ParameterDict({"key": torch.ones(BIG, BIG)}),
    )
    assert names(lists) == ["child0.0", "child1.key", "child2.0"]
    assert {name for _, name in held(lists)} == {"0", "key"}


def test_the_roots_own_weights_are_held() -> None:
    root = Root(nn.Linear(BIG, BIG))
    root.register_parameter("own", nn.Parameter(torch.ones(3)))
    root.register_buffer("mask", torch.ones(3))
    assert names(root) == ["child0"]
    assert held(root) == {(id(root), "own"), (id(root), "mask")}


def test_ties_between_units_are_held_and_ties_within_one_are_not() -> None:
    one, two, three = (nn.Linear(BIG, BIG) for _ in range(3))
    two.weight = one.weight
    pair = Reads(BIG)
    pair.inner.bias = pair.scale
    root = Root(one, two, three, pair)
    assert names(root) == ["child0", "child1", "child2", "child3"]
    assert held(root) == {(id(one), "weight"), (id(two), "weight")}


def test_a_module_in_two_places_is_held() -> None:
    shared = nn.Linear(BIG, BIG)
    root = Root(shared, nn.ModuleList([shared]), nn.Linear(BIG, BIG))
    assert names(root) == ["child2"]
    assert held(root) == {(id(shared), "weight"), (id(shared), "bias")}


def test_small_pieces_of_a_divided_module_are_held() -> None:
    root = Root(*(nn.Linear(BIG, BIG) for _ in range(3)), nn.LayerNorm(8))
    assert names(root) == ["child0", "child1", "child2"]
    assert len(held(root)) == 2


def test_a_model_without_parts_is_held_as_a_whole() -> None:
    assert split(nn.Linear(4, 4))[0] == []
    assert len(held(nn.Linear(4, 4))) == 2
    assert split(nn.Identity()) == ([], [])


@pytest.mark.parametrize("family", [LDM, DIFFUSERS], ids=lambda family: family.name)
def test_every_weight_is_in_exactly_one_place(family: Family) -> None:
    for component in family.make(0):
        check(component.module)


modules = st.recursive(
    st.sampled_from(["linear", "norm", "reads", "attention", "nothing"]),
    lambda inner: st.tuples(
        st.sampled_from(["list", "sequence", "root", "dictionary"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=10,
)


def build(plan: object, width: int = 300) -> nn.Module:
    if isinstance(plan, tuple):
        kind, inner = plan
        children = [build(part) for part in inner]
        if kind == "list":
            return nn.ModuleList(children)
        if kind == "sequence":
            return nn.Sequential(*children)
        if kind == "dictionary":
            return nn.ModuleDict({str(number): child for number, child in enumerate(children)})
        return Root(*children)
    return {
        "linear": lambda: nn.Linear(width, width),
        "norm": lambda: nn.LayerNorm(width),
        "reads": lambda: Reads(width),
        "attention": lambda: nn.MultiheadAttention(width, 2),
        "nothing": nn.Identity,
    }[str(plan)]()


@given(plan=st.lists(modules, min_size=1, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
def test_every_weight_of_any_tree_is_in_exactly_one_place(plan: list[object]) -> None:
    check(Root(*(build(part) for part in plan)))


def check(root: nn.Module) -> None:
    units, held_ = split(root)
    found = [weight.name for unit in [*units, *held_] for weight in unit.weights]
    assert len(found) == len(set(found))
    assert set(found) == {weight.name for weight in all_weights(root)}
    keys = [{storage_key(weight.tensor) for weight in unit.weights} for unit in [*units, *held_]]
    assert sum(map(len, keys)) == len(set().union(*keys)) if keys else True
    for unit in units:
        assert unit.module is not None
        assert type(unit.module).forward is not nn.Module.forward
        assert {id(weight.module) for weight in unit.weights} <= {id(module) for module in unit.module.modules()}
        divided = [child for child in unit.module.children() if size_of(child) > LARGEST_BYTES]
        assert not divided or any(True for _ in unit.module.parameters(recurse=False))
