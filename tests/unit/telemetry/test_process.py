"""The process and its machine, through a psutil that the test holds."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from vram_pilot.telemetry.process import NAMES, ProcessSampler, page_faults

GIB = 2**30


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    iowait: float = 0.0
    guest: float = 0.0


class Bench:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.times, self.host_times = Times(7.0, 3.0, 0.0), Times(80.0, 20.0, 290.0, 10.0, 5.0)
        self.process = SimpleNamespace(
            cpu_times=lambda: self.times,
            memory_info=lambda: SimpleNamespace(rss=2 * GIB),
            io_counters=lambda: SimpleNamespace(read_bytes=5_000),
        )
        self.psutil = SimpleNamespace(
            Process=lambda: self.process,
            cpu_times=lambda: self.host_times,
            virtual_memory=lambda: SimpleNamespace(total=32 * GIB, available=20 * GIB),
            swap_memory=lambda: SimpleNamespace(total=8 * GIB, used=GIB),
        )
        self.sampler = ProcessSampler(2.0, load=lambda: self.psutil, faults=lambda _: (3, 8), monotonic=lambda: self.now_s)

    def second(self) -> dict[str, float | None]:
        self.sampler.sample()
        self.now_s += 2.0
        self.times = Times(9.0, 4.0, 0.0)
        self.host_times = Times(83.0, 21.0, 301.0, 11.0, 5.0)
        return self.sampler.sample()


def test_every_metric_in_base_units() -> None:
    found = Bench().second()
    assert set(found) == set(NAMES)
    assert found == {
        "process_cpu_ratio": pytest.approx(1.5),  # one and a half cores
        "process_rss_bytes": 2 * GIB,
        "process_major_fault_count": 3,
        "process_page_fault_count": 8,
        "process_disk_read_bytes": 5_000,
        "host_cpu_ratio": pytest.approx(0.25),
        "host_load": pytest.approx(os.getloadavg()[0], abs=5),
        "host_ram_total_bytes": 32 * GIB,
        "host_ram_available_bytes": 20 * GIB,
        "host_swap_total_bytes": 8 * GIB,
        "host_swap_used_bytes": GIB,
    }


def test_the_first_reading_has_no_rate_and_says_none_rather_than_0() -> None:
    found = Bench().sampler.sample()
    assert (found["process_cpu_ratio"], found["host_cpu_ratio"]) == (None, None)
    assert found["process_rss_bytes"] == 2 * GIB


@pytest.mark.parametrize(
    ("gone", "metrics"),
    [
        ("cpu_times", {"process_cpu_ratio"}),
        ("memory_info", {"process_rss_bytes"}),
        ("io_counters", {"process_disk_read_bytes"}),  # macOS
    ],
)
def test_e9_what_a_platform_lacks_hides_only_itself(gone: str, metrics: set[str]) -> None:
    bench = Bench()
    delattr(bench.process, gone)
    found = bench.second()
    assert {name for name, value in found.items() if value is None} == metrics


def test_e1_without_psutil_there_is_a_reason_and_no_number() -> None:
    def load() -> Any:
        raise ImportError

    sampler = ProcessSampler(2.0, load=load)
    found = sampler.sample()
    assert {name for name, value in found.items() if value is not None} <= {"host_load"}
    assert sampler.note == "The package psutil is not installed, so CPU, RAM and disk stay empty."


def test_psutil_is_not_looked_for_with_every_reading_and_is_found_later() -> None:
    bench, found, tries = Bench(), False, 0

    def load() -> Any:
        nonlocal tries
        tries += 1
        if not found:
            raise ImportError
        return bench.psutil

    sampler = ProcessSampler(2.0, load=load, monotonic=lambda: bench.now_s)
    for _ in range(30):
        sampler.sample()
        bench.now_s += 2.0
    assert tries == 1
    found = True
    sampler.sample()
    assert sampler.sample()["process_rss_bytes"] == 2 * GIB
    assert sampler.note is None


def test_after_a_pause_the_rates_begin_anew() -> None:
    bench = Bench()
    bench.second()
    bench.sampler.close()
    bench.now_s += 3600.0
    assert bench.sampler.sample()["process_cpu_ratio"] is None


def test_the_real_psutil_of_this_machine() -> None:
    sampler = ProcessSampler(2.0)
    sampler.sample()
    found = sampler.sample()
    assert found["process_rss_bytes"] is not None
    assert 10 * 2**20 < found["process_rss_bytes"] < 64 * GIB
    assert found["host_ram_total_bytes"] is not None
    assert found["host_ram_available_bytes"] is not None
    assert 0 < found["host_ram_available_bytes"] < found["host_ram_total_bytes"]
    assert sampler.note is None


def test_page_faults_of_this_process_grow() -> None:
    before = page_faults(None)[1]
    block = bytearray(b"\1") * (64 * 2**20)  # written to, and so really taken
    after = page_faults(None)[1]
    assert len(block) == 64 * 2**20
    assert before is not None
    assert after is not None
    assert after > before
