"""Readers behind a cursor get every record once, or are told how many they lost."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.records import MapColumn, Note, Record, Sample, StepFinished, size_bytes
from vram_pilot.session.timeline import MAX_BYTES, Timeline


def note(number: int) -> Note:
    return Note(float(number), None, str(number))


def numbers(records: tuple[object, ...]) -> list[int]:
    return [int(record.text) for record in records if isinstance(record, Note)]


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=30),
)
def test_no_gap_and_no_double(capacity: int, turns: list[tuple[int, int]]) -> None:
    """Each turn appends some records and reads once with a limit: read and lost ones together are all, in order."""
    timeline = Timeline(capacity)
    written, cursor, accounted = 0, 0, 0
    for appended, limit in turns:
        for _ in range(appended):
            timeline.append(note(written))
            written += 1
        got = timeline.after(cursor, limit)
        accounted += got.lost
        assert numbers(got.records) == list(range(accounted, accounted + len(got.records)))
        accounted += len(got.records)
        cursor = got.cursor
        assert cursor == accounted
    rest = timeline.after(cursor, 10**6)
    assert accounted + rest.lost + len(rest.records) == written
    assert timeline.cursor == written


def test_a_reader_that_is_too_slow_is_told() -> None:
    timeline = Timeline(3)
    for number in range(10):
        timeline.append(note(number))
    got = timeline.after(2)
    assert (got.lost, numbers(got.records), got.cursor) == (5, [7, 8, 9], 10)


@pytest.mark.parametrize("cursor", [-1, 11, 10**9])
def test_a_cursor_of_another_process_reads_from_the_start(cursor: int) -> None:
    timeline = Timeline(4)
    for number in range(10):
        timeline.append(note(number))
    got = timeline.after(cursor)
    assert (got.lost, numbers(got.records)) == (0, [6, 7, 8, 9])


def test_an_empty_slice_keeps_its_cursor() -> None:
    timeline = Timeline()
    timeline.append(note(0))
    assert timeline.after(1).cursor == 1
    assert timeline.after(0, 0) == timeline.after(0, -5)
    assert timeline.after(0, 0).cursor == 0


def test_many_writers_and_a_reader() -> None:
    timeline = Timeline()
    writers = [
        threading.Thread(target=lambda base=base: [timeline.append(note(base + n)) for n in range(500)]) for base in (0, 10_000)
    ]
    seen: list[int] = []
    cursor = 0
    for writer in writers:
        writer.start()
    while len(seen) < 1000:
        assert timeline.wait(cursor, 5)
        got = timeline.after(cursor, 37)
        seen += numbers(got.records)
        cursor = got.cursor
    for writer in writers:
        writer.join()
    assert sorted(seen) == [*range(500), *range(10_000, 10_500)]
    assert [n for n in seen if n < 500] == list(range(500))


def test_wait_ends_with_a_record_or_the_time() -> None:
    timeline = Timeline()
    assert not timeline.wait(0, 0.01)
    waiter = threading.Thread(target=lambda: results.append(timeline.wait(0, 30)))
    results: list[bool] = []
    waiter.start()
    timeline.append(note(0))
    waiter.join(30)
    assert results == [True]


NAMES = tuple(f"metric_{place}" for place in range(64))


def reading(number: int, count: int = 25) -> Sample:
    return Sample(float(number), {name: number + place / 7 for place, name in enumerate(NAMES[:count])})


def map_column(number: int) -> MapColumn:
    return MapColumn(number + 0.5, 2**24, 0, number * 10**9, number * 10**9, f"{number:0684}", f"{number:0684}")


def step(number: int) -> StepFinished:
    times = (number + 0.25, number + 0.5, number / 3)
    return StepFinished(times[0], "a", number, "base", 0, 1, *times[1:], number * 10**9, number * 10**9, number * 10**9)


@given(st.integers(0, 3000), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), max_size=20))
def test_large_records_push_out_more_and_each_reader_is_told(max_bytes: int, sizes: list[tuple[int, int]]) -> None:
    timeline = Timeline(max_bytes=max_bytes)
    written: list[Record] = []
    for count, length in sizes:
        for _ in range(count):
            written.append(Note(0.0, None, "x" * length))
            timeline.append(written[-1])
    kept = timeline.after(0, 10**6)
    assert kept.lost + len(kept.records) == len(written) == kept.cursor
    assert list(kept.records) == written[kept.lost :]
    used = sum(map(size_bytes, kept.records))
    assert used <= max_bytes or len(kept.records) == 1, "the newest is kept, whatever it holds"
    if kept.lost:
        assert used + size_bytes(written[kept.lost - 1]) > max_bytes, "no more than necessary is given up"


@pytest.mark.parametrize("make", [reading, map_column, step])
def test_a_record_holds_about_what_is_said(make: Callable[[int], Record]) -> None:
    make(0)
    tracemalloc.start()
    try:
        made = [make(number) for number in range(1000, 2000)]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.6 < held / sum(map(size_bytes, made)) < 1.8


def test_ten_minutes_of_everything_that_a_page_shows_are_kept() -> None:
    """At the fastest that a user may set: ten readings a second, four columns of the map, and three steps."""
    slow, fast = size_bytes(reading(0, len(NAMES))), size_bytes(reading(0))
    second = 0.5 * slow + 9.5 * fast + 4 * size_bytes(map_column(0)) + 3 * size_bytes(step(0))
    assert 600 * second < MAX_BYTES


def test_a_timeline_keeps_something() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Timeline(0)
