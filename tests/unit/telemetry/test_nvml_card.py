"""The card's readings by scenario: rows E1, E2, E4 and E6."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.nvml import FakeCard, FakeNvml, Process, scenarios
from tests.fakes.nvml.bench import DESKTOP, GIB, UUID, Bench, present
from tests.fakes.nvml.module import NOT_SUPPORTED
from vram_pilot.telemetry.card import CardSampler, CardSession
from vram_pilot.telemetry.cards import CudaDevice
from vram_pilot.telemetry.fields import CLOCK_EVENTS, clock_events, fast_fields
from vram_pilot.telemetry.nvml import Nvml

# ------------------------------------------------------------------------------------------------------ machines


def test_every_field_is_read_in_base_units() -> None:
    found = Bench(scenarios.desktop()).second()
    assert present(found) == pytest.approx(DESKTOP)
    assert found["gpu_xid"] is None


@pytest.mark.parametrize("machine", [scenarios.no_driver, scenarios.no_library, lambda: FakeNvml()])
def test_e1_without_a_driver_or_a_card_every_row_is_none_and_the_reason_is_said(machine: Any) -> None:
    bench = Bench(machine())
    found = bench.sample()
    assert found
    assert present(found) == {}
    assert bench.session.note is not None
    assert bench.session.note.startswith("The card has no readings: ")
    assert bench.warnings == []


def test_e1_without_the_package_every_row_is_none_and_the_reason_is_said() -> None:
    def load() -> Any:
        raise ImportError

    session = CardSession(lambda: CudaDevice(0), {}, Nvml(load))
    assert present(CardSampler("card", 0.25, fast_fields(), session).sample()) == {}
    assert session.note == "The card has no readings: the package nvidia-ml-py is not installed."


def test_e2_an_old_binding_gives_what_it_has() -> None:
    bench = Bench(scenarios.old_binding())
    found = present(bench.second())
    assert found["gpu_used_bytes"] == 6 * GIB + GIB // 2  # the first form counts the driver's share in
    assert "gpu_reserved_bytes" not in found
    expected = {
        name: DESKTOP[name] for name in found.keys() - {"gpu_used_bytes", "gpu_process_bytes", "gpu_other_processes_bytes"}
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert {"gpu_temperature_c", "gpu_clock_events", "gpu_performance_state", "gpu_xid_count"} <= found.keys()
    assert bench.session.facts["name"] == "Fake 1080"
    assert bench.session.facts["uuid"] == UUID


def test_e2_a_driver_that_dropped_the_old_names_gives_everything() -> None:
    bench = Bench(scenarios.new_binding())
    assert present(bench.second()) == pytest.approx(DESKTOP)
    assert bench.session.facts["graphics_application_clock_hz"] == pytest.approx(2420e6)


def test_windows_tells_nobodys_memory_and_everything_else() -> None:
    found = Bench(scenarios.windows_display()).second()
    missing = DESKTOP.keys() - present(found).keys()
    assert missing == {"gpu_process_bytes", "gpu_other_processes_bytes", "gpu_xid_count"}


def test_wsl_gives_what_it_has() -> None:
    bench = Bench(scenarios.wsl())
    found = present(bench.second())
    expected = {name: DESKTOP[name] for name in found}
    assert found == pytest.approx(expected)
    assert {"gpu_used_bytes", "gpu_utilization_ratio", "gpu_power_w", "gpu_temperature_c"} <= found.keys()
    assert "gpu_fan_ratio" not in found


def test_e6_a_slice_shows_its_own_memory_and_no_utilisation_at_all() -> None:
    slice_uuid = "MIG-bbbbbbbb-0000-0000-0000-000000000002"
    bench = Bench(scenarios.mig(), CudaDevice(0), CUDA_VISIBLE_DEVICES=slice_uuid)
    found = bench.second()
    assert found["gpu_total_bytes"] == 10 * GIB
    assert found["gpu_used_bytes"] == GIB
    for name in ("utilization", "memory_utilization", "encoder_utilization", "decoder_utilization"):
        assert found[f"gpu_{name}_ratio"] is None, "not supported must never read as 0"
    assert found["gpu_utilization_age_s"] is None
    assert found["gpu_power_w"] == pytest.approx(288.25), "power and temperature are the whole card's"
    assert bench.session.facts["mig_mode"] == "on"
    assert bench.session.match is not None
    assert bench.session.match.instance is not None
    assert bench.session.match.instance.uuid == slice_uuid


def test_e4_the_card_of_cudas_uuid_is_read_and_not_the_drivers_first() -> None:
    bench = Bench(scenarios.two_cards(), CudaDevice(0, "0a0a0a0a-0000-0000-0000-00000000000a"))
    assert bench.sample()["gpu_total_bytes"] == 24 * GIB
    assert bench.session.facts["nvml_index"] == 1


def test_e4_before_cuda_has_started_no_card_is_guessed_and_then_the_right_one_is_read() -> None:
    bench = Bench(scenarios.two_cards(), CudaDevice(0))
    assert present(bench.sample()) == {}
    assert bench.session.note is not None
    assert "CUDA has not started" in bench.session.note
    bench.device = CudaDevice(0, "0a0a0a0a-0000-0000-0000-00000000000a")
    assert bench.sample()["gpu_total_bytes"] == 24 * GIB
    assert bench.session.note is None


def test_e4_what_cuda_says_later_corrects_what_the_environment_said() -> None:
    bench = Bench(scenarios.two_cards(), CudaDevice(0), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert bench.sample()["gpu_total_bytes"] == 8 * GIB
    bench.device = CudaDevice(0, "0a0a0a0a-0000-0000-0000-00000000000a")
    assert bench.sample()["gpu_total_bytes"] == 24 * GIB


def test_another_card_that_is_lost_hides_only_itself() -> None:
    fake = scenarios.two_cards()
    fake.cards[0].lost = True
    assert Bench(fake, CudaDevice(0, "0a0a0a0a-0000-0000-0000-00000000000a")).sample()["gpu_total_bytes"] == 24 * GIB


# ----------------------------------------------------------------------------------------------------------- a lost card


def test_a_lost_card_gives_marked_readings_and_comes_back() -> None:
    bench = Bench(scenarios.desktop())
    assert present(bench.sample())
    bench.fake.cards[0].lost = True
    for _ in range(10):
        bench.now_s += 0.25
        found = bench.sample()
        assert found.keys() >= DESKTOP.keys()
        assert present(found) == {}
    assert len(bench.warnings) == 1
    assert "the card is lost" in bench.warnings[0]
    assert bench.fake.users == 0, "the library is given back, so that the driver can be loaded anew"
    bench.fake.cards[0].lost = False
    bench.now_s += 30.0
    assert present(bench.second()).keys() >= DESKTOP.keys()
    assert bench.session.note is None


def test_a_lost_card_is_not_asked_at_every_tick() -> None:
    bench = Bench(scenarios.desktop())
    bench.sample()
    bench.fake.cards[0].lost = True
    for _ in range(480):
        bench.fast.sample()
        bench.now_s += 0.25
    assert bench.fake.calls["nvmlInit"] <= 15


# ------------------------------------------------------------------------------------------------------- single matters


def test_a_closed_session_holds_nothing_and_opens_again() -> None:
    bench = Bench(scenarios.desktop())
    bench.sample()
    assert (bench.fake.users, bench.fake.event_sets) == (1, 1)
    bench.fast.close()
    assert bench.fake.users == 1, "the other tier still reads"
    bench.slow.close()
    bench.close()
    assert (bench.fake.users, bench.fake.event_sets) == (0, 0)
    assert present(bench.second()).keys() >= DESKTOP.keys()


def test_the_process_list_holds_each_process_once() -> None:
    fake = FakeNvml(FakeCard(processes=[Process(7, GIB)], drawing=[Process(7, GIB), Process(9, GIB)]))
    bench = Bench(fake)
    bench.context = False
    found = bench.sample()
    assert found["gpu_process_bytes"] == 0, "without a context this process holds nothing"
    assert found["gpu_other_processes_bytes"] == 2 * GIB


def test_in_a_container_where_the_driver_has_other_process_ids_nothing_is_guessed() -> None:
    found = Bench(FakeNvml(FakeCard(processes=[Process(7, GIB)]))).sample()
    assert (found["gpu_process_bytes"], found["gpu_other_processes_bytes"]) == (None, None)


def test_a_card_that_only_computes_lists_no_drawing_processes() -> None:
    fake = scenarios.desktop()
    fake.failing["nvmlDeviceGetGraphicsRunningProcesses_v3"] = NOT_SUPPORTED
    assert Bench(fake).sample()["gpu_other_processes_bytes"] == GIB


def test_xid_errors_are_counted_and_the_last_is_kept() -> None:
    bench = Bench(scenarios.desktop())
    bench.sample()
    bench.fake.cards[0].xids += [13, 79]
    found = bench.sample()
    assert (found["gpu_xid_count"], found["gpu_xid"]) == (2, 79)
    assert bench.sample()["gpu_xid_count"] == 2


def test_the_utilisations_age_grows_until_the_driver_has_a_newer_sample() -> None:
    bench = Bench(scenarios.desktop())
    assert bench.sample()["gpu_utilization_age_s"] == pytest.approx(0.25)
    bench.now_s += 2.0
    assert bench.sample()["gpu_utilization_age_s"] == pytest.approx(2.25)
    bench.fake.cards[0].sample_times_us.append(3_200_000)
    assert bench.sample()["gpu_utilization_age_s"] == pytest.approx(0.05)


def test_facts_are_read_once_a_minute() -> None:
    bench = Bench(scenarios.desktop())
    for _ in range(29):
        bench.slow.sample()
        bench.now_s += 2.0
    assert bench.fake.calls["nvmlDeviceGetName"] == 1
    assert bench.session.facts == {
        "name": "Fake 4090",
        "uuid": UUID,
        "pci_bus_id": "00000000:01:00.0",
        "nvml_index": 0,
        "driver": "550.90.07",
        "driver_cuda": "12.4",
        "vbios": "95.02.18.80.01",
        "inforom": "G002.0000.00.03",
        "compute_capability": "8.9",
        "compute_mode": "exclusive_process",
        "persistence_mode": "on",
        "mig_mode": "off",
        "ecc_mode": "on",
        "driver_model": "WDDM",
        "pcie_generation_max": 4,
        "pcie_width_max": 16,
        "sm_clock_max_hz": 3005e6,
        "memory_clock_max_hz": 11001e6,
        "graphics_clock_max_hz": 3020e6,
        "video_clock_max_hz": 2465e6,
        "graphics_application_clock_hz": 2420e6,
        "memory_application_clock_hz": 10401e6,
        "power_requested_w": 460.0,
        "power_default_w": 450.0,
        "power_min_w": 150.0,
        "power_max_w": 600.0,
        "temperature_slowdown_c": 90,
        "temperature_shutdown_c": 92,
        "temperature_max_operating_c": 83,
        "memory_temperature_max_c": 105,
        "bar1_total_bytes": 2**35,
    }


def test_the_events_names_are_dcgms() -> None:
    assert list(CLOCK_EVENTS) == [
        *("gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal"),
        *("hw_thermal", "hw_power_brake", "display_clocks"),
    ]
    assert list(CLOCK_EVENTS.values()) == [1 << place for place in range(9)]
    assert clock_events(0x24) == ("power_cap", "sw_thermal")
    assert clock_events(0) == ()
    assert clock_events(None) is None
