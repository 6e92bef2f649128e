"""The card's readings by scenario: rows E1, E2, E6, E7 and E9."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.nvml import FakeCard, FakeNvml, Process, scenarios
from tests.fakes.nvml.module import NOT_SUPPORTED, U32, U64
from vram_pilot.telemetry.card import CardSampler, CardSession
from vram_pilot.telemetry.cards import CudaDevice
from vram_pilot.telemetry.fields import CLOCK_EVENTS, clock_events, fast_fields, slow_fields
from vram_pilot.telemetry.nvml import Nvml

GIB = 2**30
UUID = "GPU-11111111-2222-3333-4444-555555555555"

#: What the card of the scenario "desktop" says, in base units.
DESKTOP = {
    "gpu_used_bytes": 6 * GIB,
    "gpu_free_bytes": 24 * GIB - 6 * GIB - GIB // 2,
    "gpu_total_bytes": 24 * GIB,
    "gpu_reserved_bytes": GIB // 2,
    "gpu_utilization_ratio": 0.97,
    "gpu_memory_utilization_ratio": 0.41,
    "gpu_power_w": 288.25,
    "gpu_temperature_c": 66,
    "gpu_sm_clock_hz": 2505e6,
    "gpu_clock_events": 0x24,
    "gpu_utilization_age_s": 0.26,
    "gpu_process_bytes": 3 * GIB,
    "gpu_other_processes_bytes": GIB + GIB // 4,
    "gpu_memory_temperature_c": 84,
    "gpu_power_instant_w": 301.5,
    "gpu_clock_event_power_cap_s": 2.0,
    "gpu_clock_event_sync_boost_s": 0.0,
    "gpu_clock_event_sw_thermal_s": 0.5,
    "gpu_clock_event_hw_thermal_s": 0.0,
    "gpu_clock_event_hw_power_brake_s": 0.0,
    "gpu_pcie_tx_bytes_per_s": 0.0,
    "gpu_pcie_rx_bytes_per_s": 0.0,
    "gpu_nvlink_tx_bytes_per_s": 0.0,
    "gpu_nvlink_rx_bytes_per_s": 0.0,
    "gpu_xid_count": 0,
    "gpu_power_limit_w": 450.0,
    "gpu_energy_j": 123456.789,
    "gpu_memory_clock_hz": 10501e6,
    "gpu_graphics_clock_hz": 2520e6,
    "gpu_video_clock_hz": 1965e6,
    "gpu_performance_state": 2,
    "gpu_temperature_margin_c": 17,
    "gpu_fan_ratio": 0.45,
    "gpu_encoder_utilization_ratio": 0.03,
    "gpu_decoder_utilization_ratio": 0.07,
    "gpu_pcie_generation": 4,
    "gpu_pcie_width": 16,
    "gpu_pcie_replay_count": 5,
    "gpu_ecc_corrected_count": 11,
    "gpu_ecc_uncorrected_count": 1,
    "gpu_bar1_used_bytes": 2**25,
}
#: Function that fails to the metrics that it alone may take with it.
FUNCTIONS = {
    "nvmlDeviceGetMemoryInfo": ("gpu_used_bytes", "gpu_free_bytes", "gpu_total_bytes", "gpu_reserved_bytes"),
    "nvmlDeviceGetUtilizationRates": ("gpu_utilization_ratio", "gpu_memory_utilization_ratio"),
    "nvmlDeviceGetPowerUsage": ("gpu_power_w",),
    "nvmlDeviceGetTemperature": ("gpu_temperature_c",),
    "nvmlDeviceGetCurrentClocksEventReasons": ("gpu_clock_events",),
    "nvmlDeviceGetSamples": ("gpu_utilization_age_s",),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("gpu_process_bytes", "gpu_other_processes_bytes"),
    "nvmlEventSetWait_v2": ("gpu_xid_count", "gpu_xid"),
    "nvmlDeviceGetEnforcedPowerLimit": ("gpu_power_limit_w",),
    "nvmlDeviceGetTotalEnergyConsumption": ("gpu_energy_j",),
    "nvmlDeviceGetPerformanceState": ("gpu_performance_state",),
    "nvmlDeviceGetMarginTemperature": ("gpu_temperature_margin_c",),
    "nvmlDeviceGetFanSpeed": ("gpu_fan_ratio",),
    "nvmlDeviceGetEncoderUtilization": ("gpu_encoder_utilization_ratio",),
    "nvmlDeviceGetDecoderUtilization": ("gpu_decoder_utilization_ratio",),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("gpu_pcie_generation",),
    "nvmlDeviceGetCurrPcieLinkWidth": ("gpu_pcie_width",),
    "nvmlDeviceGetPcieReplayCounter": ("gpu_pcie_replay_count",),
    "nvmlDeviceGetTotalEccErrors": ("gpu_ecc_corrected_count", "gpu_ecc_uncorrected_count"),
    "nvmlDeviceGetBAR1MemoryInfo": ("gpu_bar1_used_bytes",),
    "nvmlDeviceGetClockInfo": ("gpu_sm_clock_hz", "gpu_memory_clock_hz", "gpu_graphics_clock_hz", "gpu_video_clock_hz"),
}
FIELDS = {
    82: ("gpu_memory_temperature_c",),
    186: ("gpu_power_instant_w",),
    74: ("gpu_clock_event_power_cap_s",),
    76: ("gpu_clock_event_sync_boost_s",),
    269: ("gpu_clock_event_sw_thermal_s",),
    270: ("gpu_clock_event_hw_thermal_s",),
    271: ("gpu_clock_event_hw_power_brake_s",),
    197: ("gpu_pcie_tx_bytes_per_s",),
    198: ("gpu_pcie_rx_bytes_per_s",),
    138: ("gpu_nvlink_tx_bytes_per_s",),
    139: ("gpu_nvlink_rx_bytes_per_s",),
}


class Bench:
    """Both tiers of a fake card, and a clock that only the test moves."""

    def __init__(self, fake: FakeNvml, device: CudaDevice | None = None, **environ: str) -> None:
        self.now_s = 100.0
        self.fake = fake
        fake.clock = lambda: self.now_s
        self.device = device or CudaDevice(0, UUID)
        self.context = True
        self.warnings: list[str] = []
        self.pauses: list[float] = []
        self.session = CardSession(
            lambda: self.device,
            environ,
            Nvml(fake.load),
            has_context=lambda: self.context,
            warn=self.warnings.append,
            monotonic=lambda: self.now_s,
            wall=lambda: 1.25 + self.now_s - 100.0,
            pause=self.pause,
        )
        self.fast = CardSampler("card", 0.25, fast_fields(), self.session)
        self.slow = CardSampler("card-slow", 2.0, slow_fields(), self.session, facts=True)
        self.on_pause: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        self.on_pause()

    def sample(self) -> dict[str, float | None]:
        return {**self.fast.sample(), **self.slow.sample()}

    def second(self) -> dict[str, float | None]:
        """The second reading, an instant after the first: rates have something to be compared with."""
        self.sample()
        self.now_s += 0.01
        return self.sample()

    def close(self) -> None:
        self.fast.close()
        self.slow.close()


def present(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


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


# -------------------------------------------------------------------------------------------------- one field in trouble


#: Functions that have another name, which serves where the driver lacks this one.
RENAMED = {
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetPerformanceState",
    "nvmlEventSetWait_v2",
}
NO_EVENT_CAME = ("nvmlEventSetWait_v2", "timeout")


@pytest.mark.parametrize(
    ("function", "error"), [(name, error) for name in FUNCTIONS for error in scenarios.ERRORS if (name, error) != NO_EVENT_CAME]
)
def test_e9_each_function_that_fails_hides_its_own_metrics_only(function: str, error: str) -> None:
    fake = scenarios.desktop()
    fake.failing[function] = scenarios.ERRORS[error]
    hidden = set() if error == "no such function" and function in RENAMED else set(FUNCTIONS[function])
    found = Bench(fake).second()
    assert DESKTOP.keys() - present(found).keys() == hidden - {"gpu_xid"}
    assert all(found[name] is None for name in hidden)


@pytest.mark.parametrize("error", scenarios.ERRORS.values(), ids=scenarios.ERRORS.keys())
@pytest.mark.parametrize("number", FIELDS)
def test_e9_each_numbered_value_that_fails_hides_itself_only(number: int, error: int) -> None:
    fake = scenarios.desktop()
    fake.failing_fields[number] = error
    found = Bench(fake).second()
    assert DESKTOP.keys() - present(found).keys() == set(FIELDS[number])


@pytest.mark.parametrize("sentinel", [0xFFFFFFFF, 9223372036854775794, 2**64 - 1, -1])
@pytest.mark.parametrize(
    "function", [name for name in FUNCTIONS if "Memory" not in name and "Samples" not in name and "Event" not in name]
)
def test_e7_a_sentinel_is_none_in_every_function(function: str, sentinel: int) -> None:
    fake = scenarios.desktop()
    pair = [sentinel, sentinel]
    shaped: dict[str, Any] = {
        "nvmlDeviceGetUtilizationRates": type("Rates", (), {"gpu": sentinel, "memory": sentinel})(),
        "nvmlDeviceGetEncoderUtilization": pair,
        "nvmlDeviceGetDecoderUtilization": pair,
        "nvmlDeviceGetBAR1MemoryInfo": type("Bar", (), {"bar1Used": sentinel, "bar1Total": sentinel})(),
        "nvmlDeviceGetComputeRunningProcesses_v3": [Process(os.getpid(), sentinel), Process(7, sentinel)],
    }
    fake.cards[0].values[function] = shaped.get(function, sentinel)
    fake.cards[0].drawing = []
    found = Bench(fake).second()
    hidden = [name for name in FUNCTIONS[function] if not (sentinel == -1 and name == "gpu_temperature_margin_c")]
    assert [found[name] for name in hidden] == [None] * len(hidden)


@pytest.mark.parametrize("number", FIELDS)
def test_e7_a_sentinel_is_none_in_every_numbered_value(number: int) -> None:
    fake = scenarios.desktop()
    fake.cards[0].fields[number] = (2**64 - 1, U64)
    found = Bench(fake).second()
    assert [found[name] for name in FIELDS[number]] == [None]


@pytest.mark.parametrize("answer", [None, "text", (), object()])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_e9_an_answer_of_another_shape_hides_only_itself(function: str, answer: object) -> None:
    fake = scenarios.desktop()
    fake.cards[0].values[function] = answer
    found = Bench(fake).second()
    gone = DESKTOP.keys() - present(found).keys()
    assert gone <= set(FUNCTIONS[function])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_e9_after_three_errors_in_a_row_a_field_is_back_at_once(function: str) -> None:
    bench = Bench(scenarios.desktop())
    bench.second()
    bench.fake.failing[function] = 999
    for _ in range(3):
        bench.now_s += 0.01
        found = bench.sample()
        assert all(found[name] is None for name in FUNCTIONS[function])
    del bench.fake.failing[function]
    bench.now_s += 0.01
    assert present(bench.sample()).keys() >= DESKTOP.keys() & set(FUNCTIONS[function])


def test_a_field_that_fails_on_and_on_is_asked_ever_more_rarely_and_comes_back_by_itself() -> None:
    bench = Bench(scenarios.desktop())
    bench.fake.failing["nvmlDeviceGetPowerUsage"] = 999
    for _ in range(480):  # two minutes of the fast tier
        bench.fast.sample()
        bench.now_s += 0.25
    assert 5 <= bench.fake.calls["nvmlDeviceGetPowerUsage"] <= 12
    del bench.fake.failing["nvmlDeviceGetPowerUsage"]
    bench.now_s += 30.0
    assert bench.fast.sample()["gpu_power_w"] == pytest.approx(288.25)


def test_what_is_not_supported_is_asked_once_a_minute() -> None:
    bench = Bench(scenarios.desktop())
    bench.fake.failing["nvmlDeviceGetFanSpeed"] = NOT_SUPPORTED
    for _ in range(60):
        bench.slow.sample()
        bench.now_s += 2.0
    assert bench.fake.calls["nvmlDeviceGetFanSpeed"] == 2


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


# --------------------------------------------------------------------------------------------------------------- traffic


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
