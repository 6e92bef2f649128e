"""The picture of the address space: every byte in its row, and what it costs."""

from __future__ import annotations

import random
import time
from base64 import b64decode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.segments import ACTIVE, AWAITED, FREE, many, segment
from vram_pilot.telemetry.columns import ROWS, SMALLEST_ROW_BYTES, column, encode, lay_out

MIB = 2**20
#: The promise is 2 ms on an ordinary machine; a slow or busy one may take a few times as long.
COST_S, SLOWNESS = 0.002, 3
WIRE_BYTES = 4096

blocks = st.lists(
    st.tuples(st.integers(1, 40_000).map(lambda size: size * 512), st.sampled_from([ACTIVE, AWAITED, FREE])),
    min_size=1,
    max_size=30,
)
addresses = st.lists(st.integers(1, 2**10).map(lambda number: number << 36), min_size=1, max_size=20, unique=True)


@st.composite
def snapshots(draw: Any) -> list[dict[str, Any]]:
    return [segment(address, draw(blocks)) for address in draw(addresses)]


def states(segments: list[dict[str, Any]], *wanted: str) -> int:
    return sum(block["size"] for each in segments for block in each["blocks"] if block["state"] in wanted)


# ------------------------------------------------------------------------------------------------------------- the rows


@given(snapshots())
@settings(max_examples=200, deadline=None)
def test_every_byte_is_in_a_row(segments: list[dict[str, Any]]) -> None:
    layout = lay_out(segments)
    found = column(segments, layout)
    assert sum(found.held) == states(segments, ACTIVE, AWAITED, FREE)
    assert sum(found.active) == states(segments, ACTIVE, AWAITED)
    assert len(found.held) == len(found.active) <= ROWS
    assert all(0 <= active <= held <= layout.row_bytes for held, active in zip(found.held, found.active))


@given(snapshots())
@settings(max_examples=50, deadline=None)
def test_a_torch_that_gives_no_sums_is_summed_up(segments: list[dict[str, Any]]) -> None:
    layout = lay_out(segments)
    expected = column(segments, layout)
    for each in segments:
        del each["active_size"]
    assert column(segments, layout) == expected


@given(st.lists(snapshots(), min_size=2, max_size=4))
@settings(max_examples=100, deadline=None)
def test_it_stays_so_as_segments_come_and_go(moments: list[list[dict[str, Any]]]) -> None:
    layout = None
    for segments in moments:
        layout = lay_out(segments, layout)
        found = column(segments, layout)
        assert (sum(found.held), sum(found.active)) == (
            states(segments, ACTIVE, AWAITED, FREE),
            states(segments, ACTIVE, AWAITED),
        )
        assert all(0 <= active <= held <= layout.row_bytes for held, active in zip(found.held, found.active))
        places = sorted(layout.places.values())
        assert all(start + size <= after for (start, size), (after, _) in pairwise(places)), "no two lie in one place"
        assert set(layout.places) == {each["address"] for each in segments} and len(found.held) <= ROWS


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_block_at_a_known_address_lights_exactly_its_rows(data: Any) -> None:
    """One block in use, anywhere; everything else is free."""
    before, size, after = (512 * data.draw(st.integers(low, 400_000)) for low in (0, 1, 0))
    others = [segment(number << 36, [(data.draw(st.integers(1, 200)) * MIB, FREE)]) for number in (1, 3)]
    own = segment(2 << 36, [(length, state) for length, state in ((before, FREE), (size, ACTIVE), (after, FREE)) if length])
    segments = [others[1], own, others[0]]
    layout = lay_out(segments)
    found = column(segments, layout)
    start = others[0]["total_size"] + before
    expected = [
        max(min(start + size, (row + 1) * layout.row_bytes) - max(start, row * layout.row_bytes), 0)
        for row in range(len(found.active))
    ]
    assert found.active == expected


def test_a_block_that_ends_at_a_rows_edge_leaves_the_next_row_dark() -> None:
    found = column(*_laid([segment(1 << 36, [(2 * MIB, ACTIVE), (MIB, FREE), (MIB // 2, AWAITED)])]))
    assert found.active == [MIB, MIB, 0, MIB // 2]
    assert found.held == [MIB, MIB, MIB, MIB // 2]


def test_nothing_held_is_an_empty_column() -> None:
    layout = lay_out([])
    assert layout.extent_bytes == 0 and column([], layout).held == []
    assert encode([], layout.row_bytes) == ""


def _laid(segments: list[dict[str, Any]]) -> Any:
    return segments, lay_out(segments)


# ----------------------------------------------------------------------------------------------------------- the layout


def test_segments_lie_end_to_end_by_address() -> None:
    layout = lay_out([segment(3 << 36, [(20 * MIB, ACTIVE)]), segment(1 << 36, [(2 * MIB, ACTIVE)])])
    assert layout.places == {1 << 36: (0, 2 * MIB), 3 << 36: (2 * MIB, 20 * MIB)}


def test_what_lives_on_keeps_its_place_and_a_gap_is_filled_again() -> None:
    first, second, third = (segment(number << 36, [(20 * MIB, ACTIVE)]) for number in (1, 2, 3))
    layout = lay_out([first, second, third])
    layout = lay_out([first, third], layout)
    assert layout.places[third["address"]] == (40 * MIB, 20 * MIB) and layout.number == 0
    new, wide = segment(9 << 36, [(12 * MIB, FREE)]), segment(8 << 36, [(30 * MIB, FREE)])
    layout = lay_out([first, third, new, wide], layout)
    assert layout.places[new["address"]] == (20 * MIB, 12 * MIB), "into the gap"
    assert layout.places[wide["address"]] == (60 * MIB, 30 * MIB), "too wide for it"


def test_the_same_segments_are_the_same_layout() -> None:
    segments = many(100, 10, (MIB,))
    layout = lay_out(segments)
    assert lay_out(list(reversed(segments)), layout) is layout


def test_a_segment_that_grows_stays_where_it_is() -> None:
    """As with expandable segments."""
    small, last = segment(1 << 36, [(2 * MIB, ACTIVE)]), segment(2 << 36, [(20 * MIB, ACTIVE)])
    layout = lay_out([small, last])
    grown = segment(2 << 36, [(60 * MIB, ACTIVE)])
    assert lay_out([small, grown], layout).places[grown["address"]] == (2 * MIB, 60 * MIB)


def test_a_picture_that_is_mostly_hollow_is_laid_out_anew() -> None:
    segments = [segment(number << 36, [(200 * MIB, ACTIVE)]) for number in range(1, 11)]
    layout = lay_out(segments)
    anew = lay_out(segments[-1:], layout)
    assert (layout.number, anew.number) == (0, 1)
    assert anew.places == {10 << 36: (0, 200 * MIB)} and anew.row_bytes < layout.row_bytes


def test_rows_grow_by_powers_of_two_and_do_not_shrink_in_between() -> None:
    small, large = segment(1 << 36, [(600 * MIB, ACTIVE)]), segment(2 << 36, [(700 * MIB, ACTIVE)])
    layouts = [lay_out([small])]
    layouts += [lay_out([small, large], layouts[0])]
    layouts += [lay_out([small], layouts[1])]
    assert [layout.row_bytes // MIB for layout in layouts] == [2, 4, 4]
    assert lay_out([segment(1 << 36, [(512, ACTIVE)])]).row_bytes == SMALLEST_ROW_BYTES


# ------------------------------------------------------------------------------------------------------------- the wire


def test_nothing_and_everything_are_told_apart_from_almost() -> None:
    row = 4 * MIB
    assert list(b64decode(encode([0, 1, row // 2, row - 1, row], row))) == [0, 1, 128, 254, 255]


def test_a_column_of_20000_blocks_is_cheap_and_small() -> None:
    shapes = {
        "one segment": many(20_000, 1, (512, 2 * MIB, 3 * MIB + 512)),
        "some of each": many(10_000, 40, (2 * MIB, 11 * MIB, MIB + 512)) + many(10_000, 200, (512, 1024, 65_536)),
    }
    for name, segments in shapes.items():
        random.Random(1).shuffle(segments)
        layout, costs, sent = lay_out(segments), [], 0
        for _ in range(30):
            start = time.thread_time()
            layout = lay_out(segments, layout)
            found = column(segments, layout)
            sent = len(encode(found.held, layout.row_bytes)) + len(encode(found.active, layout.row_bytes))
            costs.append(time.thread_time() - start)
        print(f"{name}: {min(costs) * 1e3:.2f} ms, {sent} bytes")
        assert min(costs) < COST_S * SLOWNESS, name
        assert sent < WIRE_BYTES / 2, name


@pytest.mark.parametrize("count", [2000])
def test_many_new_segments_at_once_are_no_trouble(count: int) -> None:
    before = many(count, count, (2 * MIB,))
    layout = lay_out(before)
    after = before[: count // 2] + [segment((number << 36) + 512, [(2 * MIB, FREE)]) for number in range(count // 2)]
    start = time.thread_time()
    places = lay_out(after, layout).places
    assert time.thread_time() - start < 0.1 and len(places) == count
