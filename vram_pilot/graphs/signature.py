"""What a call of the denoiser is given, as a key: everything that is not a tensor's content."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


class NotCapturable(Exception):
    """Why a call cannot be captured or replayed. The text is shown to the user."""


def signature(value: Any) -> Hashable:
    """Shape, strides, dtype and device of tensors, plain values themselves, and how they are nested.

    Raises NotCapturable for anything else, since nothing is known of what such an object would change.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise NotCapturable(f"an input is of the class {type(value).__name__}")
        if value.device.type != "cuda":
            raise NotCapturable("an input lies in host memory")
        return ("tensor", tuple(value.shape), tuple(value.stride()), value.dtype, value.device, value.requires_grad)
    if isinstance(value, _PLAIN):
        return (type(value).__name__, value)
    if type(value) in (list, tuple):
        return (type(value).__name__, *(signature(item) for item in value))
    if type(value) is dict:
        return ("dict", *((str(key), signature(item)) for key, item in value.items()))
    raise NotCapturable(f"an input is of the class {type(value).__name__}")


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with each tensor in its lists, tuples and dicts exchanged. Other objects stay."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in `value`, in order."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, keep)
    return found
