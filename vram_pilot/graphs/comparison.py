"""What sets a captured call's result apart from an eager one's."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from vram_pilot.graphs.signature import signature, tensors_of


def difference_of(expected: Any, found: Any) -> str | None:
    """What the captured call got wrong, None when it is the same bit for bit. Waits for the device."""
    if _layout(expected) != _layout(found):
        return "the captured call gave a result of another form"
    pairs = list(zip(tensors_of(expected), tensors_of(found), strict=True))
    if all(same_bits(one, other) for one, other in pairs):
        return None
    error = max(_relative_error(one, other) for one, other in pairs)
    return f"the captured call gave another result (largest relative error {error:.1e})"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also where 0 is not -0, and where both are not a number."""
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _layout(result: Any) -> Hashable:
    first = next(tensors_of(result), None)
    return None if first is None else signature(result, first.device.type, "an output")


def _relative_error(expected: torch.Tensor, found: torch.Tensor) -> float:
    scale = expected.float().abs().max().item() or 1.0
    return float((expected.float() - found.float()).abs().max().item() / scale)
