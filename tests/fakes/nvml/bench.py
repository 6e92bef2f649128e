"""Both tiers of a fake card, read with a clock that only the test moves, and what the scenario "desktop" must give."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.nvml.module import FakeNvml
from vram_pilot.telemetry.card import CardSampler, CardSession
from vram_pilot.telemetry.cards import CudaDevice
from vram_pilot.telemetry.fields import fast_fields, slow_fields
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
