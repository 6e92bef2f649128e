"""Keeps the weights of one model: which component is on the device, which is in its host copy, which is streamed.

The bank outlives the modes, so that host copies made once serve every later switch; it is emptied when the model changes and when the
host gets everything back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import torch

from vram_pilot.errors import RefusedError
from vram_pilot.hosts.base import Component, Host
from vram_pilot.streaming.executor import StreamExecutor
from vram_pilot.streaming.gates import Gates
from vram_pilot.streaming.part import Part
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.copies import CopyEngine, copy_engine
from vram_pilot.streaming.split import all_weights
from vram_pilot.streaming.units import Unit, Weight, obstacle, storage_key
from vram_pilot.units import MIB

log = logging.getLogger(__name__)

#: Device memory that streamed weights pass through, unless a unit is larger.
ARENA_BYTES = 192 * MIB


class WeightBank:
    """pinned_share: the part of the RAM that host copies may page-lock. On the sampling thread, except the figures."""

    def __init__(self, *, pinned_share: float = 0.5) -> None:
        self.memory = HostMemory(pinned_share)
        self.executor: StreamExecutor | None = None
        self._gates: Gates | None = None
        self._parts: dict[str, Part] = {}
        self._shared: Unit | None = None  # weights that more than one part uses: on the device in every mode of ours
        self._engine: CopyEngine | None = None
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------------------------ figures

    def holds_anything(self) -> bool:
        return bool(self._parts)

    def resident_denoiser_bytes(self) -> int | None:
        """Denoiser weights that stay on the device between its calls; None when no component is looked after."""
        if self.executor is not None:
            return self.executor.resident_bytes
        found = [part for part in self._parts.values() if part.component.role == "denoiser"]
        return sum(part.device_bytes for part in found) if found else None

    @property
    def streamed_bytes(self) -> int:
        return 0 if self.executor is None else self.executor.streamed_bytes

    # ------------------------------------------------------------------------------------------------ what modes ask for

    @staticmethod
    def obstacle(components: Sequence[Component]) -> str | None:
        """Why the weights of this model cannot be moved, None when they can. Changes nothing."""
        ranges: dict[tuple[int, int], tuple[object, ...]] = {}
        for component in components:
            for weight in all_weights(component.module):
                reason = obstacle(weight.tensor)
                if reason is not None:
                    return f"{component.name}: {reason}"
                shape = (tuple(weight.tensor.shape), tuple(weight.tensor.stride()), weight.tensor.dtype)
                if ranges.setdefault(storage_key(weight.tensor), shape) != shape:
                    return f"{component.name}: weights lie over each other in memory"
        return None

    def attach(self, host: Host) -> None:
        """Takes stock of the host's model, unless that is done. Raises RefusedError when it cannot be moved."""
        components = host.components()
        if [part.component.module for part in self._parts.values()] == [component.module for component in components]:
            return
        if self._parts:
            raise RuntimeError("the bank still holds another model")
        reason = self.obstacle(components)
        if reason is not None:
            raise RefusedError("The weights of this model cannot be moved", do=f"{reason}.")
        shared = _shared_keys(components)
        for component in components:
            self._parts[component.name] = Part(component, frozenset(shared), self.memory, host.device())
        if shared:
            self._shared = Unit("(shared between parts)", None, list(shared.values()))
        if self._engine is None or self._engine.device != host.device():
            self._engine = copy_engine(host.device())

    def load_all(self) -> None:
        """Every component on the device, with no hook: `full`."""
        self._load_shared()
        for part in self._parts.values():
            part.load()

    def swap(self, names: Sequence[str], beside: str | None = None) -> None:
        """These components come to the device only while they run, one at a time, and none while `beside` runs."""
        self._load_shared()
        for name in names:
            self._parts[name].unload()
        alone = None if beside is None else self._parts[beside].component.module
        self._gates = Gates([self._parts[name] for name in names], alone)
        self._gates.install()

    def stream(self, name: str, budget_bytes: int) -> None:
        """The component's units pass through an arena; `budget_bytes` of them stay."""
        assert self._engine is not None
        part = self._parts[name]
        part.unload()
        self.executor = StreamExecutor(
            part.component.module, part.units, part.held, budget_bytes, ARENA_BYTES, self._engine
        )
        self.executor.install()

    def park(self) -> None:
        """Takes every hook away; each component is whole, on the device or at home."""
        if self._gates is not None:
            self._gates.remove()
            self._gates = None
        if self.executor is not None:
            self.executor.remove()
            self.executor = None
        torch.clear_autocast_cache()

    def release(self) -> None:
        """The host gets its own tensors back, each where it was launched; host copies are given up."""
        self.park()
        if self._engine is not None:
            self._engine.drain()
        for part in self._parts.values():
            part.release()
        if self._shared is not None:
            self._shared.release()
        self._parts, self._shared = {}, None

    # ------------------------------------------------------------------------------------------------ events

    def phase_started(self, name: str) -> None:
        """The component that this phase needs is fetched ahead."""
        role = {"encode": "text_encoder", "denoise": "denoiser", "decode": "vae"}.get(name)
        if self._gates is not None and role is not None:
            self._gates.fetch(role)

    def settle(self) -> None:
        """After a failed job: nothing is in flight and no unit is bound to a slot."""
        if self.executor is not None:
            self.executor.settle()
        if self._gates is not None:
            self._gates.settle()

    def _load_shared(self) -> None:
        if self._shared is not None and self._shared.home is None:
            assert self._engine is not None
            self._shared.take_home(self.memory, self._engine.device)
            self._shared.load(self._engine.device)


def _shared_keys(components: Sequence[Component]) -> dict[tuple[int, int], Weight]:
    """Weights that lie in more than one component, by storage key."""
    owner: dict[tuple[int, int], str] = {}
    shared: dict[tuple[int, int], Weight] = {}
    for component in components:
        for weight in all_weights(component.module):
            key = storage_key(weight.tensor)
            if owner.setdefault(key, component.name) != component.name:
                shared[key] = weight
    return shared
