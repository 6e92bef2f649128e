"""Keeps the weights of one model: which component is on the device, which is in its host copy, which is streamed.

The bank outlives the modes, so that host copies made once serve every later switch; it is emptied when the model changes and
when the host gets everything back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from vram_pilot.errors import RefusedError
from vram_pilot.graphs.runner import GraphRunner
from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.hosts.base import Component, Host
from vram_pilot.streaming.copies import CopyEngine, copy_engine
from vram_pilot.streaming.each import for_each
from vram_pilot.streaming.executor import StreamExecutor
from vram_pilot.streaming.gates import Gates
from vram_pilot.streaming.part import Part, is_on
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.units import Unit
from vram_pilot.streaming.weights import StorageKey, Weight, all_weights, obstacle, overlap, storage_key
from vram_pilot.units import MIB

log = logging.getLogger(__name__)

#: The part of the device's memory that captured graphs may keep: one in so many.
GRAPH_SHARE = 8
#: Device memory that streamed weights pass through, unless a unit is larger.
ARENA_BYTES = 192 * MIB
_CPU = torch.device("cpu")
#: What is made under inference mode could not be changed in place later, by us or by the host.
_plain = torch.inference_mode(False)


class WeightBank:
    """pinned_share: the part of the RAM that host copies may page-lock. On the sampling thread, except the figures."""

    def __init__(self, *, pinned_share: float = 0.5) -> None:
        self.memory = HostMemory(pinned_share)
        self.executor: StreamExecutor | None = None
        self.runner: GraphRunner | None = None
        self._gates: Gates | None = None
        self._parts: Mapping[str, Part] = {}  # exchanged as a whole: other threads read the figures
        self._shared: Unit | None = None  # weights that more than one part uses: on the device in every mode of ours
        self._engine: CopyEngine | None = None

    # ------------------------------------------------------------------------------------------------ figures

    def holds_anything(self) -> bool:
        return bool(self._parts)

    def resident_denoiser_bytes(self) -> int | None:
        """Denoiser weights that stay on the device between its calls; None when no component is looked after."""
        executor = self.executor
        if executor is not None:
            return executor.resident_bytes
        found = [part for part in self._parts.values() if part.component.role == "denoiser"]
        return sum(part.device_bytes for part in found) if found else None

    @property
    def slot_bytes(self) -> int:
        """Device buffers of a streamed denoiser, with what has to be held beside them: weights that are used throughout a call
        or shared with another component."""
        executor, shared = self.executor, self._shared
        if executor is None:
            return 0
        return executor.slot_bytes + (0 if shared is None else shared.size_bytes)

    @property
    def streamed_bytes(self) -> int:
        executor = self.executor
        return 0 if executor is None else executor.streamed_bytes

    @property
    def prefetch_misses(self) -> int:
        executor = self.executor
        return 0 if executor is None else executor.misses

    # ------------------------------------------------------------------------------------------------ what modes ask for

    def obstacle(self, components: Sequence[Component]) -> str | None:
        """Why the weights of this model cannot be moved, None when they can. Changes nothing. Any thread: weights that are
        looked after already were examined then, and move while a job runs."""
        return None if self.looks_after(components) else _obstacle(components)

    def looks_after(self, components: Sequence[Component]) -> bool:
        """Whether these are the parts that stock was taken of. Any thread."""
        return [part.component.module for part in self._parts.values()] == [component.module for component in components]

    @_plain
    def attach(self, host: Host) -> None:
        """Takes stock of the host's model, unless that is done and still true. Raises RefusedError when it cannot be moved."""
        components = host.components()
        torch.clear_autocast_cache()  # casts of these weights would stay on the device
        known = self.looks_after(components)
        if self._parts and known and not self._outdated():
            return
        reason = _obstacle(components)
        if reason is not None:
            raise RefusedError("The weights of this model cannot be moved", do=f"{reason}.")
        launched = {weight.name: weight.launch for weight in self._weights()} if known else {}
        self.release(_CPU if launched else None)
        if self._engine is None or self._engine.device != host.device():
            self._engine = copy_engine(host.device())
        shared = _shared(components)
        keys = frozenset(storage_key(weight.tensor) for weight in shared)
        parts = {component.name: Part(component, keys, self.memory, host.device()) for component in components}
        self._shared = Unit("(shared between parts)", None, shared) if shared else None
        self._parts = parts
        for weight in self._weights():
            weight.launch = launched.get(weight.name, weight.launch)

    @_plain
    def load_all(self) -> None:
        """Every component on the device, with no hook: `full`."""
        self._load_shared()
        for part in self._parts.values():
            part.load()

    @_plain
    def swap(self, names: Sequence[str], beside: str | None = None) -> None:
        """These components come to the device only while they run, one at a time, and none while `beside` runs."""
        self._load_shared()
        for name in names:
            self._parts[name].unload()
        alone = None if beside is None else self._parts[beside].component.module
        self._gates = Gates([self._parts[name] for name in names], alone)
        self._gates.install()

    @_plain
    def stream(self, name: str, budget_bytes: int, *, captured: bool = False) -> None:
        """The component's units pass through an arena; `budget_bytes` of them stay. captured: `capture` follows."""
        assert self._engine is not None
        part = self._parts[name]
        part.unload()
        self.executor = StreamExecutor(part.component.module, part.units, part.held, budget_bytes, ARENA_BYTES, self._engine)
        self.executor.install(bracket_root=not captured)

    @_plain
    def capture(self, host: Host) -> None:
        """The denoiser's calls become CUDA graphs. Raises RefusedError when another extension runs the denoiser in its own
        way.
        """
        part = next(part for part in self._parts.values() if part.component.role == "denoiser")
        device = host.device()
        bound = torch.cuda.get_device_properties(device).total_memory // GRAPH_SHARE
        runner = GraphRunner(part.component.module, device, host.computation_state, self.executor, bound)
        try:
            runner.install()
        except NotCapturable as reason:
            raise RefusedError("The denoiser cannot be captured in a CUDA graph", do=f"{reason}.") from reason
        self.runner = runner

    @_plain
    def park(self) -> None:
        """Takes every hook away; each component is whole, on the device or at home."""
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.remove()
        gates, self._gates = self._gates, None
        if gates is not None:
            gates.remove()
        executor, self.executor = self.executor, None
        torch.clear_autocast_cache()
        if executor is not None:
            executor.remove()

    @_plain
    def release(self, device: torch.device | None = None) -> None:
        """The host gets its own tensors back, on `device` or, when that is None, each where it was launched; host copies are
        given up."""
        self.park()
        if self._engine is not None:
            self._engine.drain()
        for_each(self._parts.values(), lambda part: part.release(device))
        if self._shared is not None:
            self._shared.release(device)
        self._parts, self._shared = {}, None

    def forget(self) -> None:
        """For a model that its host has dropped: hooks are taken away, and the weights are left in ordinary main memory."""
        self.release(_CPU)

    # ------------------------------------------------------------------------------------------------ events

    @_plain
    def job_started(self) -> None:
        """Nothing that was done ahead, or found good, in the job before is relied upon."""
        if self.executor is not None:
            self.executor.forget_ahead()
        if self.runner is not None:
            self.runner.job_started()

    @_plain
    def step_started(self) -> None:
        """No call is under way, whatever became of the last one."""
        if self.executor is not None:
            self.executor.between_calls()

    @_plain
    def phase_started(self, name: str) -> None:
        """The component that this phase needs is fetched ahead; what was fetched in the pass before is not relied upon."""
        if self.executor is not None and name == "denoise":
            self.executor.forget_ahead()
        role = {"encode": "text_encoder", "denoise": "denoiser", "decode": "vae"}.get(name)
        if self._gates is not None and role is not None:
            self._gates.fetch(role)

    @_plain
    def settle(self) -> None:
        """After a job, however it ended: nothing is in flight and no unit is bound to a slot."""
        if self._gates is not None:
            self._gates.settle()
        if self.executor is not None:
            self.executor.settle()

    def unsettled(self) -> bool:
        """Whether the mode must be entered anew: the host has put a weight of one unit into another, or planning anew has
        failed. Cheap, for every call."""
        return self._exchanged() or (self.executor is not None and not self.executor.sound)

    def _exchanged(self) -> bool:
        weights = self._weights()
        moved = [weight.current() for weight in weights if weight.current() is not weight.tensor]
        if not moved:
            return False
        ours = {id(weight.tensor) for weight in weights}
        return any(id(tensor) in ours for tensor in moved)

    def _outdated(self) -> bool:
        """Whether stock must be taken anew: layers were added or taken out, or weights of two units have become one."""
        if self._exchanged() or any(part.outdated() for part in self._parts.values()):
            return True
        owners: dict[StorageKey, Unit] = {}
        return any(
            owners.setdefault(storage_key(weight.tensor), unit) is not unit for unit in self._units() for weight in unit.weights
        )

    def _load_shared(self) -> None:
        if self._shared is None or self._shared.away:
            return
        assert self._engine is not None
        if self._shared.home is None:
            if is_on(self._shared, self._engine.device):
                return
            self._shared.take_home(self.memory, self._engine.device)
        self._shared.load(self._engine.device)

    def _units(self) -> list[Unit]:
        units = [unit for part in self._parts.values() for unit in part.everything]
        return units if self._shared is None else [*units, self._shared]

    def _weights(self) -> list[Weight]:
        return [weight for unit in self._units() for weight in unit.weights]


def _obstacle(components: Sequence[Component]) -> str | None:
    everything: list[Weight] = []
    for component in components:
        weights = all_weights(component.module)
        for weight in weights:
            reason = obstacle(weight.tensor)
            if reason is not None:
                return f"{component.name}: {reason}"
        everything += weights
        if overlap(everything):
            return f"{component.name}: weights lie over each other in memory"
    return None


def _shared(components: Sequence[Component]) -> list[Weight]:
    """Weights whose memory lies in more than one component, under each of their names."""
    owners: dict[StorageKey, set[str]] = {}
    found: dict[tuple[int, str], Weight] = {}
    for component in components:
        for weight in all_weights(component.module):
            owners.setdefault(storage_key(weight.tensor), set()).add(component.name)
            found[weight.name] = weight
    return [weight for weight in found.values() if len(owners[storage_key(weight.tensor)]) > 1]
