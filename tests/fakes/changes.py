"""What hosts and extensions do to a layer's weights from outside. Each change answers how it is undone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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
