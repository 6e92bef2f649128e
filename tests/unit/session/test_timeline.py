"""Readers behind a cursor get every record once, or are told how many they lost."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.records import Note
from vram_pilot.session.timeline import Timeline


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


def test_a_timeline_keeps_something() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Timeline(0)
