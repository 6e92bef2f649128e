"""A unit: some modules' weights that travel together, in one flat buffer on the host and one on the device.

Moving a weight never makes a new Parameter: only its `.data` is pointed elsewhere, so optimisers, hooks and other extensions
keep the object they hold. In-place changes by the host are noticed by the version counter, replaced and added tensors by
identity and address, and writes that bypass these (through `.data`) by a fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from vram_pilot.streaming.pinned import HostBuffer, HostMemory
from vram_pilot.streaming.weights import Place, Weight, flat_span, holds_memory, obstacle, own_weights, storage_key

ALIGNMENT = 256


class Unit:
    """One group of weights. States: *plain* (the host's own tensors, no host copy), *home* (bound to the host copy), *away*
    (bound to a device buffer; the host copy is the last known good state). A move that fails leaves the state before it."""

    def __init__(self, name: str, module: nn.Module | None, weights: Sequence[Weight]) -> None:
        self.name = name
        self.module = module  # its forward brackets the use of the weights; None: used at any time during a call
        self.weights = list(weights)
        self.places, self.size_bytes = lay_out(self.weights)
        self.layout_id = 0
        self.home: HostBuffer | None = None
        self.home_views: list[torch.Tensor] = []
        self.bound: list[torch.Tensor] = []  # the views that the weights point to, [] when plain
        self._versions: list[int] = []
        self._loaded: tuple[torch.Tensor, torch.Tensor] | None = None  # the device buffer of our own, and its first fingerprint
        self._memory: HostMemory | None = None
        self._device = torch.device("cpu")
        owners = module.modules() if module is not None else {id(weight.module): weight.module for weight in weights}.values()
        self._owners = list(owners)
        self._known = {weight.name for owner in self._owners for weight in own_weights(owner)}

    # ------------------------------------------------------------------------------------------------ binding

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The weights as views of `flat` (uint8, at least `size_bytes`), with their dtypes, shapes and strides."""
        return [place.view(flat) for place in self.places]

    def bind(self, views: list[torch.Tensor]) -> None:
        for weight, view in zip(self.weights, views):
            weight.tensor.data = view
        self.bound, self._loaded = views, None
        self._versions = [weight.tensor._version for weight in self.weights]

    @property
    def away(self) -> bool:
        return bool(self.bound) and self.bound is not self.home_views

    def changed(self) -> list[int]:
        """The weights that the host changed, replaced or added since they were bound."""
        found = []
        for index, (weight, view, version) in enumerate(zip(self.weights, self.bound, self._versions)):
            tensor = weight.tensor
            if tensor._version != version or tensor.data_ptr() != view.data_ptr() or weight.replacement() is not None:
                found.append(index)
        return found + list(range(len(self.weights), len(self.weights) + len(self._added())))

    def _added(self) -> list[Weight]:
        """What the host registered since we took stock, in modules that were there then (a bias that was None)."""
        found = []
        for owner in self._owners:
            for is_parameter, registry in ((True, owner._parameters), (False, owner._buffers)):
                for key, tensor in registry.items():
                    if tensor is None or (id(owner), key) in self._known or not holds_memory(tensor) or obstacle(tensor):
                        continue
                    found.append(Weight(owner, key, is_parameter, tensor, self.weights[0].launch))
        return found

    def _take_stock(self) -> None:
        """Takes over the tensors that the host put in place of ours, or beside them."""
        for weight in self.weights:
            current = weight.replacement()
            if current is not None:
                if self.bound:  # the host may keep the old one to put it back later: it must not see our memory change
                    weight.tensor.data = _own_copy(weight.tensor.data, weight.launch)
                weight.tensor = current
        added = self._added()
        self._known.update(weight.name for weight in added)
        self.weights += added

    # ------------------------------------------------------------------------------------------------ home

    def take_home(self, memory: HostMemory, device: torch.device) -> None:
        """Makes the host copy from the present tensors and binds to it. Waits for the device."""
        assert self.home is None
        self._memory, self._device = memory, device
        self._take_stock()
        self._make_home(*lay_out(self.weights))
        self.bind(self.home_views)

    def go_home(self) -> int:
        """Brings changes back and binds to the host copy. Answers the number of weights that had been changed; waits for the
        device only when there are any."""
        changed = self.changed()
        if changed:
            self.write_back(changed)
        if changed or self.bound is not self.home_views:
            self.bind(self.home_views)
        return len(changed)

    def write_back(self, indices: Iterable[int]) -> None:
        """Copies the module's present tensors into the host copy; a new shape, stride, dtype or tie gives the unit a new layout
        and a new host copy."""
        self._take_stock()
        places, size_bytes = lay_out(self.weights)
        if places == self.places:
            self._copy(indices, self.home_views)
        else:
            self._make_home(places, size_bytes)

    def _make_home(self, places: list[Place], size_bytes: int) -> None:
        assert self._memory is not None
        home = self._memory.allocate(size_bytes, self._device)
        views = [place.view(home.flat) for place in places]
        self._copy(range(len(views)), views)
        self.places, self.size_bytes, self.home, self.home_views = places, size_bytes, home, views
        self.layout_id += 1

    def _copy(self, indices: Iterable[int], views: list[torch.Tensor]) -> None:
        waiting = None
        with torch.no_grad():
            for index in indices:
                tensor = self.weights[index].tensor
                if tensor.data_ptr() != views[index].data_ptr():
                    flat_span(views[index]).copy_(flat_span(tensor), non_blocking=True)
                    waiting = tensor.device if tensor.device.type != "cpu" else waiting
        _wait_for(waiting)

    # ------------------------------------------------------------------------------------------------ whole-unit moves

    def load(self, device: torch.device) -> None:
        """Copies the host copy into a new device buffer, on the current stream, and binds to it. What the host changed at home
        meanwhile (diffusers casts the VAE of SDXL, for one) is taken in first."""
        self.go_home()
        assert self.home is not None
        flat = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
        flat.copy_(self.home.flat, non_blocking=True)
        loaded = flat, fingerprint(flat)
        self.bind(self.views(flat))
        self._loaded = loaded

    def drop(self) -> int:
        """Leaves the device: what the host changed is written back first, the rest is dropped. Answers the number changed."""
        if not self.away:
            return self.go_home()
        count = len(self.changed())
        # A write through `.data` passes by the version counter, but not by the fingerprint.
        if count or self._loaded is None or not torch.equal(self._loaded[1], fingerprint(self._loaded[0])):
            _wait_for(self._device)  # a new layout gives up the host copy, which may still be read
            self.write_back(range(len(self.weights)))
            count = count or len(self.weights)
        self.bind(self.home_views)
        return count

    def release(self, device: torch.device | None = None) -> None:
        """Back to tensors of the host's own, each on `device` or, when that is None, where it was launched; the host copy is
        given up."""
        if self.home is None:
            return
        self._take_stock()
        made: dict[tuple[torch.device, int], torch.Tensor] = {}
        ours = [view.data_ptr() for view in self.bound]
        for index, weight in enumerate(self.weights):
            target, key = device or weight.launch, storage_key(weight.tensor)
            if weight.tensor.device == target and not (index < len(ours) and ours[index] == key[1]):
                continue  # the host's own memory already
            if key not in made:
                made[key] = _own_copy(weight.tensor.data, target)
            weight.tensor.data = made[key]
        _wait_for(self._device)
        self.home, self.home_views, self.bound, self._versions, self._loaded = None, [], [], [], None


def lay_out(weights: Sequence[Weight]) -> tuple[list[Place], int]:
    """The place of each weight in a flat buffer, and the buffer's bytes. Weights with the same memory get the same place."""
    places, offsets, end = list[Place](), dict[tuple[torch.device, int], int](), 0
    for weight in weights:
        tensor, key, size = weight.tensor, storage_key(weight.tensor), weight.size_bytes
        if key not in offsets:
            offsets[key] = end
            end += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        places.append(Place(offsets[key], size, tensor.dtype, tensor.shape, tensor.stride()))
    return places, end


def fingerprint(flat: torch.Tensor) -> torch.Tensor:
    """Two sums over the bytes' 64-bit words, weighted by row and by column of 256 bytes, on their device: cheap, and any
    ordinary edit changes them, also one that only exchanges elements."""
    words = flat.view(torch.int64).view(flat.numel() // ALIGNMENT, ALIGNMENT // 8)
    return torch.stack([_weighted(words.sum(1)), _weighted(words.sum(0))])


def _weighted(sums: torch.Tensor) -> torch.Tensor:
    return (sums * (2 * torch.arange(len(sums), device=sums.device) + 1)).sum()


def _own_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor with memory of its own on `device`, and the same values and strides."""
    with torch.no_grad():
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        flat_span(copy).copy_(flat_span(tensor))
        return copy


def _wait_for(device: torch.device | None) -> None:
    """Until the device has done what was asked of it on this thread's stream."""
    if device is not None and device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device is not None and device.type == "mps":
        torch.mps.synchronize()
