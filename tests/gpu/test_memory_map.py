"""The map of torch's memory on a real card: sums to the byte, a tensor in its rows, and what a column costs."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch

from vram_pilot.session.records import MapColumn
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.columns import Layout, column, encode, lay_out
from vram_pilot.telemetry.memory_map import MapSampler
from vram_pilot.telemetry.segments import light_snapshot

MIB = 2**20
#: What all columns together may take of the time, with room for a busy machine.
MOST_SHARE = 0.006


@pytest.fixture
def device() -> torch.device:
    assert torch.cuda.is_available(), "this test needs an NVIDIA card"
    torch.cuda.empty_cache()
    torch.zeros(1, device="cuda:0")
    return torch.device("cuda", 0)


def patchwork(device: torch.device, count: int) -> list[torch.Tensor | None]:
    """So many blocks of many sizes, every third one given back."""
    sizes = [(7919 * number) % 900_000 + 512 for number in range(count)]
    held: list[torch.Tensor | None] = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    held[::3] = [None] * len(held[::3])
    return held


def look(layout: Layout | None = None) -> tuple[list[dict[str, Any]], Layout, list[int], list[int]]:
    segments = light_snapshot()
    layout = lay_out(segments, layout)
    found = column(segments, layout)
    return segments, layout, found.held, found.active


def test_sums_are_torchs_own_to_the_byte(device: torch.device) -> None:
    held = patchwork(device, 3000)
    _, _, in_rows, in_use = look()
    stats = torch.cuda.memory_stats(device)
    assert sum(in_rows) == torch.cuda.memory_reserved(device)
    assert sum(in_use) == stats["active_bytes.all.current"]
    del held


def test_a_tensor_lights_exactly_its_rows(device: torch.device) -> None:
    kept = patchwork(device, 500)
    room = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    del room  # its segment stays, free
    _, layout, _, before = look()
    tensor = torch.empty(100 * MIB + 512, dtype=torch.uint8, device=device)
    segments, layout, _, after = look(layout)
    home = next(each for each in segments if each["address"] <= tensor.data_ptr() < each["address"] + each["total_size"])
    start = layout.places[home["address"]][0] + tensor.data_ptr() - home["address"]
    end = start + tensor.numel()
    lit = [max(min(end, (row + 1) * layout.row_bytes) - max(start, row * layout.row_bytes), 0) for row in range(len(after))]
    assert [now - then for now, then in zip(after, [*before, *[0] * (len(after) - len(before))])] == lit
    del kept


@pytest.mark.parametrize("count", [2_000, 20_000])
def test_what_a_column_costs(device: torch.device, count: int) -> None:
    held = patchwork(device, count)
    snapshots, columns, blocks, sent = [], [], 0, 0
    layout = None
    for _ in range(30):
        start = time.perf_counter()
        segments = light_snapshot()
        middle = time.perf_counter()
        layout = lay_out(segments, layout)
        found = column(segments, layout)
        sent = len(encode(found.held, layout.row_bytes)) + len(encode(found.active, layout.row_bytes))
        columns.append(time.perf_counter() - middle)
        snapshots.append(middle - start)
        blocks = sum(len(each["blocks"]) for each in segments)
    cost, snapshot = (statistics.median(times) * 1e3 for times in (columns, snapshots))
    print(f"{blocks} blocks in {len(segments)} segments: snapshot {snapshot:.2f} ms, column {cost:.2f} ms, {sent} bytes")
    assert cost < 2.0 * max(blocks / 20_000, 0.5) and sent < 4096
    del held


@pytest.mark.parametrize("count", [2_000, 20_000])
def test_all_columns_together_take_half_a_percent_of_the_time(device: torch.device, count: int) -> None:
    held = patchwork(device, count)
    timeline = Timeline()
    sampler = MapSampler(device, timeline)
    with sampler.watching():
        for _ in range(8):  # until its cost is known
            sampler.sample()
            time.sleep(0.25)
        before, start, busy = timeline.cursor, time.monotonic(), time.thread_time()
        while time.monotonic() - start < 12:
            sampler.sample()
            time.sleep(0.25)
        share = (time.thread_time() - busy) / (time.monotonic() - start)
    taken = [record for record in timeline.after(before).records if isinstance(record, MapColumn)]
    print(f"{count} tensors: {len(taken) / 12:.1f} columns/s, {share:.2%} of the time")
    assert taken and share < MOST_SHARE
    del held
