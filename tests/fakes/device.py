"""A device for tests without one: weights count as on the device when they do not lie in a host copy, and a computation
with a weight in a host copy fails, as it would on a card."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vram_pilot.hosts.base import Component
from vram_pilot.streaming.pinned import HostBuffer, HostMemory

#: What may be done with a weight in a host copy: it is moved and looked at.
_MOVES = {
    "copy_",
    "view",
    "as_strided",
    "slice",
    "detach",
    "alias",
    "clone",
    "_to_copy",
    "set_",
    "t",
    "transpose",
    "empty_like",
    "equal",
}
_harmless: set[Any] = set()


class WrongDevice(AssertionError):
    """A computation read a weight in host memory."""


class FakeDevice:
    """Knows the host copies that exist. Made by the fixture `device`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home: dict[int, int] = {}
        self.guarding = True
        allocate = HostMemory.allocate

        def noted(memory: HostMemory, size_bytes: int, device: torch.device) -> HostBuffer:
            buffer = allocate(memory, size_bytes, device)
            address = buffer.flat.untyped_storage().data_ptr()
            self._home[address] = self._home.get(address, 0) + 1
            weakref.finalize(buffer, self._gone, address)
            return buffer

        monkeypatch.setattr(HostMemory, "allocate", noted)

    def _gone(self, address: int) -> None:
        self._home[address] -= 1
        if not self._home[address]:
            del self._home[address]

    def home_copies(self) -> int:
        return len(self._home)

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() not in self._home

    def bytes_of(self, module: nn.Module) -> int:
        """Device memory that the module's weights lie in, each storage once and whole."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in weights_of(module)
            if self.holds(tensor)
        }
        return sum(storages.values())

    def names_on(self, components: Iterable[Component]) -> set[str]:
        """The components of which some weight is on the device."""
        return {part.name for part in components if any(self.holds(tensor) for tensor in weights_of(part.module))}

    def guard(self) -> TorchDispatchMode:
        """While it is entered, computing with a weight in a host copy raises WrongDevice."""
        return _Guard(self)

    @contextlib.contextmanager
    def host_at_work(self) -> Iterator[None]:
        """The host computes with weights where it finds them, in main memory too."""
        self.guarding = False
        try:
            yield
        finally:
            self.guarding = True


class _Guard(TorchDispatchMode):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._device.guarding and func not in _harmless:
            if func._schema.name.removeprefix("aten::") in _MOVES:
                _harmless.add(func)
            else:
                self._look(func, (*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))

    def _look(self, func: Any, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, (list, tuple)):
                self._look(func, value)
            elif isinstance(value, torch.Tensor) and not self._device.holds(value):
                raise WrongDevice(f"{func} reads a weight in host memory")


def weights_of(module: nn.Module) -> Iterator[torch.Tensor]:
    for child in module.modules():
        for registry in (child._parameters, child._buffers):
            yield from (tensor for tensor in registry.values() if tensor is not None and tensor.numel())
