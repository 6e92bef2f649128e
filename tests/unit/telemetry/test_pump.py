"""The one thread that reads: when it runs, what it writes, and that it harms nobody."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.fakes.nvml import FakeNvml, scenarios
from vram_pilot.session.records import Record, Sample
from vram_pilot.session.samples import SampleColumns
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.allocator import AllocatorSampler
from vram_pilot.telemetry.card import CardSampler, CardSession
from vram_pilot.telemetry.cards import CudaDevice
from vram_pilot.telemetry.fields import fast_fields, slow_fields
from vram_pilot.telemetry.nvml import Nvml
from vram_pilot.telemetry.process import ProcessSampler
from vram_pilot.telemetry.pump import Pump
from vram_pilot.telemetry.samplers import outside_torch

THREAD = "vram-pilot-telemetry"
UUID = "GPU-11111111-2222-3333-4444-555555555555"
LONG_S = 30.0


class Probe:
    """An instrument that counts. fails: what `sample` raises from now on."""

    note = None

    def __init__(self, name: str = "probe", period_s: float = 0.001) -> None:
        self.name, self.period_s = name, period_s
        self.samples, self.closes = 0, 0
        self.threads: set[int] = set()
        self.fails: Exception | None = None
        self.closed = threading.Event()

    def sample(self) -> dict[str, float | None]:
        self.samples += 1
        self.threads.add(threading.get_ident())
        if self.fails is not None:
            raise self.fails
        return {f"{self.name}_count": self.samples}

    def close(self) -> None:
        self.closes += 1
        self.closed.set()


def pump_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def wait_for_end() -> None:
    for thread in pump_threads():
        thread.join(LONG_S)
    assert pump_threads() == []


def read(timeline: Timeline, count: int) -> list[Sample]:
    """The next `count` readings that are written from now on."""
    cursor, found = timeline.cursor, []
    while len(found) < count:
        assert timeline.wait(cursor, LONG_S), "no reading came"
        part = timeline.after(cursor)
        cursor = part.cursor
        found += [record for record in part.records if isinstance(record, Sample)]
    return found[:count]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    wait_for_end()


# ------------------------------------------------------------------------------------------------------ when it runs


def test_nobody_looks_and_nothing_happens() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,))
    assert pump_threads() == []
    pump.job(False)
    assert not pump.running
    assert (probe.samples, timeline.cursor) == (0, 0)


def test_it_reads_while_somebody_watches_and_ends_after() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,), linger_s=0.0)
    with pump.watching():
        read(timeline, 3)
        assert len(pump_threads()) == 1
    wait_for_end()
    assert not pump.running
    assert probe.closes == 1
    assert timeline.after(0).records[-1] == Sample(pytest.approx(time.monotonic(), abs=LONG_S), {"probe_count": probe.samples})


def test_it_reads_while_a_job_runs() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,), linger_s=0.0)
    pump.job(True)
    pump.job(True)  # a host may tell twice
    read(timeline, 2)
    pump.job(False)
    wait_for_end()


def test_it_goes_on_until_the_last_one_has_left() -> None:
    timeline = Timeline()
    pump = Pump(timeline, (Probe(),), linger_s=0.0)
    with pump.watching():
        with pump.watching():
            pump.job(True)
        read(timeline, 2)
        pump.job(False)
        read(timeline, 2)
    wait_for_end()


def test_a_page_that_polls_keeps_it_awake_from_one_time_to_the_next() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,), linger_s=LONG_S)
    with pump.watching():
        pass
    read(timeline, 5)
    assert probe.closes == 0
    pump.stop()
    wait_for_end()


def test_who_comes_back_is_served_again_by_one_thread() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,), linger_s=0.0)
    for _ in range(3):
        with pump.watching():
            read(timeline, 2)
            assert len(pump_threads()) == 1
        wait_for_end()
    assert probe.closes == 3


def test_who_comes_while_it_is_closing_is_served_by_the_same_thread() -> None:
    timeline = Timeline()
    pump: Pump | None = None

    class Late(Probe):
        def close(self) -> None:
            if not self.closes:
                assert pump is not None
                pump.job(True)
            super().close()

    probe = Late()
    pump = Pump(timeline, (probe,), linger_s=0.0)
    with pump.watching():
        read(timeline, 1)
    assert probe.closed.wait(LONG_S)
    read(timeline, 3)
    assert len(probe.threads) == 1
    pump.job(False)
    wait_for_end()


def test_stop_ends_it_whoever_watches_and_it_stays_so() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,), linger_s=LONG_S)
    with pump.watching():
        read(timeline, 1)
        pump.stop()
        pump.stop()
        assert pump_threads() == []
        assert probe.closes == 1
        with pump.watching():
            assert not pump.running


def test_e19_three_reloads_leave_one_thread() -> None:
    for _ in range(3):
        timeline = Timeline()
        pump = Pump(timeline, (Probe(),))
        with pump.watching():
            read(timeline, 1)
            assert len(pump_threads()) == 1
        pump.stop()


def test_many_who_come_and_go_at_once_leave_nothing_behind() -> None:
    probe, timeline = Probe(), Timeline()
    pump = Pump(timeline, (probe,), linger_s=0.0)

    def come_and_go() -> None:
        for _ in range(50):
            with pump.watching():
                assert len(pump_threads()) <= 1

    crowd = [threading.Thread(target=come_and_go) for _ in range(8)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(LONG_S)
    wait_for_end()
    with pump.watching():
        read(timeline, 1)


def test_e10_an_idle_card_is_not_touched() -> None:
    """No thread, so no wake-up; the driver's library is given back, so nothing of ours keeps a laptop's card awake."""
    fake, timeline = scenarios.desktop(), Timeline()
    pump = Pump(timeline, card(fake, 0.001, 0.001), linger_s=0.0)
    assert fake.total_calls == 0
    with pump.watching():
        read(timeline, 2)
        assert fake.users == 1
    wait_for_end()
    assert (fake.users, fake.event_sets) == (0, 0)
    calls = fake.total_calls
    gc.collect()
    assert fake.total_calls == calls


# --------------------------------------------------------------------------------------------------- what it writes


@pytest.mark.parametrize("late_s", [0.0, 0.003, 0.02])
def test_the_tiers_keep_step_and_the_slow_one_comes_with_a_fast_one(late_s: float) -> None:
    clock = [100.0]
    timeline = Timeline()
    pump = Pump(timeline, (Probe("fast", 0.25), Probe("slow", 2.0)), monotonic=lambda: clock[0])
    for tick in range(81):
        clock[0] = 100.0 + 0.25 * tick + (late_s if tick % 3 else 0.0)
        pump._tick()
    found = [record.values for record in timeline.after(0).records if isinstance(record, Sample)]
    assert len(found) == 81
    assert all("fast_count" in values for values in found)
    assert [place for place, values in enumerate(found) if "slow_count" in values] == list(range(0, 81, 8))


def test_readings_that_were_missed_are_not_made_up_for() -> None:
    clock = [100.0]
    timeline, probe = Timeline(), Probe("probe", 1.0)
    pump = Pump(timeline, (probe,), monotonic=lambda: clock[0])
    for now_s in (100.0, 101.0, 161.0, 161.2, 162.0):
        clock[0] = now_s
        pump._tick()
    assert probe.samples == 4


def test_what_is_read_together_is_derived_from_together() -> None:
    timeline = Timeline()
    pump = Pump(timeline, (Probe(),), derive=lambda values: {"double_count": 2 * (values["probe_count"] or 0)}, linger_s=0.0)
    with pump.watching():
        assert read(timeline, 1)[0].values["double_count"] is not None
    record = timeline.after(0).records[0]
    assert isinstance(record, Sample)
    assert record.values == {"probe_count": 1, "double_count": 2}


def test_memory_outside_torch_is_what_is_used_and_not_reserved() -> None:
    assert outside_torch({"gpu_used_bytes": 10, "reserved_bytes": 4}) == {"gpu_outside_torch_bytes": 6}
    assert outside_torch({"gpu_used_bytes": None, "reserved_bytes": 4}) == {"gpu_outside_torch_bytes": None}
    assert outside_torch({"reserved_bytes": 4}) == {}


def test_slow_readings_survive_the_thinning_of_a_long_job() -> None:
    columns = SampleColumns(capacity=64)
    for tick in range(10_000):
        values: dict[str, float | None] = {"fast": float(tick)}
        if tick % 8 == 5:
            values["slow"] = float(tick)
        columns.add(tick * 0.25, values)
    found = columns.to_json()
    assert 32 <= len(found["t_s"]) <= 64
    assert sum(value is not None for value in found["slow"]) >= len(found["slow"]) - 1
    assert all(abs(value / 4 - t_s) < 10_000 / 32 for value, t_s in zip(found["slow"], found["t_s"]) if value is not None)


# ------------------------------------------------------------------------------------------------------------- faults


def test_an_instrument_that_raises_hides_only_itself_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bad, good, timeline = Probe("bad"), Probe("good"), Timeline()
    bad.fails = ZeroDivisionError()
    pump = Pump(timeline, (bad, good), linger_s=0.0)
    with caplog.at_level(logging.WARNING), pump.watching():
        assert all(set(sample.values) == {"good_count"} for sample in read(timeline, 5))
        bad.fails = None
        assert any("bad_count" in sample.values for sample in read(timeline, 20))
    assert len([record for record in caplog.records if "bad" in record.getMessage()]) == 1


def test_an_instrument_that_cannot_be_closed_does_not_keep_the_others_open() -> None:
    class Stuck(Probe):
        def close(self) -> None:
            raise OSError

    last, timeline = Probe("last"), Timeline()
    pump = Pump(timeline, (Stuck(), last), linger_s=0.0)
    with pump.watching():
        read(timeline, 1)
    wait_for_end()
    assert last.closes == 1


def test_a_fault_of_its_own_ends_the_thread_and_not_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Timeline):
        broken = True

        def append(self, record: Record) -> int:
            if self.broken:
                raise MemoryError
            return super().append(record)

    timeline = Broken()
    pump = Pump(timeline, (Probe(),), linger_s=0.0)
    with pump.watching():
        wait_for_end()
    timeline.broken = False
    with pump.watching():
        read(timeline, 2)


def test_a_system_without_a_thread_to_give_has_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    pump = Pump(Timeline(), (Probe(),))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pump.watching():
            assert not pump.running


# ------------------------------------------------------------------------------------------------------------- bounds


def card(fake: FakeNvml, fast_s: float, slow_s: float) -> tuple[CardSampler, CardSampler]:
    session = CardSession(lambda: CudaDevice(0, UUID), {}, Nvml(fake.load))
    return (
        CardSampler("card", fast_s, fast_fields(), session),
        CardSampler("card-slow", slow_s, slow_fields(), session, facts=True),
    )


@pytest.mark.slow
def test_10_000_samples_take_no_more_memory_than_2_000() -> None:
    clock = [100.0]
    timeline = Timeline(capacity=500)
    samplers = (AllocatorSampler(torch.device("cpu"), 0.25), ProcessSampler(2.0), *card(scenarios.desktop(), 0.25, 2.0))
    pump = Pump(timeline, samplers, derive=outside_torch, monotonic=lambda: clock[0])

    def blocks_after(count: int) -> int:
        for _ in range(count):
            pump._tick()
            clock[0] += 0.25
        gc.collect()
        return sys.getallocatedblocks()

    before, after = blocks_after(2_000), blocks_after(8_000)
    pump._close()
    assert timeline.cursor == 10_000
    assert after - before < 2_000
