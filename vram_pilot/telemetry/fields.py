"""What is read of a card, and how often. Names as in docs/metrics.md."""

from __future__ import annotations

from vram_pilot.telemetry.card_memory import Holders, Memory
from vram_pilot.telemetry.field import Field, OpenCard, Plain, Values, scaled, whole
from vram_pilot.telemetry.numbered import NumberedValues
from vram_pilot.telemetry.nvml import Fault, number
from vram_pilot.telemetry.traffic import nvlink_traffic, pcie_traffic
from vram_pilot.telemetry.xids import Xids

MHZ, PERCENT, MILLI = 10**6, 100, 1000
#: NVML's numbers for clocks.
GRAPHICS, SM, MEMORY, VIDEO = range(4)
_HIGHEST_STATE = 15
_NOT_FOUND = 6

#: Reasons for a clock below its maximum, by their bits, named as dcgm-exporter names them. gpu_idle is no fault.
CLOCK_EVENTS = {
    "gpu_idle": 0x1,
    "clocks_setting": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}


def clock_events(bits: float | None) -> tuple[str, ...] | None:
    """The names of the reasons in the metric gpu_clock_events, None when it was not read."""
    return None if bits is None else tuple(name for name, bit in CLOCK_EVENTS.items() if int(bits) & bit)


def fast_fields() -> tuple[Field, ...]:
    """Under 6 µs a call. Few of them: at each one the poller and the thread that generates change places."""
    return (
        Memory(),
        Plain(("gpu_utilization_ratio", "gpu_memory_utilization_ratio"), _utilization),
        whole("gpu_power_w", "nvmlDeviceGetPowerUsage", per=MILLI),
        whole("gpu_temperature_c", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV", args=(0,)),
        clock("gpu_sm_clock_hz", SM),
        Plain("gpu_clock_events", _clock_events),
    )


def slow_fields() -> tuple[Field, ...]:
    """What is dear (energy 2.9 ms, fan and processes up to 4.5 ms on some cards) or changes slowly."""
    return (
        UtilizationAge(),
        Holders(),
        NumberedValues(),
        pcie_traffic(),
        nvlink_traffic(),
        Xids(),
        whole("gpu_power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", per=MILLI),
        whole("gpu_energy_j", "nvmlDeviceGetTotalEnergyConsumption", per=MILLI),
        clock("gpu_memory_clock_hz", MEMORY),
        clock("gpu_graphics_clock_hz", GRAPHICS),
        clock("gpu_video_clock_hz", VIDEO),
        Plain("gpu_performance_state", _performance_state),
        Plain("gpu_temperature_margin_c", _temperature_margin),
        whole("gpu_fan_ratio", "nvmlDeviceGetFanSpeed", per=PERCENT),
        whole("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", per=PERCENT, part=0),
        whole("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", per=PERCENT, part=0),
        whole("gpu_pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        whole("gpu_pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        whole("gpu_pcie_replay_count", "nvmlDeviceGetPcieReplayCounter"),
        whole("gpu_ecc_corrected_count", "nvmlDeviceGetTotalEccErrors", args=(0, 0)),
        whole("gpu_ecc_uncorrected_count", "nvmlDeviceGetTotalEccErrors", args=(1, 0)),
        Plain("gpu_bar1_used_bytes", _bar1_used),
    )


def clock(name: str, kind: int) -> Plain:
    """A clock as it is now."""
    return whole(name, "nvmlDeviceGetClockInfo", args=(kind,), times=MHZ)


class UtilizationAge:
    """How old the driver's newest sample of the utilisation is: it takes one in 1/6 to 1 s."""

    names = ("gpu_utilization_age_s",)
    _KIND = 1  # NVML's number for samples of the utilisation
    _LONGEST_S = 60.0

    def __init__(self) -> None:
        self._newest_us = 0

    def read(self, card: OpenCard) -> Values:
        try:
            _, samples = card.nvml.call("nvmlDeviceGetSamples", args=(card.whole, self._KIND, self._newest_us))
            self._newest_us = max([self._newest_us, *(int(sample.timeStamp) for sample in samples)])
        except Fault as fault:
            if fault.code != _NOT_FOUND or not self._newest_us:  # not found: nothing newer than the newest
                raise
        age_s = card.wall() - self._newest_us * 1e-6
        return (age_s if self._newest_us and 0 <= age_s <= self._LONGEST_S else None,)

    def close(self, card: OpenCard) -> None:
        self._newest_us = 0


def _utilization(card: OpenCard) -> Values:
    rates = card.nvml.call("nvmlDeviceGetUtilizationRates", args=(card.whole,))
    return scaled(rates.gpu, per=PERCENT), scaled(rates.memory, per=PERCENT)


def _clock_events(card: OpenCard) -> float | None:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return number(card.nvml.call(*names, args=(card.whole,)))


def _performance_state(card: OpenCard) -> float | None:
    state = number(card.nvml.call("nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerState", args=(card.whole,)))
    return state if state is not None and state <= _HIGHEST_STATE else None


def _temperature_margin(card: OpenCard) -> float | None:
    """May be below zero, which elsewhere stands for "not available"."""
    margin = card.nvml.call("nvmlDeviceGetMarginTemperature", args=(card.whole,))
    return float(margin) if isinstance(margin, int) and -200 < margin < 200 else None


def _bar1_used(card: OpenCard) -> float | None:
    return number(card.nvml.call("nvmlDeviceGetBAR1MemoryInfo", args=(card.whole,)).bar1Used)
