"""Runs a denoiser whose weights are not all on the device.

Each streamed unit is bracketed by hooks on its module: before its forward its weights are bound to a slot, afterwards to their
host copy again. Copies run ahead in the order that the previous call was seen to take; a call that takes another order, or leaves a
unit out, is right all the same and counts as a miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from vram_pilot.streaming.plan import Plan
from vram_pilot.streaming.slots import CopyEngine, Slot, SlotRing
from vram_pilot.streaming.units import Unit


class StreamExecutor:
    """root: the denoiser; units: in the order of definition, each with a host copy; plan: which stay resident.

    `install` adds the hooks and loads the resident units, `remove` undoes both and leaves every unit at home. All on the
    sampling thread.
    """

    def __init__(self, root: nn.Module, units: Sequence[Unit], held: Sequence[Unit], plan: Plan, engine: CopyEngine) -> None:
        self.root = root
        self.units = list(units)
        self.held = list(held)
        self.plan = plan
        self.engine = engine
        self.streamed_bytes = 0
        self.misses = 0
        self.written_back = 0
        self._ring: SlotRing | None = None
        self._hooks: list[Any] = []
        self._views: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self._order: list[int] = []  # as the last whole call took it
        self._seen: list[int] = []
        self._next = 0  # position in _order of the next unit to prefetch
        self._ahead: deque[Slot] = deque()
        self._active: list[Slot] = []
        self._depth: dict[int, int] = {}  # how often a unit is inside itself
        self._running = False
        self._start_mark: Any = None
        self._autocast_cache = True

    # ------------------------------------------------------------------------------------------------ enter and leave

    def install(self) -> None:
        for unit in self.held:
            unit.load(self.engine.device)
        for index in sorted(self.plan.resident):
            self.units[index].load(self.engine.device)
        self._ring = SlotRing(self.engine, self.plan.slots, self.plan.slot_bytes)
        self._order = [index for index in range(len(self.units)) if index not in self.plan.resident]
        self._hook(self.root, lambda module, args: self._begin(), lambda module, args, out: self._end(whole=out is not None))
        for index in self._order:
            self._bracket(index)

    def remove(self) -> None:
        """Also after an exception inside a call, or inside `install`."""
        for handle in reversed(self._hooks):
            handle.remove()
        self._hooks.clear()
        self._end()
        self.engine.drain()
        for unit in [*self.units, *self.held]:
            if unit.home is not None:
                unit.drop()
        self._ring = None
        self._views.clear()

    def settle(self) -> None:
        """After a job that failed: no unit is bound to a slot and no copy is in flight."""
        self._end()
        self.engine.drain()

    def _bracket(self, index: int) -> None:
        module = self.units[index].module
        assert module is not None
        self._hook(module, lambda _module, _args: self._enter(index), lambda _module, _args, _out: self._leave(index))

    def _hook(self, module: nn.Module, before: Callable[..., None], after: Callable[..., None]) -> None:
        # Ours go first in and last out, so that another extension's hooks see bound weights too.
        self._hooks.append(module.register_forward_pre_hook(before, prepend=True))
        self._hooks.append(module.register_forward_hook(after, always_call=True))

    @property
    def resident_bytes(self) -> int:
        return sum(self.units[index].size_bytes for index in self.plan.resident)

    @property
    def slot_bytes(self) -> int:
        """Slots, and what had to be held beside them."""
        extra = 0 if self._ring is None else self._ring.extra_bytes
        return self.plan.total_slot_bytes + sum(unit.size_bytes for unit in self.held) + extra

    # ------------------------------------------------------------------------------------------------ one call

    def _begin(self) -> None:
        if self._running:  # the call before this one ended by an exception that skipped its hooks
            self._end()
        self._running = True
        # A cast that autocast remembers by the Parameter's identity would outlive the weights that it was made from.
        self._autocast_cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        self._seen, self._next = [], 0
        self._start_mark = self.engine.mark()
        self._prefetch()

    def _end(self, *, whole: bool = False) -> None:
        """whole: the call ran to its end, so that what was seen is the order to expect."""
        if not self._running:
            return
        self._running = False
        torch.set_autocast_cache_enabled(self._autocast_cache)
        for slot in [*self._active, *self._ahead]:
            self._put_down(slot)
        self._active.clear()
        self._ahead.clear()
        self._depth.clear()
        if whole and self._seen:
            self._order = self._seen

    def _prefetch(self) -> None:
        """Starts copies for the units that come next, as far as there are free slots."""
        assert self._ring is not None
        while self._ring.free_count() > 0 and self._next < len(self._order):
            index = self._order[self._next]
            self._next += 1
            self._ahead.append(self._copy(index))

    def _copy(self, index: int) -> Slot:
        assert self._ring is not None
        unit = self.units[index]
        assert unit.home is not None
        self.streamed_bytes += unit.size_bytes
        return self._ring.fill(index, unit.home.flat, self._start_mark)

    def _enter(self, index: int) -> None:
        if not self._running:  # a block called by itself, outside the denoiser's forward
            self._begin()
        self._depth[index] = self._depth.get(index, 0) + 1
        if self._depth[index] > 1:  # its weights are bound already
            return
        unit = self.units[index]
        if unit.changed():  # the host changed or moved the weights at home, perhaps behind a copy that has started
            self._forget(index)
            unit.write_back(unit.changed())
            unit.bind(unit.home_views)
        slot = self._take(index)
        self.engine.wait(slot.ready)
        unit.bind(self._slot_views(slot, unit, index))
        self._active.append(slot)
        self._seen.append(index)

    def _take(self, index: int) -> Slot:
        """The slot that holds the unit; what was fetched before it and is not wanted now is let go."""
        assert self._ring is not None
        if any(slot.holds == index for slot in self._ahead):
            while self._ahead[0].holds != index:
                self.misses += 1
                self._ring.give_back(self._ahead.popleft())
            return self._ahead.popleft()
        self.misses += 1
        if index in self._order[self._next :]:  # units were left out: go on from here
            self.misses += len(self._ahead)
            while self._ahead:
                self._ring.give_back(self._ahead.popleft())
            self._next = self._order.index(index, self._next) + 1
        elif self._ring.free_count() == 0 and self._ahead:
            self._next -= 1
            self._ring.give_back(self._ahead.pop())
        return self._copy(index)

    def _leave(self, index: int) -> None:
        self._depth[index] = self._depth.get(index, 1) - 1
        slot = next((slot for slot in self._active if slot.holds == index), None)
        if slot is None or self._depth[index] > 0:
            return
        self._active.remove(slot)
        self._put_down(slot)
        self._prefetch()

    def _put_down(self, slot: Slot) -> None:
        """Binds the unit to its host copy again, changes included, and frees the slot."""
        assert self._ring is not None
        index = slot.holds
        if index is not None and self.units[index].bound is not self.units[index].home_views:
            self.written_back += self.units[index].go_home()
        self._ring.give_back(slot)

    def _forget(self, index: int) -> None:
        """Lets go of copies of this unit that were started from an older state."""
        assert self._ring is not None
        for slot in [slot for slot in self._ahead if slot.holds == index]:
            self._ahead.remove(slot)
            self._ring.give_back(slot)

    def _slot_views(self, slot: Slot, unit: Unit, index: int) -> list[torch.Tensor]:
        assert self._ring is not None
        if slot not in self._ring.slots:
            return unit.views(slot.flat)
        key = (slot.flat.data_ptr(), index, unit.layout_id)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = unit.views(slot.flat)
        return found
