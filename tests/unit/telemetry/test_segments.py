"""What the allocator's snapshot says, and what happens when it says nothing: row E13."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vram_pilot.telemetry import segments
from vram_pilot.telemetry.segments import SegmentsSampler, light_snapshot, summarize

MIB = 2**20
CARD = torch.device("cuda", 0)


def segment(*blocks: tuple[int, str], device: int = 0, pool: tuple[int, int] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": device,
        "total_size": sum(size for size, _ in blocks),
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }
    return found if pool is None else {**found, "segment_pool_id": pool}


def free(count: int, size: int) -> list[tuple[int, str]]:
    return [(size, "inactive")] * count


class Bench:
    def __init__(self, snapshot: Any, backend: str = "native", started: bool = True, cost_s: float = 0.001) -> None:
        self.now_s, self.taken = 100.0, 0
        self.warnings: list[str] = []

        def take() -> list[dict[str, Any]]:
            self.taken += 1
            self.now_s += cost_s
            if isinstance(snapshot, Exception):
                raise snapshot
            return list(snapshot)

        self.sampler = SegmentsSampler(
            CARD,
            2.0,
            warn=self.warnings.append,
            snapshot=take,
            started=lambda: started,
            backend=lambda: backend,
            monotonic=lambda: self.now_s,
        )


def test_fragmentation_is_1_minus_the_largest_free_block_over_all_free() -> None:
    """12 of 256 MiB, of 3,072 MiB free."""
    found = summarize([segment(*free(12, 256 * MIB), (512 * MIB, "active_allocated"))], 0)
    assert found.free_bytes == 3072 * MIB
    assert found.largest_free_bytes == 256 * MIB
    assert found.fragmentation_ratio == pytest.approx(0.917, abs=5e-4)


def test_one_free_block_is_no_fragmentation_and_no_free_block_is_none() -> None:
    assert summarize([segment(*free(1, MIB))], 0).fragmentation_ratio == 0
    assert summarize([segment((MIB, "active_allocated"))], 0).fragmentation_ratio is None
    assert summarize([], 0).fragmentation_ratio is None


def test_what_a_stream_still_uses_is_not_free() -> None:
    assert summarize([segment((MIB, "active_awaiting_free"), (MIB, "active_pending_free"))], 0).free_bytes == 0


def test_other_cards_and_the_pools_of_graphs_are_told_apart() -> None:
    found = summarize(
        [
            segment(*free(1, MIB), pool=(0, 0)),
            segment(*free(1, 64 * MIB), device=1),
            segment(*free(1, 32 * MIB), pool=(0, 3)),
        ],
        0,
    )
    assert (found.free_bytes, found.largest_free_bytes, found.pool_bytes) == (MIB, MIB, 32 * MIB)


def test_an_older_torch_names_no_pools() -> None:
    assert Bench([segment(*free(2, MIB))]).sampler.sample() == {
        "reserved_free_bytes": 2 * MIB,
        "largest_free_block_bytes": MIB,
        "fragmentation_ratio": 0.5,
        "graph_pool_bytes": 0,
    }


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mempool_id must be a tuple of 2 integers"),
        TypeError("takes no arguments"),
        KeyError("segments"),
    ],
)
def test_e13_a_snapshot_that_fails_leaves_none_and_one_warning(error: Exception) -> None:
    bench = Bench(error)
    for _ in range(100):
        found = bench.sampler.sample()
        assert set(found.values()) <= {None}
        bench.now_s += 2.0
    assert len(bench.warnings) == 1
    assert "its statistics go on" in bench.warnings[0]
    assert bench.sampler.note == bench.warnings[0]
    assert 2 <= bench.taken <= 5, "it is tried again, once a minute"


def test_e13_blocks_of_another_shape_count_as_a_failure() -> None:
    bench = Bench([{"device": 0, "blocks": [{}]}])
    assert set(bench.sampler.sample().values()) == {None}
    assert len(bench.warnings) == 1


def test_another_allocator_says_why_it_is_empty() -> None:
    bench = Bench([], backend="cudaMallocAsync")
    assert set(bench.sampler.sample().values()) == {None}
    assert bench.taken == 0
    assert bench.sampler.note is not None
    assert bench.sampler.note.startswith("The allocator cudaMallocAsync keeps no list of its blocks")
    assert bench.warnings == []


def test_without_cuda_nothing_is_asked() -> None:
    bench = Bench([], started=False)
    assert set(bench.sampler.sample().values()) == {None}
    assert bench.taken == 0


@pytest.mark.parametrize(("cost_s", "most"), [(0.001, 30), (0.01, 7), (0.1, 1)])
def test_snapshots_take_a_thousandth_of_the_time_whatever_they_cost(cost_s: float, most: int) -> None:
    bench = Bench([segment(*free(1, MIB))], cost_s=cost_s)
    end_s = bench.now_s + 60.0
    while bench.now_s < end_s:
        bench.sampler.sample()
        bench.now_s += 2.0
    assert 1 <= bench.taken <= most


def test_the_history_of_allocations_is_left_out_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def new(mempool_id: Any = None, include_traces: bool = True) -> list[Any]:
        asked.append({"include_traces": include_traces, "mempool_id": mempool_id})
        return []

    monkeypatch.setattr(segments.torch.cuda, "memory_snapshot", new)
    light_snapshot()
    assert asked == [{"include_traces": False, "mempool_id": None}]


@pytest.mark.parametrize("old", [lambda: [{}], lambda mempool_id=None: [{}]])
def test_older_torches_take_no_such_argument(old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments.torch.cuda, "memory_snapshot", old)
    assert light_snapshot() == [{}]
