"""What CUDA says of the card that torch uses. Starts no CUDA: before torch has done so there is only a number."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import torch

from vram_pilot.telemetry.cards import CudaDevice


class DeviceFacts:
    """The UUID from torch where it tells (2.4 and later), and that and the PCI bus from the CUDA driver itself.

    device: where the host computes; one without a number is CUDA's first, as it is for every thread that chose none.
    """

    def __init__(self, device: torch.device) -> None:
        self._known = CudaDevice(device.index or 0)
        self._complete = False

    def __call__(self) -> CudaDevice:
        if not self._complete and torch.cuda.is_initialized():
            ordinal = self._known.ordinal
            uuid, bus_id = driver_identity(ordinal)
            self._known = CudaDevice(ordinal, torch_uuid(ordinal) or uuid, bus_id)
            self._complete = True
        return self._known


def torch_uuid(ordinal: int) -> str | None:
    """As torch spells it, without a prefix; None where this torch does not tell."""
    try:
        uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    except (RuntimeError, AssertionError):
        return None
    return None if uuid is None else str(uuid)


def driver_identity(ordinal: int, load: Callable[[], Any] | None = None) -> tuple[str | None, str | None]:
    """(UUID, PCI bus id) of CUDA's device `ordinal`, by the driver library that torch has started; (None, None) without it."""
    try:
        driver = (load or _driver)()
        device = ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != 0:
            return None, None
        return _uuid(driver, device), _bus_id(driver, device)
    except (OSError, AttributeError):
        return None, None


def _driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _uuid(driver: Any, device: ctypes.c_int) -> str | None:
    """The second form gives a slice's own UUID, the first that of the card it is of."""
    found = (ctypes.c_ubyte * 16)()
    for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
        function = getattr(driver, name, None)
        if function is not None and function(ctypes.byref(found), device) == 0:
            return str(UUID(bytes=bytes(found)))
    return None


def _bus_id(driver: Any, device: ctypes.c_int) -> str | None:
    text = ctypes.create_string_buffer(32)
    found = driver.cuDeviceGetPCIBusId(text, ctypes.c_int(len(text)), device) == 0
    return text.value.decode("ascii", "replace") if found else None
