"""A unit: some modules' weights that travel together, in one flat buffer on the host and one on the device.

A weight is a parameter or buffer of a live module. Moving it never makes a new Parameter: only its `.data` is pointed elsewhere,
so optimisers, hooks and other extensions keep the object they hold. In-place changes by the host are noticed by the tensor's
version counter, replaced tensors by identity and address, and writes that bypass both (through `.data`) by a fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from vram_pilot.streaming.pinned import HostBuffer, HostMemory

ALIGNMENT = 256


@dataclass
class Weight:
    """One entry of a module's `_parameters` or `_buffers`. place: byte offset in the flat buffer; launch: its device before us."""

    module: nn.Module
    key: str
    is_parameter: bool
    tensor: torch.Tensor
    launch: torch.device
    place: int = 0

    def current(self) -> torch.Tensor | None:
        """What the module holds under this name now; the host may have put another tensor there."""
        registry = self.module._parameters if self.is_parameter else self.module._buffers
        return registry.get(self.key)

    @property
    def size_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def storage_key(tensor: torch.Tensor) -> tuple[int, int]:
    """Names the memory that a tensor starts at: two weights with one key are the same weight."""
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset()


def own_weights(module: nn.Module) -> Iterator[Weight]:
    """The weights that lie directly in `module`, not in its children; empty tensors are left out."""
    for is_parameter, registry in ((True, module._parameters), (False, module._buffers)):
        for key, tensor in registry.items():
            if tensor is not None and tensor.numel() > 0:
                yield Weight(module, key, is_parameter, tensor, tensor.device)


def obstacle(tensor: torch.Tensor) -> str | None:
    """Why this tensor cannot be moved by us, None when it can."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) and type(tensor).__name__ != "Buffer":
        return f"weights of the class {type(tensor).__name__} are moved by their own library"
    if tensor.is_meta:
        return "the model's weights are not loaded"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"weights with the layout {tensor.layout} cannot be moved as plain bytes"
    if tensor.is_inference():
        return "weights made under inference_mode hide changes to them"
    return None


class Unit:
    """One group of weights. States: *plain* (the host's own tensors, no host copy), *home* (bound to the host copy), *away* (bound
    to a device buffer; the host copy is the last known good state)."""

    def __init__(self, name: str, module: nn.Module | None, weights: Sequence[Weight]) -> None:
        self.name = name
        self.module = module  # its forward brackets the use of the weights; None: used at any time during a call
        self.weights = list(weights)
        self.home: HostBuffer | None = None
        self.home_views: list[torch.Tensor] = []
        self.bound: list[torch.Tensor] = []  # the views that the weights point to, [] when plain
        self._versions: list[int] = []
        self._fingerprint: torch.Tensor | None = None
        self.layout_id = 0
        self._lay_out()

    def _lay_out(self) -> None:
        offset, places = 0, dict[tuple[int, int], int]()
        for weight in self.weights:
            key = storage_key(weight.tensor)
            if key in places:  # tied within the unit
                weight.place = places[key]
                continue
            weight.place = places[key] = offset
            offset += (weight.size_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.size_bytes = offset
        self.layout_id += 1

    # ------------------------------------------------------------------------------------------------ binding

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The weights as views of `flat` (uint8, at least `size_bytes`), with their dtypes, shapes and, when dense, strides."""
        found = []
        for weight in self.weights:
            part = flat[weight.place : weight.place + weight.size_bytes].view(weight.tensor.dtype)
            found.append(part.as_strided(weight.tensor.shape, _dense_strides(weight.tensor)))
        return found

    def bind(self, views: list[torch.Tensor]) -> None:
        for weight, view in zip(self.weights, views):
            weight.tensor.data = view
        self.bound = views
        self._versions = [weight.tensor._version for weight in self.weights]

    def take_home(self, memory: HostMemory, device: torch.device) -> None:
        """Makes the host copy from the present tensors and binds to it. Waits for the device."""
        if self.home is None:
            self.adopt_replaced()
            self.home = memory.allocate(self.size_bytes, device)
            self.home_views = self.views(self.home.flat)
            self._copy_home(range(len(self.weights)))
        self.bind(self.home_views)

    def go_home(self) -> int:
        """Brings changes back and binds to the host copy. Answers the number of weights that had been changed; waits for the
        device only when there are any."""
        changed = self.changed()
        if changed:
            self.write_back(changed)
        self.bind(self.home_views)
        return len(changed)

    def changed(self) -> list[int]:
        """The weights that the host changed or replaced since they were bound."""
        found = []
        for index, (weight, view, version) in enumerate(zip(self.weights, self.bound, self._versions)):
            current = weight.current()
            if current is not weight.tensor or current._version != version or current.data_ptr() != view.data_ptr():
                found.append(index)
        return found

    def write_back(self, indices: Iterable[int]) -> None:
        """Copies the module's present tensors into the host copy; a new shape or dtype gives the unit a new layout."""
        if self.adopt_replaced():
            self._lay_out()
            self.home = HostBuffer(torch.empty(self.size_bytes, dtype=torch.uint8), pinned=False)
            self.home_views = self.views(self.home.flat)
            indices = range(len(self.weights))
        self._copy_home(indices)

    def adopt_replaced(self) -> bool:
        """Takes over the tensors that the host put in place of ours. True when one has another shape, stride or dtype."""
        other = False
        for weight, view in zip(self.weights, self.bound or [weight.tensor for weight in self.weights]):
            current = weight.current()
            if current is None:  # removed by the host; what we hold is of no use to anybody and stays where it is
                continue
            weight.tensor = current
            other = other or current.dtype != view.dtype or current.shape != view.shape
        return other

    def _copy_home(self, indices: Iterable[int]) -> None:
        waiting = None
        with torch.no_grad():
            for index in indices:
                tensor = self.weights[index].tensor
                if tensor.data_ptr() != self.home_views[index].data_ptr():
                    self.home_views[index].copy_(tensor.detach(), non_blocking=True)
                    waiting = tensor.device if tensor.device.type != "cpu" else waiting
        if waiting is not None and waiting.type == "cuda":
            torch.cuda.current_stream(waiting).synchronize()
        elif waiting is not None and waiting.type == "mps":
            torch.mps.synchronize()

    # ------------------------------------------------------------------------------------------------ whole-unit moves

    def load(self, device: torch.device) -> None:
        """Copies the host copy into a new device buffer, on the current stream, and binds to it."""
        assert self.home is not None
        flat = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
        flat.copy_(self.home.flat, non_blocking=True)
        self._fingerprint = fingerprint(flat)
        self.bind(self.views(flat))

    def loaded_flat(self) -> torch.Tensor | None:
        """The device buffer that the weights are bound to, None when they are at home or plain."""
        if not self.bound or self.bound is self.home_views:
            return None
        base = self.bound[0]
        return base.new_empty(0, dtype=torch.uint8).set_(base.untyped_storage(), 0, (self.size_bytes,), (1,))

    def drop(self) -> int:
        """Leaves the device: what the host changed is written back first, the rest is dropped. Answers the number changed."""
        flat = self.loaded_flat()
        if flat is None:
            return self.go_home()
        count = len(self.changed())
        # A write through `.data` passes by the version counter, but not by the sum of the bytes.
        if count or self._fingerprint is None or not torch.equal(self._fingerprint, fingerprint(flat)):
            self.write_back(range(len(self.weights)))
            count = count or len(self.weights)
        self._fingerprint = None
        self.bind(self.home_views)
        return count

    def release(self) -> None:
        """Back to tensors of the host's own, each on the device where it was launched; the host copy is given up."""
        if self.home is None:
            return
        changed = self.changed()
        if changed and self.bound is not self.home_views:
            self.adopt_replaced()
        made: dict[tuple[int, int], torch.Tensor] = {}
        for weight in self.weights:
            key = (weight.place, weight.size_bytes)
            if key not in made:
                made[key] = _own_copy(weight.tensor.data, weight.launch)
            weight.tensor.data = made[key]
        self.home, self.home_views, self.bound, self._versions = None, [], [], []


def fingerprint(flat: torch.Tensor) -> torch.Tensor:
    """A sum over the bytes' 64-bit words, as a 0-d tensor on their device: cheap, and any ordinary edit changes it."""
    whole = flat[: flat.numel() // 8 * 8].view(torch.int64)
    return whole.sum()


def _own_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    with torch.no_grad():
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return copy.copy_(tensor)


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides when its elements fill its memory without holes or overlap, else row-major ones."""
    strides: tuple[int, ...] = tuple(tensor.stride())
    expected = 1
    for size, stride in sorted(zip(tensor.shape, strides), key=lambda item: item[1]):
        if size == 1:
            continue
        if stride != expected:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        expected *= size
    return strides
