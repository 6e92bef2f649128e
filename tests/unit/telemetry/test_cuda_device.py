"""What CUDA says of its card, on torches that tell and on those that do not."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vram_pilot.telemetry import cuda_device
from vram_pilot.telemetry.cards import CudaDevice
from vram_pilot.telemetry.cuda_device import DeviceFacts, driver_identity, torch_uuid

UUID = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"


class FakeDriver:
    """libcuda with two cards. It has no call that would make a context. old: without the second form of the UUID call."""

    def __init__(self, old: bool = False) -> None:
        if not old:
            self.cuDeviceGetUuid_v2 = self.uuid

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        if ordinal.value > 1:
            return 101
        device._obj.value = ordinal.value + 40
        return 0

    def uuid(self, found: Any, device: Any) -> int:
        found._obj[:] = list(bytes.fromhex(UUID.replace("-", "")))
        return 0

    cuDeviceGetUuid = uuid

    def cuDeviceGetPCIBusId(self, text: Any, size: Any, device: Any) -> int:
        assert size.value == ctypes.sizeof(text)
        text.value = f"0000:{device.value:02X}:00.0".encode()
        return 0


@pytest.mark.parametrize("old", [False, True])
def test_the_driver_names_uuid_and_bus(old: bool) -> None:
    assert driver_identity(1, lambda: FakeDriver(old)) == (UUID, "0000:29:00.0")


def test_a_device_that_there_is_not_has_neither() -> None:
    assert driver_identity(7, lambda: FakeDriver()) == (None, None)


def test_without_the_drivers_library_there_is_neither() -> None:
    def load() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    assert driver_identity(0, load) == (None, None)
    assert driver_identity(0, lambda: SimpleNamespace()) == (None, None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: properties)
    monkeypatch.setattr(cuda_device, "_driver", FakeDriver)
    return properties


def test_a_newer_torch_tells_the_uuid_itself(started: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "_driver", lambda: SimpleNamespace())
    assert DeviceFacts(torch.device("cuda", 1))() == CudaDevice(1, UUID, None)


def test_an_older_torch_tells_nothing_and_the_driver_does(started: SimpleNamespace) -> None:
    del started.uuid
    assert torch_uuid(0) is None
    assert DeviceFacts(torch.device("cuda", 1))() == CudaDevice(1, UUID, "0000:29:00.0")


def test_a_device_without_a_number_is_cudas_first(started: SimpleNamespace) -> None:
    assert DeviceFacts(torch.device("cuda"))().ordinal == 0


def test_before_cuda_has_started_there_is_only_a_number_and_then_more(monkeypatch: pytest.MonkeyPatch) -> None:
    running = False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: running)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: SimpleNamespace(uuid=UUID))
    monkeypatch.setattr(cuda_device, "_driver", lambda: FakeDriver() if running else pytest.fail("asked before CUDA started"))
    facts = DeviceFacts(torch.device("cuda", 1))
    assert facts() == CudaDevice(1)
    running = True
    assert facts() == CudaDevice(1, UUID, "0000:29:00.0")


def test_a_device_that_fails_has_no_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ordinal: int) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert torch_uuid(0) is None
