"""What makes two calls the same, and in which memory a captured one finds its inputs."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from vram_pilot.graphs.inputs import StaticInputs
from vram_pilot.graphs.signature import NotCapturable, map_tensors, signature, tensors_of

Pair = namedtuple("Pair", "one two")


@dataclass
class Output:
    sample: torch.Tensor


class Sub(torch.Tensor):
    pass


def of(value: Any) -> Any:
    return signature(value, "cpu")


X = torch.zeros(2, 3)

DIFFERENT = [
    (X, torch.zeros(3, 2)),
    (X, torch.zeros(3, 2).t()),
    (X, X.double()),
    (X[:1], X[:1].expand(2, 3)),
    ((X, X), [X, X]),
    ((X, (X,)), ((X, X),)),
    ((X,), (X, None)),
    ({"a": X}, {"b": X}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1: X}, {"1": X}),
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ("1", 1),
    (None, False),
    (torch.float16, torch.float32),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=str)
def test_what_differs_has_another_signature(one: Any, other: Any) -> None:
    assert of(one) != of(other)
    assert hash(of(one)) == hash(of(one))


@pytest.mark.parametrize("value", [X, (X, [X, {"a": (1, "b", None)}]), float("nan"), {"scale": 0.5}], ids=str)
def test_contents_of_tensors_do_not_count(value: Any) -> None:
    assert of(value) == of(map_tensors(value, lambda tensor: tensor + 1))


def test_a_parameter_is_a_tensor() -> None:
    assert of(nn.Parameter(X)) == of(X)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Sub(), "an input is of the class Sub"),
        (Pair(X, X), "an input is of the class Pair"),
        (OrderedDict(a=X), "an input is of the class OrderedDict"),
        (Output(X), "an input is of the class Output"),
        (lambda: None, "an input is of the class function"),
        ([{"deep": {X}}], "an input is of the class set"),
        ({None: X}, "an input is a mapping with keys of the class NoneType"),
        (X.to_sparse(), "an input is no plain tensor"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "an input is no plain tensor"),
        (torch.zeros(2, device="meta"), "an input lies in host memory"),
    ],
)
def test_what_is_not_understood_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(NotCapturable) as caught:
        of(value)
    assert str(caught.value) == reason


def test_an_input_in_host_memory_is_refused_on_a_card() -> None:
    with pytest.raises(NotCapturable, match="an input lies in host memory"):
        signature((X, torch.tensor(3)))


def test_tensors_are_found_in_order_wherever_they_lie() -> None:
    value = ({"a": X, "b": [X + 1]}, 5, (X + 2, None))
    assert [int(tensor[0, 0]) for tensor in tensors_of(value)] == [0, 1, 2]
    changed = map_tensors(value, lambda tensor: tensor + 10)
    assert [int(tensor[0, 0]) for tensor in tensors_of(changed)] == [10, 11, 12]
    assert changed[1] == 5 and changed[2][1] is None


# ------------------------------------------------------------------------------------------------ static inputs

BASE = torch.arange(48.0).reshape(2, 4, 6)
LAYOUTS = {
    "plain": BASE,
    "transposed": BASE.transpose(0, 2),
    "channels last": torch.arange(96.0).reshape(2, 4, 3, 4).to(memory_format=torch.channels_last),
    "with gaps": BASE[:, :2, ::2],
    "from the middle": BASE[1:, 1:],
    "repeated": BASE[:1].expand(3, 4, 6),
    "repeated inside": BASE[:, :1].expand(2, 5, 6),
    "repeated of one": torch.ones(1).expand(4),
    "a view of another": BASE[0],
    "one number": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "integers": torch.arange(4),
    "truths": torch.tensor([True, False]),
}


@pytest.mark.parametrize("given", LAYOUTS.values(), ids=LAYOUTS)
def test_a_static_input_has_the_same_layout_and_follows_the_given_one(given: torch.Tensor) -> None:
    static = StaticInputs(((given,), {"x": given}))
    (mine,), keywords = static.value
    assert of(mine) == of(given) and of(keywords["x"]) == of(given)
    assert torch.equal(mine, given) and static.holds(((given,), {"x": given}))
    other = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype)
    other.as_strided((other.untyped_storage().nbytes() // other.element_size(),), (1,)).fill_(7)
    static.fill(((other,), {"x": other}))
    assert torch.equal(mine, other)
    assert static.holds(((other,), {"x": other})) and (not given.numel() or not static.holds(((given,), {"x": given})))


def test_a_static_input_shares_no_memory_with_the_given_one() -> None:
    given = torch.zeros(3)
    static = StaticInputs(((given, given), {}))
    given.fill_(5)
    assert [tensor.sum().item() for tensor in tensors_of(static.value)] == [0, 0]


def test_elements_that_lie_over_each_other_are_refused() -> None:
    with pytest.raises(NotCapturable, match="an input's elements lie over each other in memory"):
        StaticInputs(((torch.arange(6.0).as_strided((3, 3), (1, 1)),), {}))
    StaticInputs(((torch.arange(6.0).as_strided((0, 3), (1, 1)),), {}))
