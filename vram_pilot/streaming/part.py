"""One component of a model as its units: loaded, at home, or as the host had it."""

from __future__ import annotations

import torch

from vram_pilot.hosts.base import Component
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.split import split
from vram_pilot.streaming.units import Unit


class Part:
    """left_out: storage keys of weights that are looked after elsewhere."""

    def __init__(
        self, component: Component, left_out: frozenset[tuple[int, int]], memory: HostMemory, device: torch.device
    ) -> None:
        self.component = component
        self.units, self.held = split(component.module, left_out)
        self._memory = memory
        self._device = device
        self.loaded = False  # every unit is in a device buffer of ours

    @property
    def everything(self) -> list[Unit]:
        return [*self.units, *self.held]

    @property
    def device_bytes(self) -> int:
        """Weights that are on the device now, be it in our buffers or in the host's tensors."""
        return sum(unit.size_bytes for unit in self.everything if unit.bound is not unit.home_views or unit.home is None)

    def load(self) -> None:
        """Brings the whole component to the device, on the current stream. After an exception it is at home as a whole.

        Weights that already are where the host launched them, on that device, are left alone.
        """
        if self.loaded:
            return
        if all(unit.home is None and _is_on(unit, self._device) for unit in self.everything):
            return
        try:
            for unit in self.everything:
                if unit.home is None:
                    unit.take_home(self._memory, self._device)
                if unit.bound is unit.home_views:
                    unit.go_home()  # takes in what the host changed meanwhile (diffusers casts the VAE of SDXL, for one)
                    unit.load(self._device)
        except BaseException:
            self.unload()
            raise
        self.loaded = True

    def unload(self) -> int:
        """Leaves the device for the host copy, which is made where there is none. Answers the number of weights written back."""
        self.loaded = False
        written = 0
        for unit in self.everything:
            if unit.home is None:
                unit.take_home(self._memory, self._device)
            else:
                written += unit.drop()
        return written

    def release(self) -> None:
        self.loaded = False
        for unit in self.everything:
            unit.release()


def _is_on(unit: Unit, device: torch.device) -> bool:
    return all(weight.tensor.device == device for weight in unit.weights)
