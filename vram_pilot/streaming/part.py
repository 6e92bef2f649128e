"""One component of a model as its units: loaded, at home, or as the host had it."""

from __future__ import annotations

import torch

from vram_pilot.hosts.base import Component
from vram_pilot.streaming.each import for_each
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.split import split
from vram_pilot.streaming.units import Unit
from vram_pilot.streaming.weights import StorageKey, all_weights


class Part:
    """left_out: storage keys of weights that are looked after elsewhere."""

    def __init__(self, component: Component, left_out: frozenset[StorageKey], memory: HostMemory, device: torch.device) -> None:
        self.component = component
        self.units, self.held = split(component.module, left_out)
        self._memory = memory
        self.device = device
        self._names = _names(component)
        self.loaded = False  # every unit is in a device buffer of ours

    @property
    def everything(self) -> list[Unit]:
        return [*self.units, *self.held]

    @property
    def device_bytes(self) -> int:
        """Weights that are on the device now, be it in our buffers or in the host's tensors."""
        return sum(unit.size_bytes for unit in self.everything if unit.away or (unit.home is None and self._is_there(unit)))

    def outdated(self) -> bool:
        """Whether the module has other places for weights than when stock was taken (layers added, taken out or exchanged)."""
        return self._names != _names(self.component)

    def load(self) -> None:
        """Brings the whole component to the device, on the current stream. After an exception it is at home as a whole.

        Weights that already are where the host launched them, on that device, are left alone.
        """
        if self.loaded or all(unit.home is None and self._is_there(unit) for unit in self.everything):
            return
        try:
            for unit in self.everything:
                if unit.home is None:
                    unit.take_home(self._memory, self.device)
                if not unit.away:
                    unit.load(self.device)
        except BaseException:
            self.unload()
            raise
        self.loaded = True

    def unload(self) -> int:
        """Leaves the device for the host copy, which is made where there is none. Answers the number written back."""
        self.loaded = False
        return sum(for_each(self.everything, self._send_home))

    def _is_there(self, unit: Unit) -> bool:
        return is_on(unit, self.device)

    def _send_home(self, unit: Unit) -> int:
        if unit.home is not None:
            return unit.drop()
        unit.take_home(self._memory, self.device)
        return 0

    def release(self, device: torch.device | None = None) -> None:
        """Back to the host's own tensors, on `device` or, when that is None, each where it was launched."""
        self.loaded = False
        for_each(self.everything, lambda unit: unit.release(device))


def is_on(unit: Unit, device: torch.device) -> bool:
    return all(weight.tensor.device == device for weight in unit.weights)


def _names(component: Component) -> set[tuple[int, str]]:
    return {weight.name for weight in all_weights(component.module)}
