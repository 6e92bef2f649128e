"""The instruments on a real card. Fails, not skips, where there is none."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from vram_pilot import cli
from vram_pilot.session.records import Sample
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.allocator import AllocatorSampler
from vram_pilot.telemetry.card import CardSampler, CardSession
from vram_pilot.telemetry.cuda_device import DeviceFacts, driver_identity, torch_uuid
from vram_pilot.telemetry.fields import fast_fields, slow_fields
from vram_pilot.telemetry.measure import measure
from vram_pilot.telemetry.samplers import Telemetry, telemetry
from vram_pilot.units import GIB, MIB

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def device() -> torch.device:
    assert torch.cuda.is_available(), "this test needs an NVIDIA card"
    torch.zeros(1, device="cuda:0")
    return torch.device("cuda", 0)


@pytest.fixture
def session(device: torch.device) -> Iterator[CardSession]:
    session = CardSession(DeviceFacts(device), os.environ, has_context=torch.cuda.is_initialized)
    yield session
    session.release("card")
    session.release("card-slow")


def fast(session: CardSession) -> CardSampler:
    return CardSampler("card", 0.25, fast_fields(), session)


def slow(session: CardSession) -> CardSampler:
    return CardSampler("card-slow", 2.0, slow_fields(), session, facts=True)


@contextmanager
def busy(work: Any) -> Iterator[None]:
    """`work` again and again in a thread, until the block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()
            torch.cuda.synchronize()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def products(device: torch.device) -> Any:
    matrix = torch.randn(8192, 8192, device=device, dtype=torch.float16)
    out = torch.empty_like(matrix)
    return lambda: [torch.mm(matrix, matrix, out=out) for _ in range(8)]


def run_python(code: str, **environ: str) -> Any:
    """What the code prints as JSON, in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------------------- memory


def test_totals_equal_torchs_to_the_byte_and_the_drivers_to_1_percent(device: torch.device, session: CardSession) -> None:
    kept = torch.empty(2 * GIB, dtype=torch.uint8, device=device)
    ours, card = AllocatorSampler(device, 0.25).sample(), fast(session).sample()
    free, total = torch.cuda.mem_get_info(device)
    assert ours["allocated_bytes"] == torch.cuda.memory_allocated(device)
    assert ours["reserved_bytes"] == torch.cuda.memory_reserved(device)
    assert ours["peak_allocated_bytes"] == torch.cuda.max_memory_allocated(device)
    assert card["gpu_total_bytes"] == pytest.approx(total, rel=0.01)
    assert card["gpu_free_bytes"] == pytest.approx(free, abs=0.01 * total)
    assert card["gpu_used_bytes"] == pytest.approx(total - free, abs=0.01 * total)
    assert kept.numel() == 2 * GIB


def test_what_is_allocated_is_seen_in_use(device: torch.device, session: CardSession) -> None:
    torch.cuda.empty_cache()
    sampler = fast(session)
    before = sampler.sample()["gpu_used_bytes"]
    kept = torch.empty(4 * GIB, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    after = sampler.sample()["gpu_used_bytes"]
    assert before is not None and after is not None
    assert after - before == pytest.approx(kept.numel(), rel=0.01)


def test_this_processs_share_is_at_least_what_torch_reserved_or_unknown(device: torch.device, session: CardSession) -> None:
    kept = torch.empty(GIB, dtype=torch.uint8, device=device)
    found = slow(session).sample()
    if found["gpu_process_bytes"] is not None:
        assert found["gpu_process_bytes"] >= torch.cuda.memory_reserved(device) >= kept.numel()
    else:  # a container: the driver knows this process by another number
        assert found["gpu_other_processes_bytes"] is None


def test_the_snapshot_agrees_with_the_statistics() -> None:
    """In a process of its own: what earlier tests captured would keep pools, which the statistics count in with the rest."""
    code = (
        "import json, torch; from vram_pilot.telemetry.segments import SegmentsSampler; device = torch.device('cuda', 0); "
        "blocks = [torch.empty(2**26, dtype=torch.uint8, device=device) for _ in range(12)]; del blocks[::2]; "
        "found = SegmentsSampler(device, 2.0, warn=print).sample(); stats = torch.cuda.memory_stats(device); "
        "print(json.dumps([found, stats['reserved_bytes.all.current'] - stats['active_bytes.all.current']]))"
    )
    found, unused = run_python(code)
    assert found["reserved_free_bytes"] == unused >= 6 * 64 * MIB
    assert found["graph_pool_bytes"] == 0
    assert 64 * MIB <= found["largest_free_block_bytes"] < unused
    assert 0 < found["fragmentation_ratio"] < 1


def test_e13_another_allocator_keeps_its_statistics_and_says_why_there_is_no_more() -> None:
    code = (
        "import json, torch; from vram_pilot.telemetry.allocator import AllocatorSampler; "
        "from vram_pilot.telemetry.segments import SegmentsSampler; device = torch.device('cuda', 0); "
        "kept = torch.empty(2**30, dtype=torch.uint8, device=device); segments = SegmentsSampler(device, 2.0, warn=print); "
        "print(json.dumps([AllocatorSampler(device, 0.25).sample(), segments.sample(), segments.note]))"
    )
    stats, segments, note = run_python(code, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert stats["allocated_bytes"] >= GIB
    assert stats["inactive_split_bytes"] is None
    assert set(segments.values()) == {None}
    assert "cudaMallocAsync" in note


# ----------------------------------------------------------------------------------------------------------- which card

WHICH = (
    "import json, os, torch; torch.zeros(1, device='cuda:0'); from vram_pilot.telemetry.card import CardSampler, CardSession; "
    "from vram_pilot.telemetry.cuda_device import DeviceFacts; from vram_pilot.telemetry.fields import fast_fields; "
    "session = CardSession(DeviceFacts(torch.device('cuda', 0)), os.environ); "
    "total = CardSampler('card', 0.25, fast_fields(), session).sample()['gpu_total_bytes']; match = session.match; "
    "print(json.dumps([match.card and match.card.uuid, match.by, match.reason, total]))"
)


def test_e4_the_card_is_found_by_its_uuid(device: torch.device, session: CardSession) -> None:
    fast(session).sample()
    match = session.match
    assert match is not None and match.card is not None, session.note
    assert match.by == "uuid"
    uuid, bus = driver_identity(0)
    assert uuid is not None and bus is not None
    assert torch_uuid(0) in (None, uuid)
    assert match.card.uuid is not None and match.card.uuid.endswith(uuid)


def test_e4_however_the_card_is_named_in_the_environment_it_is_the_same(device: torch.device, session: CardSession) -> None:
    fast(session).sample()
    assert session.match is not None and session.match.card is not None
    uuid = session.match.card.uuid
    assert uuid is not None
    index = str(session.match.card.index)
    for visible in (index, uuid, uuid[:12]):
        found = run_python(WHICH, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert found[:2] == [uuid, "uuid"], (visible, found)


def test_readings_start_no_cuda_and_make_no_context() -> None:
    assert torch.cuda.is_available(), "this test needs an NVIDIA card"
    code = (
        "import json, torch; from vram_pilot.session.timeline import Timeline; "
        "from vram_pilot.telemetry.samplers import telemetry; timeline = Timeline(); "
        "found = telemetry(timeline, torch.device('cuda', 0))\n"
        "with found.pump.watching():\n    assert timeline.wait(0, 30)\n"
        "found.pump.stop(); values = timeline.after(0).records[0].values\n"
        "print(json.dumps([torch.cuda.is_initialized(), values['gpu_process_bytes'], values['allocated_bytes']]))"
    )
    assert run_python(code) in ([False, 0, None], [False, None, None])


# ------------------------------------------------------------------------------------------------------ what they say


def test_a_busy_card_looks_busy(device: torch.device, session: CardSession) -> None:
    quick, thorough = fast(session), slow(session)
    with busy(products(device)):
        time.sleep(2.5)
        found = {**quick.sample(), **thorough.sample()}
    assert found["gpu_utilization_ratio"] is not None and found["gpu_utilization_ratio"] > 0.8
    assert found["gpu_power_w"] is not None and 50 < found["gpu_power_w"] < 2000
    assert found["gpu_temperature_c"] is not None and 15 < found["gpu_temperature_c"] < 110
    assert found["gpu_sm_clock_hz"] is not None and 3e8 < found["gpu_sm_clock_hz"] < 4e9
    assert found["gpu_clock_events"] is not None and not int(found["gpu_clock_events"]) & 1, "a busy card is not idle"
    assert found["gpu_utilization_age_s"] is None or found["gpu_utilization_age_s"] < 3
    print("missing here:", sorted(name for name, value in found.items() if value is None))
    print("facts:", session.facts)


def test_energy_is_power_over_time(device: torch.device, session: CardSession) -> None:
    sampler = slow(session)
    with busy(products(device)):
        time.sleep(1.5)
        watts, first, start = [], sampler.sample()["gpu_energy_j"], time.monotonic()
        while time.monotonic() < start + 5:
            watts.append(sampler.sample()["gpu_power_instant_w"])
            time.sleep(0.1)
        last, taken = sampler.sample()["gpu_energy_j"], time.monotonic() - start
    assert first is not None and last is not None
    known = [each for each in watts if each is not None]
    assert known
    assert (last - first) / taken == pytest.approx(statistics.mean(known), rel=0.15)


@pytest.mark.parametrize("way", ["rx", "tx"])
def test_pcie_counters_show_the_copies(device: torch.device, session: CardSession, way: str) -> None:
    """Received by the card is what goes up to it. The link's own headers are counted too."""
    host = torch.ones(256 * MIB, dtype=torch.uint8).pin_memory()
    card = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    copied = 0

    def copy() -> None:
        nonlocal copied
        (card.copy_ if way == "rx" else host.copy_)(host if way == "rx" else card, non_blocking=True)
        copied += card.numel()

    sampler, rates, others = slow(session), [], []
    with busy(copy):
        time.sleep(0.5)
        sampler.sample()
        start, before = time.monotonic(), copied
        for _ in range(10):
            time.sleep(0.3)
            found = sampler.sample()
            rates.append(found[f"gpu_pcie_{way}_bytes_per_s"])
            others.append(found[f"gpu_pcie_{'tx' if way == 'rx' else 'rx'}_bytes_per_s"])
        expected = (copied - before) / (time.monotonic() - start)
    known = [rate for rate in rates if rate is not None]
    assert known, "this driver gives no PCIe counters"
    print(f"{way}: counted {statistics.median(known) / 1e9:.2f} GB/s, copied {expected / 1e9:.2f} GB/s")
    assert 0.85 < statistics.median(known) / expected < 1.4
    assert statistics.median(rate or 0 for rate in others) < 0.3 * expected


# ------------------------------------------------------------------------------------------------------- what they cost


def test_e10_each_tier_is_cheap(device: torch.device, session: CardSession) -> None:
    quick, thorough = fast(session), slow(session)
    quick.sample(), thorough.sample()
    costs: dict[str, list[float]] = {}
    for _ in range(30):
        for sampler in (quick, thorough):
            start = time.perf_counter()
            sampler.sample()
            costs.setdefault(sampler.name, []).append(time.perf_counter() - start)
    medians = {name: statistics.median(each) for name, each in costs.items()}
    print({name: f"{value * 1e3:.2f} ms" for name, value in medians.items()})
    assert medians["card"] < 0.002
    assert medians["card-slow"] < 0.060, "with the pause of 20 ms where the counters are narrow"


def test_e10_readings_do_not_slow_the_card(device: torch.device) -> None:
    """Launch-bound work, as eager sampling is; benchmarks/telemetry.py holds the limit of 0.5 % on real jobs."""
    small = torch.randn(256, 256, device=device)
    found = telemetry(Timeline(), device)

    def rate() -> float:
        torch.cuda.synchronize()
        start, count = time.perf_counter(), 0
        while time.perf_counter() < start + 1.0:
            for _ in range(200):
                torch.mm(small, small)
            torch.cuda.synchronize()
            count += 1
        return count / (time.perf_counter() - start)

    rate()
    changes = []
    for pair in range(10):
        speeds = {}
        for watched in (True, False) if pair % 2 else (False, True):
            found.pump.start() if watched else found.pump.stop()
            with found.pump.watching():
                speeds[watched] = rate()
        changes.append(speeds[True] / speeds[False] - 1)
    found.pump.stop()
    print([f"{change:+.2%}" for change in changes])
    assert statistics.median(changes) > -0.02


def test_idle_it_takes_nothing(device: torch.device) -> None:
    timeline = Timeline()
    found: Telemetry = telemetry(timeline, device)
    with found.pump.watching():
        assert timeline.wait(0, 30)
    found.pump.stop()
    assert not found.pump.running
    cpu = time.process_time()
    threading.Event().wait(3.0)
    assert time.process_time() - cpu < 0.03


def test_watching_takes_little(device: torch.device) -> None:
    timeline = Timeline()
    found = telemetry(timeline, device)
    with found.pump.watching():
        assert timeline.wait(0, 30)
        cpu, start = time.process_time(), time.monotonic()
        threading.Event().wait(6.0)
        share = (time.process_time() - cpu) / (time.monotonic() - start)
    found.pump.stop()
    samples = [record for record in timeline.after(0).records if isinstance(record, Sample)]
    print(f"{share:.2%} of a core, {len(samples)} readings")
    assert 20 <= len(samples) <= 30
    assert share < 0.05


# -------------------------------------------------------------------------------------------------------------- copies


def by_hand(target: torch.Tensor, source: torch.Tensor, count: int = 20) -> float:
    """Bytes a second by the host's clock over `count` copies."""
    for _ in range(3):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return count * target.numel() / (time.perf_counter() - start)


def test_pinned_rates_are_those_of_an_independent_loop(device: torch.device) -> None:
    host = torch.ones(256 * MIB, dtype=torch.uint8).pin_memory()
    card = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    found = measure().rates
    print(
        {name: f"{rate.median / 1e9:.1f} GB/s ({rate.min / 1e9:.1f} to {rate.max / 1e9:.1f})" for name, rate in found.items()}
    )
    assert found["pinned_to_device"].median == pytest.approx(by_hand(card, host), rel=0.05)
    assert found["pinned_to_host"].median == pytest.approx(by_hand(host, card), rel=0.05)


def test_the_cards_own_rate_is_that_of_an_independent_loop(device: torch.device) -> None:
    source, target = (torch.empty(GIB, dtype=torch.uint8, device=device) for _ in range(2))
    assert measure().rates["device"].median == pytest.approx(2 * by_hand(target, source), rel=0.10)


def test_pageable_rates_are_those_of_an_independent_loop(device: torch.device) -> None:
    """The host's memory and its other users make these swing."""
    host = torch.ones(256 * MIB, dtype=torch.uint8)
    card = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    found = measure().rates
    assert found["pageable_to_device"].median == pytest.approx(by_hand(card, host), rel=0.25)
    assert found["pageable_to_host"].median == pytest.approx(by_hand(host, card), rel=0.25)


def test_the_command_takes_seconds_and_keeps_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    assert cli.main(["measure", "--data-dir", str(tmp_path), "--json", "-"]) == 0
    taken = time.monotonic() - start
    said = json.loads(capsys.readouterr().out)
    assert taken < 15
    assert said["gpu_uuid"].startswith("GPU-")
    assert said["driver"]
    kept = json.loads((tmp_path / "measured.json").read_text())["machines"]
    assert list(kept.values()) == [said]
