"""Everything of a model that a mode must leave as it found it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from vram_pilot.hosts.base import Component

State = dict[str, Any]


def state_of(components: Iterable[Component]) -> State:
    """Hooks in their order, attributes, and each tensor: which object, where, how and what."""
    found: State = {"autocast cache": torch.is_autocast_cache_enabled()}
    for component in components:
        for name, module in component.module.named_modules(remove_duplicate=False):
            path = f"{component.name}.{name}"
            found[f"{path} attributes"] = sorted(vars(module))
            for key, value in vars(module).items():
                if "hooks" in key:
                    found[f"{path} {key}"] = list(value.items())
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                found[f"{path}.{key}"] = None if tensor is None else _tensor(tensor)
    return found


def differences(before: State, after: State) -> list[str]:
    return [
        f"{key}: {before.get(key)} became {after.get(key)}"
        for key in [*before, *(after.keys() - before.keys())]
        if not _same(before.get(key), after.get(key))
    ]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bytes, so that NaN equals NaN and 0 is not -0."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    what = (id(tensor), type(tensor), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    return (*what, raw(tensor))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, tuple) and isinstance(two, tuple):
        return one[:-1] == two[:-1] and torch.equal(one[-1], two[-1])
    return bool(one == two)


def add_hooks_of_others(module: nn.Module) -> None:
    """What other extensions leave on a model: hooks of every kind, some of them set in front."""
    for child in (module, *list(module.children())[:2]):
        child.register_forward_pre_hook(lambda _module, _args: None)
        child.register_forward_pre_hook(lambda _module, _args, _kwargs: None, with_kwargs=True, prepend=True)
        child.register_forward_hook(lambda _module, _args, _out: None)
        child.register_forward_hook(lambda _module, _args, _kwargs, _out: None, with_kwargs=True, always_call=True)
        child.register_state_dict_pre_hook(lambda *_: None)
        child.register_load_state_dict_post_hook(lambda *_: None)
