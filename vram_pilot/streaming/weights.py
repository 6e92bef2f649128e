"""What a weight is: a parameter or buffer of a live module, and the memory that it lies in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

#: Names the memory that a tensor starts at.
StorageKey = tuple[torch.device, int]


@dataclass(eq=False)
class Weight:
    """One entry of a module's `_parameters` or `_buffers`. launch: its device before us."""

    module: nn.Module
    key: str
    is_parameter: bool
    tensor: torch.Tensor
    launch: torch.device

    def current(self) -> torch.Tensor | None:
        """What the module holds under this name now; the host may have put another tensor there."""
        registry = self.module._parameters if self.is_parameter else self.module._buffers
        return registry.get(self.key)

    def replacement(self) -> torch.Tensor | None:
        """The tensor that the host put in place of ours. None when it is ours still, is gone, or cannot be moved: then it stays
        where the host put it."""
        current = self.current()
        return None if current is None or current is self.tensor or obstacle(current) is not None else current

    @property
    def name(self) -> tuple[int, str]:
        return id(self.module), self.key

    @property
    def size_bytes(self) -> int:
        return span_bytes(self.tensor)


class Place(NamedTuple):
    """Where a weight lies in a flat buffer, and in which form. offset, size: bytes."""

    offset: int
    size: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The weight within `flat` (uint8)."""
        return flat[self.offset : self.offset + self.size].view(self.dtype).as_strided(self.shape, self.strides)


def storage_key(tensor: torch.Tensor) -> StorageKey:
    """Two weights with one key are the same weight."""
    return tensor.device, tensor.data_ptr()


def span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last in memory: fewer than numel() in an expanded tensor, more in one with holes."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def span_bytes(tensor: torch.Tensor) -> int:
    return span(tensor) * tensor.element_size()


def flat_span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the tensor's first element to its last, in one dimension: copying it keeps every stride."""
    return tensor.detach().as_strided((span(tensor),), (1,))


def own_weights(module: nn.Module) -> Iterator[Weight]:
    """The weights that lie directly in `module`, not in its children; empty tensors are left out."""
    for is_parameter, registry in ((True, module._parameters), (False, module._buffers)):
        for key, tensor in registry.items():
            if tensor is not None and holds_memory(tensor):
                yield Weight(module, key, is_parameter, tensor, tensor.device)


def all_weights(module: nn.Module) -> list[Weight]:
    """Every weight below `module`. A tensor that is registered in two places is there twice: either may be replaced alone."""
    return [weight for child in module.modules() for weight in own_weights(child)]


def size_of(module: nn.Module) -> int:
    """Bytes of the weights below `module`, each piece of memory once."""
    return sum({storage_key(weight.tensor): weight.size_bytes for weight in all_weights(module)}.values())


def holds_memory(tensor: torch.Tensor) -> bool:
    """Whether there is anything to be moved. A parameter that is not made yet counts, so that it is refused by name."""
    return nn.parameter.is_lazy(tensor) or tensor.numel() > 0


def obstacle(tensor: torch.Tensor) -> str | None:
    """Why this tensor cannot be moved by us, None when it can."""
    if nn.parameter.is_lazy(tensor):
        return "the model's weights are not made yet"
    if type(tensor) not in (torch.Tensor, nn.Parameter) and type(tensor).__name__ != "Buffer":
        return f"weights of the class {type(tensor).__name__} are moved by their own library"
    if tensor.is_meta:
        return "the model's weights are not loaded"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"weights with the layout {tensor.layout} cannot be moved as plain bytes"
    if tensor.is_conj() or tensor.is_neg():
        return "weights that are a lazy conjugate or negative of others cannot be moved as plain bytes"
    if tensor.is_inference():
        return "weights made under inference_mode hide changes to them"
    return None


def overlap(weights: Iterable[Weight]) -> bool:
    """Whether two of them share memory without being the same weight."""
    found = {
        (str(device), start, start + weight.size_bytes, weight.tensor.dtype, weight.tensor.shape, weight.tensor.stride())
        for weight in weights
        for device, start in [storage_key(weight.tensor)]
    }
    ranges = sorted(key[:3] for key in found)
    return any(one[0] == two[0] and two[1] < one[2] for one, two in pairwise(ranges))
