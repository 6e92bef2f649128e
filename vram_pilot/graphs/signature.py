"""What a call of the denoiser is given, as a key: everything that is not a tensor's content."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

_PLAIN = frozenset((bool, int, str, bytes, type(None), torch.dtype, torch.device))


class NotCapturable(Exception):
    """Why a call cannot be captured or replayed. The text is shown to the user."""


def signature(value: Any, device_type: str = "cuda", what: str = "an input") -> Hashable:
    """Shape, strides, dtype and device of tensors, plain values themselves, and how they are nested.

    Raises NotCapturable for anything else, since nothing is known of what such an object would change. what: how it is called
    then.
    """
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.device.type != device_type:
            raise NotCapturable(f"{what} lies in host memory")
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise NotCapturable(f"{what} is no plain tensor")
        return (value.shape, value.stride(), value.dtype, value.device)
    if kind in _PLAIN:
        return (kind, value)
    if kind is float:
        return (kind, repr(value))  # 0.0 and -0.0 are two, and NaN is one
    if kind is tuple or kind is list:
        return (kind, *[signature(item, device_type, what) for item in value])
    if kind is dict:
        return (kind, *[(*_name(key, what), signature(item, device_type, what)) for key, item in value.items()])
    raise NotCapturable(f"{what} is of the class {kind.__name__}")


def _name(key: Any, what: str) -> tuple[type, Any]:
    if type(key) not in (str, int):
        raise NotCapturable(f"{what} is a mapping with keys of the class {type(key).__name__}")
    return type(key), key


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with each tensor in its lists, tuples and dicts exchanged. Other objects stay."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([map_tensors(item, change) for item in value])
    if kind is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return change(value) if isinstance(value, torch.Tensor) else value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in `value`, in order."""
    kind = type(value)
    if kind is tuple or kind is list:
        for item in value:
            yield from tensors_of(item)
    elif kind is dict:
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, torch.Tensor):
        yield value
