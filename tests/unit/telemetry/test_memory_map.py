"""Columns of the map: for who watches, at most four a second, and the rarer the dearer they are."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from tests.fakes.segments import ACTIVE, AWAITED, FREE, segment
from vram_pilot.session.records import MapColumn, to_json
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.memory_map import MapSampler

MIB = 2**20


class Bench:
    """A sampler whose clock stands still unless the test moves it. cost_s: of a snapshot."""

    def __init__(self) -> None:
        self.now_s = self.busy_s = 100.0
        self.cost_s = 0.0
        self.taken = 0
        self.backend, self.started = "native", True
        self.found: list[dict[str, Any]] | Exception = [segment(1 << 36, [(MIB, ACTIVE), (MIB, FREE), (MIB // 2, AWAITED)])]
        self.timeline = Timeline()
        self.sampler = MapSampler(
            torch.device("cuda", 0),
            self.timeline,
            snapshot=self._snapshot,
            started=lambda: self.started,
            backend=lambda: self.backend,
            monotonic=lambda: self.now_s,
            busy=lambda: self.busy_s,
        )

    def _snapshot(self) -> list[dict[str, Any]]:
        self.taken += 1
        self.busy_s += self.cost_s
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def run(self, seconds: float) -> None:
        """As the pump does: asked every quarter of a second."""
        for _ in range(round(seconds * 4)):
            assert self.sampler.sample() == {}
            self.now_s += 0.25

    def columns(self) -> list[MapColumn]:
        return [record for record in self.timeline.after(0, 10**6).records if isinstance(record, MapColumn)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench()


def test_nothing_is_asked_of_torch_until_somebody_watches_and_soon_after_they_left(bench: Bench) -> None:
    bench.run(2)
    assert bench.taken == 0
    with bench.sampler.watching():
        bench.run(2)
        assert bench.taken == 8
    bench.run(4)
    assert bench.taken > 8, "a page that polls comes again"
    bench.run(4)
    before = bench.taken
    bench.run(4)
    assert bench.taken == before


def test_a_column_says_what_is_held_and_what_of_it_is_in_use(bench: Bench) -> None:
    bench.found.append(segment(2 << 36, [(MIB, ACTIVE)], device=1))  # type: ignore[union-attr]
    with bench.sampler.watching():
        bench.run(0.25)
    (found,) = bench.columns()
    assert (found.t_s, found.row_bytes, found.layout, found.note) == (100.0, MIB, 0, None)
    assert (found.held_bytes, found.active_bytes) == (2.5 * MIB, 1.5 * MIB), "of this card alone"
    assert list(b64decode(found.held)) == [255, 255, 128]
    assert list(b64decode(found.active)) == [255, 0, 128]
    assert to_json(found)["type"] == "MapColumn"


def test_dear_columns_are_taken_rarely(bench: Bench) -> None:
    """12 ms each, as for 20,000 blocks: a quarter of a percent of the time, from the first one on."""
    bench.cost_s = 0.012
    with bench.sampler.watching():
        bench.run(120)
    assert 23 <= bench.taken <= 26


def test_without_a_list_of_blocks_it_says_why_once_to_each_who_comes(bench: Bench) -> None:
    bench.backend = "cudaMallocAsync"
    with ExitStack() as stack:
        stack.enter_context(bench.sampler.watching())
        bench.run(3)
        assert [column.note for column in bench.columns()] == [
            "The allocator cudaMallocAsync keeps no list of its blocks, so there is no map of them."
        ]
        stack.enter_context(bench.sampler.watching())
        bench.run(3)
    assert len(bench.columns()) == 2 and bench.taken == 0


def test_before_torch_uses_the_card_it_waits_and_starts_no_cuda(bench: Bench) -> None:
    bench.started = False
    with bench.sampler.watching():
        bench.run(1)
        assert [column.note for column in bench.columns()] == ["Torch has not used the card yet."] and bench.taken == 0
        bench.started = True
        bench.run(1)
    assert bench.taken == 4 and bench.columns()[-1].held_bytes


@pytest.mark.parametrize("fault", [RuntimeError("device"), TypeError("shape"), KeyError("blocks")], ids=repr)
def test_a_torch_that_gives_no_list_is_asked_rarely_and_the_reason_is_said(bench: Bench, fault: Exception) -> None:
    bench.found = fault
    with bench.sampler.watching():
        bench.run(59)
    assert bench.taken == 1
    with bench.sampler.watching():
        bench.run(0.5)
        notes = [column.note for column in bench.columns()]
        assert len(notes) == 2 and type(fault).__name__ in str(notes[0]), "the second one who comes is told too"
        bench.found = [segment(1 << 36, [(MIB, ACTIVE)])]
        bench.run(3)
    assert bench.columns()[-1].held_bytes == MIB, "and it comes back by itself"
