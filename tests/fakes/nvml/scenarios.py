"""Machines that users have, as far as the driver's library shows them."""

from __future__ import annotations

import os

from tests.fakes.nvml.module import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIBRARY_NOT_FOUND,
    NOT_SUPPORTED,
    FakeCard,
    FakeNvml,
    FakeSlice,
    Process,
)

GIB = 2**30


def desktop() -> FakeNvml:
    """One card: this process, a browser that draws, and another program that computes and draws."""
    card = FakeCard(
        processes=[Process(os.getpid(), 3 * GIB), Process(7, GIB)],
        drawing=[Process(7, GIB), Process(8, GIB // 4)],
    )
    return FakeNvml(card)


def old_binding() -> FakeNvml:
    """Text as bytes, only the old names, and the first form of the memory call."""
    card = FakeCard(uuid=b"GPU-11111111-2222-3333-4444-555555555555", bus=b"00000000:01:00.0", name=b"Fake 1080")
    nvml = FakeNvml(card)
    nvml.missing = {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetFieldValues",
        "nvmlEventSetWait_v2",
        "nvmlDeviceGetDriverModel_v2",
        "nvmlDeviceGetPerformanceState",
    }
    nvml.second_memory = False
    return nvml


def new_binding() -> FakeNvml:
    """The names that are to go are gone from the driver, though the binding still has them."""
    nvml = desktop()
    nvml.absent = {"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTemperature", "nvmlDeviceGetApplicationsClock"}
    return nvml


def windows_display() -> FakeNvml:
    """WDDM: the driver does not know who holds what."""
    nvml = desktop()
    for process in (*nvml.cards[0].processes, *nvml.cards[0].drawing):
        process.usedGpuMemory = None
    nvml.failing["nvmlEventSetCreate"] = NOT_SUPPORTED
    return nvml


def wsl() -> FakeNvml:
    """Linux in Windows: no processes, no events, no PCIe, no fan."""
    nvml = desktop()
    for name in (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlEventSetCreate",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetPcieReplayCounter",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetTotalEnergyConsumption",
    ):
        nvml.failing[name] = NOT_SUPPORTED
    nvml.cards[0].fields = {}
    return nvml


def mig() -> FakeNvml:
    """A card cut in two slices, with an empty place between them."""
    slices = [
        FakeSlice("MIG-aaaaaaaa-0000-0000-0000-000000000001", 1),
        None,
        FakeSlice("MIG-bbbbbbbb-0000-0000-0000-000000000002", 5),
    ]
    return FakeNvml(FakeCard(uuid="GPU-99999999-2222-3333-4444-555555555555", slices=slices))


def no_driver() -> FakeNvml:
    """The binding is there, the driver's library is too, the driver is not."""
    nvml = FakeNvml()
    nvml.failing["nvmlInit"] = DRIVER_NOT_LOADED
    return nvml


def no_library() -> FakeNvml:
    """The binding is there, and nothing of NVIDIA's."""
    nvml = FakeNvml()
    nvml.failing["nvmlInit"] = LIBRARY_NOT_FOUND
    return nvml


def two_cards() -> FakeNvml:
    """The faster one on the higher bus: the driver's first is CUDA's second."""
    slow = FakeCard(uuid="GPU-0b0b0b0b-0000-0000-0000-00000000000b", bus="00000000:01:00.0", name="slow", total=8 * GIB)
    fast = FakeCard(uuid="GPU-0a0a0a0a-0000-0000-0000-00000000000a", bus="00000000:41:00.0", name="fast", total=24 * GIB)
    return FakeNvml(slow, fast)


#: What a function may fail with, by name of the case.
ERRORS = {
    "not supported": NOT_SUPPORTED,
    "no permission": 4,
    "unknown": 999,
    "no such function": FUNCTION_NOT_FOUND,
    "timeout": 10,
}
