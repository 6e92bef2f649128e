"""The memory that a captured call reads its inputs from."""

from __future__ import annotations

from typing import Any

import torch

from vram_pilot.graphs.comparison import same_bits
from vram_pilot.graphs.signature import NotCapturable, map_tensors, tensors_of


class StaticInputs:
    """Tensors with the shapes, strides and contents of those in `value`, in memory of their own; `value` is nested as given.

    A dimension that is only repeated (stride 0) is repeated here, too. Raises NotCapturable for a tensor whose elements lie
    over each other in another way.
    """

    def __init__(self, value: Any) -> None:
        self._places: list[tuple[torch.Tensor, list[int]]] = []  # what is written to, and its repeated dimensions
        self.value = map_tensors(value, self._make)

    def fill(self, value: Any) -> None:
        """Takes over the contents of `value`, which has the signature of the first one. On the current stream."""
        for (place, repeated), given in zip(self._places, tensors_of(value)):
            place.copy_(_once(given, repeated) if repeated else given)

    def holds(self, value: Any) -> bool:
        """Whether the contents of `value` are those here. Waits for the device."""
        return all(same_bits(mine, given) for mine, given in zip(tensors_of(self.value), tensors_of(value)))

    def _make(self, given: torch.Tensor) -> torch.Tensor:
        repeated = [number for number, stride in enumerate(given.stride()) if stride == 0 and given.shape[number] > 1]
        once = _once(given.detach(), repeated)
        if _overlaps(once):
            raise NotCapturable("an input's elements lie over each other in memory")
        place = torch.empty_strided(once.shape, once.stride(), dtype=given.dtype, device=given.device)
        place.copy_(once)
        self._places.append((place, repeated))
        return place.expand(given.shape) if repeated else place


def _once(tensor: torch.Tensor, repeated: list[int]) -> torch.Tensor:
    for number in repeated:
        tensor = tensor.narrow(number, 0, 1)
    return tensor


def _overlaps(tensor: torch.Tensor) -> bool:
    end = 0  # elements from the first to the last, of the dimensions with smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride <= end:
                return tensor.numel() > 0
            end += (size - 1) * stride
    return False
