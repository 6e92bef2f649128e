"""The plan of a streamed denoiser: places that never clash, budgets that are kept, and choices near the best there is."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vram_pilot.streaming.schedule import (
    Schedule,
    UnitCost,
    _arrange,
    aligned,
    floor_s,
    place,
    schedule,
    simulate,
    with_best_arena,
)

RATE = 1000.0  # bytes a second, so that sizes in hundreds take tenths of seconds
SIZES = st.lists(st.integers(1, 9).map(lambda size: size * 512), min_size=1, max_size=12)
COSTS = st.lists(
    st.builds(UnitCost, st.integers(1, 8).map(lambda size: size * 512), st.floats(0.0, 10.0, allow_nan=False)),
    min_size=1,
    max_size=12,
)


@given(sizes=SIZES, spare=st.integers(0, 9))
def test_no_unit_is_written_over_before_it_has_been_used(sizes: list[int], spare: int) -> None:
    """Runs two calls on a model of the arena: what a unit finds in its place is what was copied for it."""
    arena = max(aligned(size) for size in sizes) + spare * 512
    offsets, after = place(sizes, arena)
    owner: list[tuple[int, int] | None] = [None] * arena
    count = len(sizes)
    copied = 0
    for number in range(2 * count):
        while copied < 2 * count and copied - after[copied % count] < number:  # as early as the plan allows
            index = copied % count
            for byte in range(offsets[index], offsets[index] + sizes[index], 512):
                owner[byte] = (copied // count, index)
            copied += 1
        index = number % count
        assert offsets[index] + sizes[index] <= arena
        for byte in range(offsets[index], offsets[index] + sizes[index], 512):
            assert owner[byte] == (number // count, index)


@given(sizes=SIZES)
def test_each_unit_waits_at_least_for_the_one_before_and_at_most_for_itself(sizes: list[int]) -> None:
    _, after = place(sizes, max(aligned(size) for size in sizes))
    assert all(1 <= back <= len(sizes) for back in after)


def test_an_arena_below_the_largest_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="smaller than a unit"):
        place([512, 2048], 1024)


@given(costs=COSTS, share=st.floats(0, 1.2), arena=st.integers(0, 20_000))
def test_the_budget_is_kept_and_every_unit_has_one_place(costs: list[UnitCost], share: float, arena: int) -> None:
    total = sum(cost.size_bytes for cost in costs)
    found = schedule(costs, int(total * share), arena, RATE)
    assert sum(costs[index].size_bytes for index in found.resident) <= int(total * share)
    assert sorted([*found.resident, *found.streamed]) == list(range(len(costs)))
    assert list(found.streamed) == sorted(found.streamed)
    assert all(offset + costs[index].size_bytes <= found.arena_bytes for index, offset in zip(found.streamed, found.offsets))
    assert 0 <= found.ahead <= len(found.streamed)
    if share >= 1:
        assert not found.streamed and found.arena_bytes == 0


@given(costs=COSTS, share=st.floats(0, 0.99), arena=st.integers(0, 20_000))
def test_no_plan_is_faster_than_the_floor(costs: list[UnitCost], share: float, arena: int) -> None:
    found = schedule(costs, int(sum(cost.size_bytes for cost in costs) * share), arena, RATE)
    assert found.step_s >= floor_s(costs, found.resident, RATE) * (1 - 1e-9)
    assert found.step_s == pytest.approx(simulate(costs, found, RATE))


@given(
    costs=st.lists(
        st.builds(UnitCost, st.integers(1, 6).map(lambda size: size * 512), st.integers(1, 6).map(float)),
        min_size=2,
        max_size=7,
    ),
    share=st.sampled_from([0.25, 0.5, 0.75]),
)
@settings(max_examples=60, deadline=None)
def test_the_choice_is_near_the_best_of_all_choices(costs: list[UnitCost], share: float) -> None:
    """Against every set of resident units that fits the budget, each with its best way to copy ahead."""
    budget = int(sum(cost.size_bytes for cost in costs) * share)
    arena = 6 * 512
    found = schedule(costs, budget, arena, 512.0)
    best = min(
        _arrange(costs, frozenset(chosen), arena, 512.0, 0.0).step_s
        for size in range(len(costs) + 1)
        for chosen in combinations(range(len(costs)), size)
        if sum(costs[index].size_bytes for index in chosen) <= budget and len(chosen) < len(costs)
    )
    assert best - 1e-9 <= found.step_s <= 1.5 * best


def test_heavy_computation_at_both_ends_is_used_to_copy_ahead() -> None:
    """As in a UNet: the first and last blocks compute long on few weights, those between are the other way round."""
    ends = [UnitCost(512, 5.0)] * 2
    costs = [*ends, *[UnitCost(5 * 512, 0.2)] * 6, *ends]
    plain = _arrange(costs, frozenset(), 10**6, 512.0, 0.0)
    assert plain.ahead > 0
    without = Schedule(plain.resident, plain.streamed, plain.offsets, plain.after, plain.arena_bytes, 0, 0.0)
    assert plain.step_s < simulate(costs, without, 512.0) - 1


def test_a_larger_arena_is_taken_only_where_it_shortens_the_step() -> None:
    ends = [UnitCost(512, 5.0)] * 2
    uneven = [*ends, *[UnitCost(5 * 512, 0.2)] * 6, *ends]
    even = [UnitCost(512, 1.0)] * 12
    rooms = [5 * 512, 10 * 512, 20 * 512]
    assert with_best_arena(uneven, 0, rooms, 512.0).arena_bytes > rooms[0]
    assert with_best_arena(even, 0, rooms, 600.0).arena_bytes == rooms[0]


@pytest.mark.parametrize(("budget", "arena", "rate"), [(-1, 0, 1.0), (0, -1, 1.0), (0, 0, 0.0)])
def test_nonsense_is_refused(budget: int, arena: int, rate: float) -> None:
    with pytest.raises(ValueError, match="must"):
        schedule([UnitCost(512)], budget, arena, rate)


def test_without_units_there_is_nothing_to_plan() -> None:
    found = schedule([], 0, 0, 1.0)
    assert (found.streamed, found.resident, found.arena_bytes) == ((), frozenset(), 0)
