"""The denoiser's Python side, as far as its forward reads it: modules, classes, hooks and attributes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as of_torch
from torch.utils.hooks import RemovableHandle

from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.graphs.trace import Trace
from vram_pilot.graphs.watch import Watch

Rows = tuple[Any, list[dict[str, Any]], list[Any]]  # reads the attributes, of these objects, which were these


class Structure:
    """trace: what a call has run; without it every attribute counts, and no global name.

    Raises NotCapturable for an attribute whose content could change unseen. `same` takes tenths of a millisecond.
    """

    def __init__(self, root: nn.Module, trace: Trace | None = None) -> None:
        modules = list(root.modules())
        names = None if trace is None else trace.names()
        self._objects = [*modules, *_objects_in(modules, names)]
        self._classes = list(map(type, self._objects))
        registries = [module._modules for module in modules]
        self._childless = [registry for registry in registries if not registry]
        self._parents = [registry.values() for registry in registries if registry]  # live views
        self._children = list(chain.from_iterable(self._parents))
        self._hooks = [hooks for module in modules if module is not root for hooks in _hooks_of(module)]
        self._hooks += [of_torch._global_forward_pre_hooks, of_torch._global_forward_hooks]
        self._note_hooks()
        self._spaces: list[dict[str, Any]] = [item.__dict__ for item in self._objects]
        self._sizes = list(map(len, self._spaces))
        self._tensors: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._rows = self._read_attributes(root, names)
        self._watch = None if trace is None else Watch(trace, dict.fromkeys(self._classes))

    def same(self) -> bool:
        """Whether nothing has changed. May raise where something has: an attribute that is gone, or cannot be compared."""
        return (
            list(map(type, self._objects)) == self._classes
            and not any(self._childless)
            and list(chain.from_iterable(self._parents)) == self._children  # modules are equal to themselves only
            and self._same_hooks()
            and list(map(len, self._spaces)) == self._sizes
            and all(list(map(read, spaces)) == values for read, spaces, values in self._rows)
            and all(space[name] is tensor and tensor.data_ptr() == address for space, name, tensor, address in self._tensors)
            and (self._watch is None or self._watch.same())
        )

    # ------------------------------------------------------------------------------------------------ hooks

    def _note_hooks(self) -> None:
        self._handle_id = RemovableHandle.next_id  # counts every hook that is set on anything
        self._without = [hooks for hooks in self._hooks if not hooks]
        self._with = [(hooks, list(hooks.values())) for hooks in self._hooks if hooks]
        self._count = sum(len(hooks) for hooks, _ in self._with)

    def _same_hooks(self) -> bool:
        if any(self._without) or sum(len(hooks) for hooks, _ in self._with) != self._count:
            return False
        if RemovableHandle.next_id != self._handle_id:
            if any(list(hooks.values()) != before for hooks, before in self._with):
                return False
            self._handle_id = RemovableHandle.next_id
        return True

    # ------------------------------------------------------------------------------------------------ attributes

    def _read_attributes(self, root: nn.Module, names: frozenset[str] | None) -> list[Rows]:
        grouped: dict[tuple[str, ...], tuple[list[dict[str, Any]], list[Any]]] = {}
        for owner, space in zip(self._objects, self._spaces):
            keys = []
            for name, value in _counting(owner, names):
                if isinstance(value, torch.Tensor):
                    self._tensors.append((space, name, value, value.data_ptr()))
                elif _hides_tensors(value):
                    raise NotCapturable(f"{type(owner).__name__}.{name} holds tensors")
                elif owner is not root or name != "forward":  # which is ours
                    keys.append(name)
            if keys:
                spaces, values = grouped.setdefault(tuple(keys), ([], []))
                spaces.append(space)
                values.append(_kept(itemgetter(*keys)(space)))
        return [(itemgetter(*keys), spaces, values) for keys, (spaces, values) in grouped.items()]


def _hooks_of(module: nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    return module._forward_pre_hooks, module._forward_hooks


_BY_IDENTITY = (nn.Module, type, FunctionType, MethodType, ModuleType, torch.Tensor)


def _objects_in(modules: list[nn.Module], names: frozenset[str] | None) -> list[Any]:
    """The objects with attributes of their own that lie in attributes: an attention processor."""
    found: dict[int, Any] = {}
    for module in modules:
        for _, value in _counting(module, names):
            if type(getattr(value, "__dict__", None)) is dict and not isinstance(value, _BY_IDENTITY):
                found[id(value)] = value
    return list(found.values())


def _counting(owner: Any, names: frozenset[str] | None) -> Iterator[tuple[str, Any]]:
    """The attributes whose names the traced code mentions, without those that torch keeps for its own ends."""
    ignored = _registries() if isinstance(owner, nn.Module) else frozenset[str]()
    for name, value in vars(owner).items():
        if name not in ignored and (names is None or name in names):
            yield name, value


@functools.cache
def _registries() -> frozenset[str]:
    """The attributes that every module has for torch's own ends; but training counts."""
    return frozenset(vars(nn.Module())) - {"training"}


def _hides_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return False
    return any(isinstance(item, torch.Tensor) or _hides_tensors(item) for item in value)


def _kept(value: Any) -> Any:
    """A copy of what could be changed in place."""
    if type(value) in (list, tuple):
        return type(value)([_kept(item) for item in value])
    if type(value) is dict:
        return {key: _kept(item) for key, item in value.items()}
    return set(value) if type(value) is set else value
