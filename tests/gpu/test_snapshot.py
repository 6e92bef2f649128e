"""The allocator's snapshot of a real card: torch's own tools read it, and its sums are torch's own to the byte."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import torch
from torch.cuda import _memory_viz

from vram_pilot.session.snapshots import MAX_BYTES
from vram_pilot.telemetry.snapshot import SnapshotTaker

DEVICE = torch.device("cuda", 0)
ID = "20260131-120000-ab12cd34"
MIB = 2**20


def taker() -> tuple[SnapshotTaker, dict[str, Callable[[], bytes]]]:
    torch.zeros(1, device=DEVICE)
    kept: dict[str, Callable[[], bytes]] = {}
    made = SnapshotTaker(DEVICE, kept.__setitem__)
    made.enabled = True
    return made, kept


def churn(count: int) -> float:
    """Allocates and frees; microseconds for each."""
    start_s = time.perf_counter()
    for number in range(count):
        torch.empty(1 << (10 + number % 16), dtype=torch.uint8, device=DEVICE)
    return (time.perf_counter() - start_s) / count * 1e6


def test_a_jobs_peak_is_in_its_snapshot_and_torchs_tools_read_it() -> None:
    made, kept = taker()
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    made.job_started()
    peak = torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE)
    del peak
    made.job_finished(ID)
    content = kept[ID]()
    snapshot = pickle.loads(content)
    segments = [segment for segment in snapshot["segments"] if segment["device"] == DEVICE.index]
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved(DEVICE)
    assert sum(segment["allocated_size"] for segment in segments) == torch.cuda.memory_allocated(DEVICE)
    assert max(event["size"] for event in snapshot["device_traces"][DEVICE.index]) == 512 * MIB
    assert "total_allocated" in _memory_viz.segsum(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "MemoryViz" in plot(snapshot)
    assert not torch._C._cuda_isHistoryEnabled()
    assert len(held) == 64 * MIB


def test_recording_costs_microseconds_and_the_file_is_bounded() -> None:
    made, kept = taker()
    churn(2000)
    without = churn(20_000)
    made.job_started()
    recorded = churn(60_000)
    start_s = time.perf_counter()
    made.job_finished(ID)
    taken_s = time.perf_counter() - start_s
    assert recorded - without < 20
    assert taken_s < 1.5
    size = len(kept[ID]())
    assert size <= MAX_BYTES
    print(f"{without:.1f} us an allocation, {recorded:.1f} us recorded, snapshot in {taken_s:.2f} s, {size / MIB:.1f} MiB")
