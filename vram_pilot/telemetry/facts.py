"""What does not change while a card is in use: who it is, its limits and its modes. Keys as in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vram_pilot.telemetry.field import OpenCard, scaled
from vram_pilot.telemetry.fields import GRAPHICS, MEMORY, MHZ, MILLI, SM, VIDEO
from vram_pilot.telemetry.nvml import Fault, text

Fact = str | float | None

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_DRIVER_MODELS = {0: "WDDM", 1: "TCC", 2: "MCDM"}
_SWITCH = {0: "off", 1: "on"}
# NVML's numbers for temperature thresholds and for the clocks that applications ask for
_SHUTDOWN, _SLOWDOWN, _MEMORY_MAX, _GPU_MAX = range(4)
_APPLICATION_TARGET = 1


def read_facts(card: OpenCard) -> dict[str, Fact]:
    """Every key of FACTS; None for what this card, driver or binding does not say. Raises Fault when the card is lost."""
    return {key: _read(card, read) for key, read in FACTS.items()}


def _read(card: OpenCard, read: Callable[[OpenCard], Fact]) -> Fact:
    try:
        return read(card)
    except Fault as fault:
        if fault.kind == "lost":
            raise
        return None
    except (TypeError, ValueError, AttributeError, LookupError):  # an answer of another shape
        return None


def _text(*functions: str) -> Callable[[OpenCard], Fact]:
    return lambda card: text(card.nvml.call(*functions, args=(card.whole,)))


def _number(
    *functions: str, args: tuple[Any, ...] = (), times: int = 1, per: int = 1, part: int | None = None
) -> Callable[[OpenCard], Fact]:
    def read(card: OpenCard) -> Fact:
        answer = card.nvml.call(*functions, args=(card.whole, *args))
        return scaled(answer if part is None else answer[part], times, per)

    return read


def _named(names: Mapping[int, str], *functions: str, part: int | None = None) -> Callable[[OpenCard], Fact]:
    def read(card: OpenCard) -> Fact:
        answer = card.nvml.call(*functions, args=(card.whole,))
        return names.get(int(answer if part is None else answer[part]))

    return read


def _max_clock(kind: int) -> Callable[[OpenCard], Fact]:
    return _number("nvmlDeviceGetMaxClockInfo", args=(kind,), times=MHZ)


def _application_clock(kind: int) -> Callable[[OpenCard], Fact]:
    """The older function of the two is the one that more drivers have."""

    def read(card: OpenCard) -> Fact:
        try:
            return scaled(card.nvml.call("nvmlDeviceGetApplicationsClock", args=(card.whole, kind)), MHZ)
        except Fault as fault:
            if fault.kind == "lost":
                raise
        return scaled(card.nvml.call("nvmlDeviceGetClock", args=(card.whole, kind, _APPLICATION_TARGET)), MHZ)

    return read


def _threshold(kind: int) -> Callable[[OpenCard], Fact]:
    return _number("nvmlDeviceGetTemperatureThreshold", args=(kind,))


def _cuda_version(card: OpenCard) -> Fact:
    """The newest CUDA that the driver serves: "13.0"."""
    number = int(card.nvml.call("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    return f"{number // 1000}.{number % 1000 // 10}"


def _capability(card: OpenCard) -> Fact:
    major, minor = card.nvml.call("nvmlDeviceGetCudaComputeCapability", args=(card.whole,))
    return f"{int(major)}.{int(minor)}"


def _bus_id(card: OpenCard) -> Fact:
    return text(card.nvml.call("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3", args=(card.whole,)).busId)


FACTS: dict[str, Callable[[OpenCard], Fact]] = {
    "name": _text("nvmlDeviceGetName"),
    "uuid": _text("nvmlDeviceGetUUID"),
    "pci_bus_id": _bus_id,
    "nvml_index": _number("nvmlDeviceGetIndex"),
    "driver": lambda card: text(card.nvml.call("nvmlSystemGetDriverVersion")),
    "driver_cuda": _cuda_version,
    "vbios": _text("nvmlDeviceGetVbiosVersion"),
    "inforom": _text("nvmlDeviceGetInforomImageVersion"),
    "compute_capability": _capability,
    "compute_mode": _named(_COMPUTE_MODES, "nvmlDeviceGetComputeMode"),
    "persistence_mode": _named(_SWITCH, "nvmlDeviceGetPersistenceMode"),
    "mig_mode": _named(_SWITCH, "nvmlDeviceGetMigMode", part=0),
    "ecc_mode": _named(_SWITCH, "nvmlDeviceGetEccMode", part=0),
    "driver_model": _named(_DRIVER_MODELS, "nvmlDeviceGetDriverModel_v2", "nvmlDeviceGetDriverModel", part=0),
    "pcie_generation_max": _number("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_width_max": _number("nvmlDeviceGetMaxPcieLinkWidth"),
    "sm_clock_max_hz": _max_clock(SM),
    "memory_clock_max_hz": _max_clock(MEMORY),
    "graphics_clock_max_hz": _max_clock(GRAPHICS),
    "video_clock_max_hz": _max_clock(VIDEO),
    "graphics_application_clock_hz": _application_clock(GRAPHICS),
    "memory_application_clock_hz": _application_clock(MEMORY),
    "power_requested_w": _number("nvmlDeviceGetPowerManagementLimit", per=MILLI),
    "power_default_w": _number("nvmlDeviceGetPowerManagementDefaultLimit", per=MILLI),
    "power_min_w": _number("nvmlDeviceGetPowerManagementLimitConstraints", per=MILLI, part=0),
    "power_max_w": _number("nvmlDeviceGetPowerManagementLimitConstraints", per=MILLI, part=1),
    "temperature_slowdown_c": _threshold(_SLOWDOWN),
    "temperature_shutdown_c": _threshold(_SHUTDOWN),
    "temperature_max_operating_c": _threshold(_GPU_MAX),
    "memory_temperature_max_c": _threshold(_MEMORY_MAX),
    "bar1_total_bytes": lambda card: scaled(card.nvml.call("nvmlDeviceGetBAR1MemoryInfo", args=(card.whole,)).bar1Total),
}
