"""Rates from the driver's byte counters, wide and narrow."""

from __future__ import annotations

import pytest

from tests.fakes.nvml import scenarios
from tests.fakes.nvml.bench import GIB, Bench
from tests.fakes.nvml.module import U32, U64


def traffic(bench: Bench) -> tuple[float | None, float | None]:
    found = bench.slow.sample()
    return found["gpu_pcie_tx_bytes_per_s"], found["gpu_pcie_rx_bytes_per_s"]


def test_a_wide_counter_gives_the_mean_rate_since_the_reading_before() -> None:
    bench = Bench(scenarios.desktop())
    assert traffic(bench) == (None, None)
    bench.now_s += 2.0
    bench.fake.cards[0].fields.update({197: (1_000 + 200, U64), 198: (2_000 + 80 * GIB, U64)})
    assert traffic(bench) == pytest.approx((100.0, 40 * GIB))
    assert bench.pauses == []


def test_a_narrow_counter_of_a_fast_link_is_read_twice_close_together() -> None:
    bench = Bench(scenarios.desktop())
    counters = bench.fake.cards[0].fields
    counters.update({197: (2**32 - 100, U32), 198: (0, U32)})
    bench.on_pause = lambda: counters.update({197: (100, U32), 198: (GIB // 2, U32)})
    assert traffic(bench) == pytest.approx((200 / 0.02, GIB / 2 / 0.02))
    assert bench.pauses == [0.02]


def test_a_narrow_counter_of_a_slow_link_needs_no_pause() -> None:
    bench = Bench(scenarios.desktop())
    for name, value in (("nvmlDeviceGetMaxPcieLinkGeneration", 3), ("nvmlDeviceGetMaxPcieLinkWidth", 1)):
        bench.fake.cards[0].values[name] = value
    counters = bench.fake.cards[0].fields
    counters.update({197: (2**32 - 100, U32), 198: (0, U32)})
    traffic(bench)
    bench.pauses.clear()
    bench.now_s += 2.0
    counters.update({197: (100, U32), 198: (GIB, U32)})
    assert traffic(bench) == pytest.approx((100.0, GIB / 2))
    assert bench.pauses == []


def test_the_driver_is_never_made_to_sample_the_pcie_throughput() -> None:
    bench = Bench(scenarios.desktop())
    bench.second()
    assert not any("PcieThroughput" in name for name in bench.fake.calls)
