"""Where each streamed unit lies in the arena, when it may be copied there, and which units stay on the device. Pure.

The arena is one device buffer. Units are laid into it one behind the other in the order of the forward pass, from the start
again when the end is reached, and from the start at every new call, so that each unit has one place for good. A copy may
begin when the last unit that lay in its place has been used. Every call is alike, so the copies for the first units of the
next call can begin before this one has ended.

The time of a step is found by running the schedule in the mind (`simulate`): copies one after another at the copy rate, units
one after another, each waiting for its copy. Bound from below by max(compute, streamed bytes / rate).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

ALIGNMENT = 512
#: Up to so many units every choice of resident ones is tried.
FEW = 7


@dataclass(frozen=True)
class UnitCost:
    """size_bytes: of the weights; seconds: of the unit's computation, in any unit that the copy rate agrees with."""

    size_bytes: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """resident: indices of units that stay. streamed: indices of the others, in order. offsets: their places in the arena.

    after: for each streamed unit, how many streamed units earlier (counted through the calls) the one lay whose use frees its
    place: at least 1. ahead: streamed units of the next call that are copied before this one ends.
    """

    resident: frozenset[int]
    streamed: tuple[int, ...]
    offsets: tuple[int, ...]
    after: tuple[int, ...]
    arena_bytes: int
    ahead: int
    step_s: float


def aligned(size_bytes: int) -> int:
    return (size_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def place(sizes: Sequence[int], arena_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(offsets, after) of streamed units of these sizes in an arena. Raises ValueError when one does not fit."""
    if any(aligned(size) > arena_bytes for size in sizes):
        raise ValueError("the arena is smaller than a unit")
    offsets, here = [], 0
    for size in sizes:
        if here + aligned(size) > arena_bytes:
            here = 0
        offsets.append(here)
        here += aligned(size)
    return tuple(offsets), tuple(_distance(index, sizes, offsets) for index in range(len(sizes)))


def _distance(index: int, sizes: Sequence[int], offsets: Sequence[int]) -> int:
    """How many units back the last one lay that overlaps unit `index`: itself, a whole call ago, at the latest."""
    count = len(sizes)
    start, end = offsets[index], offsets[index] + sizes[index]
    for back in range(1, count):
        other = (index - back) % count
        if offsets[other] < end and offsets[other] + sizes[other] > start:
            return back
    return count


def simulate(costs: Sequence[UnitCost], schedule: Schedule, rate: float, gap_s: float = 0.0) -> float:
    """Seconds of a step, once steps follow one another. rate: bytes a second; gap_s: between two calls, when no unit
    computes.
    """
    if not schedule.streamed:
        return sum(cost.seconds for cost in costs) + gap_s
    run = _Run(costs, schedule, rate)
    ends = []
    for _ in range(3):
        run.call()
        ends.append(run.now)
        run.now += gap_s
    return ends[-1] - ends[-2]


class _Run:
    """The schedule's clockwork. used, copied: by number of the streamed unit, counted through all calls."""

    def __init__(self, costs: Sequence[UnitCost], schedule: Schedule, rate: float) -> None:
        self.costs, self.schedule, self.rate = costs, schedule, rate
        self.count = len(schedule.streamed)
        self.streamed = set(schedule.streamed)
        self.used: list[float] = []
        self.copied: list[float] = []
        self.copy_free = self.now = 0.0

    def call(self) -> None:
        begin, limit = self.now, len(self.used) + self.count
        self._copy_what_can(limit, begin)
        for unit, cost in enumerate(self.costs):
            if unit in self.streamed:
                self.now = max(self.now, self.copied[len(self.used)])
            self.now += cost.seconds
            if unit in self.streamed:
                self.used.append(self.now)
                self._copy_what_can(limit + self.schedule.ahead, begin)
        if len(self.copied) > limit:
            self.now = max(self.now, self.copied[-1])  # a captured call ends when its last copy has

    def _copy_what_can(self, limit: int, begin: float) -> None:
        """Starts every copy, in order, whose place is free once the units used so far have been used."""
        while len(self.copied) < limit:
            index = len(self.copied) % self.count
            freed_by = len(self.copied) - self.schedule.after[index]
            if freed_by >= len(self.used):
                return
            start = max(self.copy_free, begin, self.used[freed_by] if freed_by >= 0 else 0.0)
            self.copy_free = start + self.costs[self.schedule.streamed[index]].size_bytes / self.rate
            self.copied.append(self.copy_free)


def floor_s(costs: Sequence[UnitCost], resident: Iterable[int], rate: float) -> float:
    """What no schedule can beat: the computation, or the copies of what is not resident."""
    kept = set(resident)
    return max(sum(cost.seconds for cost in costs), sum(c.size_bytes for i, c in enumerate(costs) if i not in kept) / rate)


def schedule(
    costs: Sequence[UnitCost], budget_bytes: int, arena_bytes: int, rate: float, *, gap_s: float = 0.0, tries: int = 60
) -> Schedule:
    """The best schedule found for these units, in the order of the forward pass.

    budget_bytes: resident units together never exceed it. arena_bytes: enlarged to the largest streamed unit where it is
    smaller. tries: rounds of exchanging a resident unit for a streamed one, each kept when `simulate` says that the step gets
    shorter.
    """
    if budget_bytes < 0 or arena_bytes < 0 or rate <= 0:
        raise ValueError("budget and arena must not be negative, and the rate must be above 0")
    if sum(cost.size_bytes for cost in costs) <= budget_bytes:
        return Schedule(frozenset(range(len(costs))), (), (), (), 0, 0, sum(cost.seconds for cost in costs))
    resident = _spread(costs, budget_bytes)
    best = _arrange(costs, resident, arena_bytes, rate, gap_s)
    if len(costs) <= FEW:  # a unit that is streamed alone cannot be copied ahead: with so few, each choice is looked at
        for chosen in _all_choices(costs, budget_bytes):
            candidate = _arrange(costs, chosen, arena_bytes, rate, gap_s)
            best = candidate if candidate.step_s < best.step_s else best
        return best
    target = floor_s(costs, resident, rate) * 1.005
    for attempt in range(tries):
        if best.step_s <= target or not best.resident:
            break
        changed = _exchange(costs, best.resident, budget_bytes, attempt)
        if changed is not None:
            candidate = _arrange(costs, changed, arena_bytes, rate, gap_s)
            if candidate.step_s < best.step_s:
                best = candidate
    return best


def with_best_arena(
    costs: Sequence[UnitCost], budget_bytes: int, arena_bytes: Sequence[int], rate: float, *, near: float = 1.02
) -> Schedule:
    """The schedule with the first of these arenas (smallest first) that brings the step within `near` times its floor; when
    none does, the one with the shortest step. Blocks that compute long on few weights want room for what is copied
    meanwhile."""
    best: Schedule | None = None
    for room in arena_bytes:
        found = schedule(costs, budget_bytes, room, rate)
        if best is None or found.step_s < best.step_s * 0.995:
            best = found
        if found.step_s <= near * floor_s(costs, found.resident, rate):
            break
    assert best is not None
    return best


def _all_choices(costs: Sequence[UnitCost], budget_bytes: int) -> Iterator[frozenset[int]]:
    for count in range(len(costs)):
        for chosen in combinations(range(len(costs)), count):
            if sum(costs[index].size_bytes for index in chosen) <= budget_bytes:
                yield frozenset(chosen)


def _spread(costs: Sequence[UnitCost], budget_bytes: int) -> frozenset[int]:
    """Resident units such that the streamed bytes grow evenly with the computed time."""
    total = sum(cost.size_bytes for cost in costs)
    time = sum(cost.seconds for cost in costs) or 1.0
    to_stream = total - budget_bytes
    resident: set[int] = set()
    kept, passed_s, streamed = 0, 0.0, 0
    for index, cost in enumerate(costs):
        passed_s += cost.seconds if any(c.seconds for c in costs) else cost.size_bytes * time / total
        if streamed + cost.size_bytes > to_stream * passed_s / time and kept + cost.size_bytes <= budget_bytes:
            resident.add(index)
            kept += cost.size_bytes
        else:
            streamed += cost.size_bytes
    for index in sorted(range(len(costs)), key=lambda i: -costs[i].size_bytes):  # the rest of the budget, largest first
        if index not in resident and kept + costs[index].size_bytes <= budget_bytes:
            resident.add(index)
            kept += costs[index].size_bytes
    return frozenset(resident)


def _arrange(costs: Sequence[UnitCost], resident: frozenset[int], arena_bytes: int, rate: float, gap_s: float) -> Schedule:
    """Places the streamed units and finds how many of the next call's to copy ahead."""
    streamed = tuple(index for index in range(len(costs)) if index not in resident)
    sizes = [costs[index].size_bytes for index in streamed]
    room = max(arena_bytes, max((aligned(size) for size in sizes), default=0))
    room = min(room, sum(aligned(size) for size in sizes))
    offsets, after = place(sizes, room)
    best = None
    for ahead in range(_most_ahead(after) + 1):
        candidate = Schedule(resident, streamed, offsets, after, room, ahead, 0.0)
        step_s = simulate(costs, candidate, rate, gap_s)
        if best is None or step_s < best.step_s * 0.9999:
            best = Schedule(resident, streamed, offsets, after, room, ahead, step_s)
    assert best is not None
    return best


def _most_ahead(after: Sequence[int]) -> int:
    """Units of the next call whose places are free before the last unit of this call has been used."""
    count = 0
    for index, back in enumerate(after):
        if index - back >= -1:  # freed by the last unit of this call, or by one of the next
            break
        count += 1
    return count


def _exchange(costs: Sequence[UnitCost], resident: frozenset[int], budget_bytes: int, attempt: int) -> frozenset[int] | None:
    """Another choice near this one: a resident unit is streamed, and what fits in its stead stays. Walks through all."""
    kept = sorted(resident)
    out = kept[attempt % len(kept)]
    room = budget_bytes - sum(costs[index].size_bytes for index in kept) + costs[out].size_bytes
    near: list[tuple[int, int]] = []
    for index, cost in enumerate(costs):
        if index not in resident and cost.size_bytes <= room:
            insort(near, (abs(index - out), index))
    if not near:
        return None
    chosen = set(resident) - {out}
    for _, index in near:
        if costs[index].size_bytes <= room:
            chosen.add(index)
            room -= costs[index].size_bytes
    return frozenset(chosen)
