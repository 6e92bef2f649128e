"""Runs a denoiser whose weights are not all on the device.

Each streamed unit is bracketed by hooks on its module: before its forward its weights are bound to its place in the arena,
afterwards to their host copy again. Copies run ahead as the schedule says, also for the first units of the next call. The
order is the one that the first whole call was seen to take; a call that takes another order, leaves units out or repeats one
is right all the same and counts as misses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from vram_pilot.streaming.copies import CopyEngine
from vram_pilot.streaming.each import for_each
from vram_pilot.streaming.schedule import Schedule, UnitCost, with_best_arena
from vram_pilot.streaming.units import Unit

log = logging.getLogger(__name__)

#: Bytes a second and seconds a byte of weights that the first plan assumes, before anything has been measured.
ASSUMED_RATE = 12e9
ASSUMED_COMPUTE = 1 / 60e9


class StreamExecutor:
    """root: the denoiser; units: in the order of definition, each with a host copy; held: used at any time during a call.

    budget_bytes: units that stay on the device together never exceed it. arena_bytes: the least device memory for the others;
    up to twice as much where that shortens the step, and never less than the largest unit. `install` adds the hooks and loads
    what stays, `remove` undoes both and leaves every unit at home. All on the sampling thread.
    """

    def __init__(
        self,
        root: nn.Module,
        units: Sequence[Unit],
        held: Sequence[Unit],
        budget_bytes: int,
        arena_bytes: int,
        engine: CopyEngine,
        rate: float = ASSUMED_RATE,
    ) -> None:
        self.root = root
        self.units = list(units)
        self.held = list(held)
        self.engine = engine
        self.streamed_bytes = 0
        self.misses = 0
        self.written_back = 0
        self.replans = 0
        self.extra_bytes = 0  # device memory beside the arena that surprises have needed at once, at most
        self._budget, self._arena_bytes, self._rate = budget_bytes, arena_bytes, rate
        self.seconds = [unit.size_bytes * ASSUMED_COMPUTE for unit in self.units]
        self.order = list(range(len(self.units)))  # of the units that are expected in a call
        self.schedule: Schedule = Schedule(frozenset(), (), (), (), 0, 0, 0.0)
        self._arena: torch.Tensor | None = None
        self._streamed: list[int] = []  # unit by position in the schedule
        self._views: list[list[torch.Tensor]] = []
        self._layouts: list[int] = []
        self._streamed_size = 0  # bytes that a whole call copies
        self._position: dict[int, int] = {}  # streamed unit -> position
        self._root_hooks: list[Any] = []
        self._unit_hooks: list[Any] = []
        self._timing_hooks: list[Any] = []
        self._ready: dict[int, Any] = {}  # position -> mark of its copy for this call
        self._used: list[Any] = []  # marks by position; of the last call from where this one has not come yet
        self._filled = 0  # positions of this call whose copy has started
        self._next_filled = 0  # of the next call
        self._cursor = 0  # the next position that is expected
        self._depth: dict[int, int] = {}  # unit that is running -> how often it is inside itself
        self._in_arena: int | None = None  # the unit whose weights are bound to the arena now
        self._beside: dict[int, torch.Tensor] = {}  # unit that is running -> its buffer outside the arena
        self._seen: list[int] = []
        self._other_order: list[int] | None = None
        self._learnt = False
        self._timed = False  # whether the units' computation has been timed
        self._grows = False  # whether those times are the plan's, so that a larger arena can be weighed
        self._stamps: dict[int, tuple[Any, Any]] | None = None
        self._begun_s = self._call_s = 0.0
        self._stay: frozenset[int] = frozenset()  # units that are on the device for good
        self._outdated: set[int] = set()  # units that the host changed after their copy may have started
        self._calls = 0  # how often the denoiser is inside itself
        self._running = self._captured = False
        self._stale_marks = True  # the marks of the last call say nothing about the arena's places
        self._autocast_cache = True
        self.sound = True  # False once planning anew has failed half-way: the mode must be entered anew

    # ------------------------------------------------------------------------------------------------ enter and leave

    def install(self, *, bracket_root: bool = True) -> None:
        """bracket_root: False when the caller runs `begin` and `end` around each call."""
        for unit in self.held:
            unit.load(self.engine.device)
        if bracket_root:
            self._root_hooks += _bracket(self.root, self.begin, lambda out: self.end(whole=out is not None))
        self._arrange()
        largest = max((self.units[index] for index in self._streamed), key=lambda unit: unit.size_bytes, default=None)
        if largest is not None and largest.home is not None and self._arena is not None:
            measured = self.engine.rate(self._arena, largest.home.flat)
            if measured is not None:
                self._rate = measured
                self._arrange()

    def remove(self) -> None:
        """Also after an exception inside a call, or inside `install`; every unit is sent home, also behind one that fails to
        go. A call that is under way still reaches the hooks: from here on they do nothing."""
        for handles in (self._unit_hooks, self._timing_hooks, self._root_hooks):
            for handle in handles:
                handle.remove()
            handles.clear()
        try:
            self.settle()
        finally:
            self._arena, self._views = None, []
            for_each([unit for unit in [*self.units, *self.held] if unit.home is not None], Unit.drop)

    def settle(self) -> None:
        """No call is under way, whatever became of the last one: no unit is bound to the arena, no copy is in flight, and
        nothing is kept for the next call."""
        self._calls = min(self._calls, 1)
        try:
            self.end()
        finally:
            self._calls = 0
            self.engine.drain()
            self.forget_ahead()

    def between_calls(self) -> None:
        """Ends a call that an exception has broken off without its hooks."""
        if self._running or self._calls:
            self.settle()

    def forget_ahead(self) -> None:
        """What has been copied for the next call is copied again: for a host that may have written weights without a trace."""
        self.engine.join()
        self._ready.clear()
        self._next_filled, self._stale_marks = 0, True

    @property
    def resident_bytes(self) -> int:
        return sum(self.units[index].size_bytes for index in self._stay)

    @property
    def slot_bytes(self) -> int:
        """The arena, and what had to be held beside it."""
        return self.schedule.arena_bytes + sum(unit.size_bytes for unit in self.held) + self.extra_bytes

    def _arenas(self) -> list[int]:
        """The sizes that the plan may choose from: twice the least at most."""
        return [self._arena_bytes * part // 6 for part in ((6, 8, 10, 12) if self._grows else (6,))]

    def _resident(self) -> list[int]:
        return [self.order[number] for number in self.schedule.resident]

    # ------------------------------------------------------------------------------------------------ planning

    def _arrange(self) -> None:
        """Plans for the expected order and brings the device to it. Nothing is in flight."""
        self.sound = False
        costs = [UnitCost(self.units[index].size_bytes, self.seconds[index]) for index in self.order]
        self.schedule = with_best_arena(costs, self._budget, self._arenas(), self._rate)
        self._stay = stay = frozenset(self._resident())
        for index, unit in enumerate(self.units):
            if index not in stay and unit.bound is not unit.home_views:
                unit.drop()
        if self._arena is None or self._arena.numel() != self.schedule.arena_bytes:
            self._arena, self._views = None, []  # before the new one is asked for
            self._arena = torch.empty(self.schedule.arena_bytes, dtype=torch.uint8, device=self.engine.device)
        for index in sorted(stay):
            if self.units[index].bound is self.units[index].home_views:
                self.units[index].load(self.engine.device)
        self._streamed = streamed = [self.order[number] for number in self.schedule.streamed]
        self._position = {unit: position for position, unit in enumerate(streamed)}
        self._streamed_size = sum(self.units[unit].size_bytes for unit in streamed)
        self._layouts = [self.units[unit].layout_id for unit in streamed]
        self._views = [self.units[unit].views(self._arena[offset:]) for unit, offset in zip(streamed, self.schedule.offsets)]
        self._ready.clear()
        self._outdated.clear()
        self._used, self._stale_marks = [None] * len(streamed), True
        self._filled = self._next_filled = 0
        for handle in self._unit_hooks:
            handle.remove()
        self._unit_hooks = []
        for index, unit in enumerate(self.units):
            if index not in stay and unit.module is not None:
                self._unit_hooks += _bracket(unit.module, partial(self._enter, index), partial(self._leave, index))
            elif unit.module is not None and not self._learnt:  # its place in the order matters to the plan
                self._unit_hooks += _bracket(unit.module, partial(self._seen.append, index), lambda _out: None)
        self.sound = True

    def _learn(self) -> None:
        """Plans again when calls are seen to take another order than expected: after the first, then only when it comes
        twice.
        """
        seen = list(dict.fromkeys(self._seen))
        first, self._learnt = not self._learnt, True
        if seen == (self.order if first else list(self._position)):
            self._other_order = None
        elif first or seen == self._other_order:
            self.engine.drain()
            self.replans += 1
            self.order = _merged(seen, self.order, set(self._stay) - set(seen))
            self._other_order = None
            self._arrange()
        else:
            self._other_order = seen

    def _start_timing(self) -> None:
        """Times every unit in this call. The device is held until all of it has been issued, so that the times are the
        device's own and not those of the program that launches the kernels."""
        if self.engine.stamp() is None:
            self._timed = True
            return
        self._stamps = {}
        self.engine.hold(self._call_s * 1.5)
        for index in self._resident():
            module = self.units[index].module
            if module is not None:
                self._timing_hooks += _bracket(module, partial(self._stamp, index, 0), partial(self._stamp, index, 1))

    def _stamp(self, index: int, which: int, _out: Any = None) -> None:
        if self._stamps is not None:
            stamp = self.engine.stamp()
            self._stamps[index] = (stamp, None) if which == 0 else (self._stamps[index][0], stamp)

    def _finish_timing(self) -> None:
        """Plans again with the times that were found."""
        stamps, self._stamps = self._stamps or {}, None
        for handle in self._timing_hooks:
            handle.remove()
        self._timing_hooks.clear()
        self._timed = True
        self.engine.drain()
        for index, (start, end) in stamps.items():
            if end is not None:
                self.seconds[index] = self.engine.seconds(start, end)
                self._grows = True
        self._arrange()

    # ------------------------------------------------------------------------------------------------ one call

    def begin(self, *, captured: bool = False) -> None:
        """captured: into a CUDA graph, which begins with the first `ahead` places filled and nothing in flight."""
        if self._arena is None:
            return
        self._calls += 1
        if self._calls > 1:  # the denoiser inside itself: its blocks come out of turn
            return
        self._running = True
        self._captured = captured
        # A cast that autocast remembers by the Parameter's identity would outlive the weights that it was made from.
        self._autocast_cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        self._seen.clear()
        self._cursor = 0
        self._begun_s = time.perf_counter()
        if not captured:
            self._renew_resident()
        if self._learnt and not self._timed and not captured:
            self._start_timing()
        self._filled, self._next_filled = (self.schedule.ahead if captured else self._next_filled), 0
        if self._stale_marks or captured:
            self._used = [self.engine.mark()] * len(self._used)
            self._stale_marks = False
        if captured:
            self._ready.clear()
        self._fill()

    def end(self, *, whole: bool = False, captured: bool = False) -> None:
        """whole: the call ran to its end, so that what was seen is the order to expect. captured: as at `begin`."""
        self._calls = max(self._calls - 1, 0)
        if not self._running or self._calls:
            return
        self._running = False
        torch.set_autocast_cache_enabled(self._autocast_cache)
        for_each(list(self._depth), self._put_down)
        if captured:
            self._skip_to(len(self._views))
            self.engine.join()
            self.replayed()
            return
        if not whole:
            self.engine.drain()
            self._ready.clear()
            self._next_filled, self._stale_marks, self._stamps = 0, True, None
            return
        self._skip_to(len(self._views))
        self._fill()
        self._call_s = time.perf_counter() - self._begun_s
        try:
            self._learn()
            if self._stamps is not None:
                self._finish_timing()
        except Exception:  # a device that is full, say: the call itself has been answered
            log.exception("VRAM Pilot: the order of the denoiser's blocks could not be planned anew")
            self.sound = False

    def _renew_resident(self) -> None:
        """Takes in tensors that the host has put in place of resident ones, wherever they lie."""
        for index in self._stay:
            unit = self.units[index]
            if unit.changed():
                self.engine.drain()
                unit.drop()
                unit.load(self.engine.device)

    def prime(self) -> None:
        """Before a capture or a replay: at least the first `ahead` places are filled, and the computation waits for every
        copy.
        """
        if self._stale_marks:
            self._used, self._stale_marks = [self.engine.mark()] * len(self._used), False
        for position in range(self.schedule.ahead):
            if position < self._next_filled and self._streamed[position] not in self._outdated:
                continue
            self._copy(position, len(self._views) + position - self.schedule.after[position])
        self._next_filled = max(self._next_filled, self.schedule.ahead)
        self.engine.join()

    def replayed(self) -> None:
        """After a replay: a captured call leaves the first places filled for the next one, and no mark that anybody could
        wait for.
        """
        self._ready.clear()
        self._next_filled, self._stale_marks = self.schedule.ahead, True
        self.streamed_bytes += self._streamed_size

    def capturable(self) -> str | None:
        """Why a call cannot be captured, None when it can."""
        if any(home is None or not home.pinned for home in (self.units[index].home for index in self._streamed)):
            return "some weights are in memory that is not page-locked"
        if not self._learnt or self._other_order is not None:
            return "the order of the blocks is not settled yet"
        return None if self._timed else "the blocks are being timed"

    def _fill(self) -> None:
        """Starts every copy, in order, whose place has been used: for this call, then for the next one."""
        count, after = len(self._views), self.schedule.after
        while self._filled < count and self._filled - after[self._filled] < self._cursor:
            self._copy(self._filled, self._filled - after[self._filled])
            self._filled += 1
        limit = self.schedule.ahead if self._captured else count
        while self._filled >= count and self._next_filled < limit:
            freed_by = count + self._next_filled - after[self._next_filled]
            if freed_by >= self._cursor:
                break
            self._copy(self._next_filled, freed_by)
            self._next_filled += 1

    def _copy(self, position: int, freed_by: int) -> None:
        """Copies a unit to its place once the unit of `freed_by` (below 0: of the call before) has been used."""
        unit = self.units[self._streamed[position]]
        assert unit.home is not None and self._arena is not None
        offset = self.schedule.offsets[position]
        target = self._arena[offset : offset + unit.size_bytes]
        self._outdated.discard(self._streamed[position])
        self._ready[position] = self.engine.upload(target, unit.home.flat, self._used[freed_by])
        self.streamed_bytes += unit.size_bytes

    def _enter(self, index: int) -> None:
        if self._arena is None:
            return
        self._depth[index] = self._depth.get(index, 0) + 1
        if self._depth[index] > 1:  # its weights are bound already
            return
        self._send_home(index)  # the host may have changed or moved its weights there
        unit, position = self.units[index], self._position.get(index, -1)
        fits = position >= self._cursor and self._in_arena is None and unit.layout_id == self._layouts[position]  # not grown
        if self._running:
            self._seen.append(index)
        if not (fits and self._running):  # not running: a block called by itself, outside the denoiser's forward
            self._bind_beside(index)
            return
        self._skip_to(position)
        if index in self._outdated or self._filled <= position:
            self._copy(position, position - self.schedule.after[position])
            self._filled = max(self._filled, position + 1)
        self.engine.wait(self._ready.get(position))  # none: filled before a captured call began
        unit.bind(self._views[position])
        self._in_arena = index
        self._stamp(index, 0)

    def _bind_beside(self, index: int) -> None:
        """For a unit that comes out of turn, or inside another, or has a new shape: a buffer of its own, just for this once."""
        unit = self.units[index]
        assert unit.home is not None
        self.misses += 1
        flat = torch.empty(unit.size_bytes, dtype=torch.uint8, device=self.engine.device)
        self.engine.wait(self.engine.upload(flat, unit.home.flat, self.engine.mark()))
        self.streamed_bytes += unit.size_bytes
        unit.bind(unit.views(flat))
        self._beside[index] = flat
        self.extra_bytes = max(self.extra_bytes, sum(buffer.numel() for buffer in self._beside.values()))

    def _skip_to(self, position: int) -> None:
        """The call leaves out what was expected before `position`; those places are free."""
        if position > self._cursor:
            self.misses += position - self._cursor
            for left_out in range(self._cursor, min(position, self._filled)):
                self.engine.wait(self._ready.get(left_out))  # its place is free when nothing is being written there either
            mark = self.engine.mark()
            self._used[self._cursor : position] = [mark] * (position - self._cursor)
            self._cursor = position
            self._filled = max(self._filled, position)

    def _leave(self, index: int, _out: Any) -> None:
        depth = self._depth.get(index)
        if depth is None:
            return
        if depth > 1:
            self._depth[index] = depth - 1
            return
        if self._in_arena == index:
            self._stamp(index, 1)
        self._put_down(index)
        if self._running:
            self._fill()

    def _put_down(self, index: int) -> None:
        """Binds the unit to its host copy again, changes included, and frees its place."""
        self._depth.pop(index, None)
        try:
            self._send_home(index)
        finally:
            self._beside.pop(index, None)
            if self._in_arena == index:
                self._in_arena = None
                position = self._position[index]
                self._used[position] = self.engine.mark()
                self._cursor = position + 1

    def _send_home(self, index: int) -> None:
        """Binds the unit to its host copy, with what the host changed, perhaps behind a copy that has started."""
        unit = self.units[index]
        changed = unit.changed()
        if changed:
            self.engine.drain()  # the host copy is written now, or given up for another
            unit.write_back(changed)
            self.written_back += len(changed)
            self._outdated.add(index)
        if changed or unit.away:
            unit.bind(unit.home_views)


def _bracket(module: nn.Module, before: Callable[[], None], after: Callable[[Any], None]) -> list[Any]:
    """Hooks around the module's forward. Ours go first in and last out, so that other extensions' hooks see bound weights too.
    What they make is no inference tensor, which could not be changed in place later."""
    return [
        module.register_forward_pre_hook(torch.inference_mode(False)(lambda _module, _args: before()), prepend=True),
        module.register_forward_hook(torch.inference_mode(False)(lambda _module, _args, out: after(out)), always_call=True),
    ]


def _merged(seen: Sequence[int], before: Sequence[int], stay: set[int]) -> list[int]:
    """The order `seen` of streamed units, with those that stay put where they were: behind the unit that came before them."""
    order = list(seen)
    for number, index in enumerate(before):
        if index in stay:
            earlier = [unit for unit in before[:number] if unit in order]
            order.insert(order.index(earlier[-1]) + 1 if earlier else 0, index)
    return order
