"""Whether the denoiser's weights are the ones that a graph was captured with."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from vram_pilot.graphs.signature import NotCapturable

_version = attrgetter("_version")
#: One call for all addresses, where torch has it (not in builds without CUDA).
_addresses_equal = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


class WeightState:
    """Identity, version and address of every parameter and buffer.

    Raises NotCapturable for weights that do not tell. `in_place` is asked before a replay, since the graph reads those
    addresses; `same` may be asked while it runs.
    """

    def __init__(self, root: nn.Module) -> None:
        registries: list[dict[str, Any]] = [
            registry for module in root.modules() for registry in (module._parameters, module._buffers)
        ]
        self._empty = [registry for registry in registries if not registry]
        self._filled = [registry.values() for registry in registries if registry]  # live views
        self._entries = list(chain.from_iterable(self._filled))
        self._tensors = list(dict.fromkeys(entry for entry in self._entries if isinstance(entry, torch.Tensor)))
        if any(map(torch.Tensor.is_inference, self._tensors)):
            raise NotCapturable("weights made under inference_mode hide changes to them")
        self._versions = list(map(_version, self._tensors))
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        self._indices = list(range(len(self._tensors)))

    def in_place(self) -> bool:
        """Whether each tensor lies where it lay."""
        if _addresses_equal is not None:
            return bool(_addresses_equal(self._tensors, self._addresses, self._indices))
        return list(map(torch.Tensor.data_ptr, self._tensors)) == self._addresses

    def same(self) -> bool:
        """Whether each tensor is the one it was, where it was, and has not been written to."""
        entries = list(chain.from_iterable(self._filled))
        return (
            self.in_place()
            and list(map(_version, self._tensors)) == self._versions
            and not any(self._empty)
            and len(entries) == len(self._entries)
            and all(map(is_, entries, self._entries))
        )
