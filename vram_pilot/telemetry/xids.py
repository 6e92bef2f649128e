"""XID errors, as the driver reports them while somebody listens."""

from __future__ import annotations

from typing import Any

from vram_pilot.telemetry.field import OpenCard, Values
from vram_pilot.telemetry.nvml import Fault

_XID_EVENT = 0x8
_TIMEOUT = 10
_MOST_AT_ONCE = 16


class Xids:
    """How many came since the instruments were started, and the last one's number, None while none came."""

    names = ("gpu_xid_count", "gpu_xid")

    def __init__(self) -> None:
        self._events: Any = None
        self._count = 0
        self._last: int | None = None

    def read(self, card: OpenCard) -> Values:
        if self._events is None:
            self._listen(card)
        for _ in range(_MOST_AT_ONCE):
            event = self._next(card)
            if event is None:
                break
            if int(event.eventType) & _XID_EVENT:
                self._count, self._last = self._count + 1, int(event.eventData)
        return self._count, self._last

    def close(self, card: OpenCard) -> None:
        events, self._events = self._events, None
        if events is not None:
            card.nvml.call("nvmlEventSetFree", args=(events,))

    def _listen(self, card: OpenCard) -> None:
        events = card.nvml.call("nvmlEventSetCreate")
        try:
            card.nvml.call("nvmlDeviceRegisterEvents", args=(card.whole, _XID_EVENT, events))
        except Fault:
            card.nvml.call("nvmlEventSetFree", args=(events,))
            raise
        self._events = events

    def _next(self, card: OpenCard) -> Any:
        """One event that has come, None when there is none. Does not wait."""
        try:
            return card.nvml.call("nvmlEventSetWait_v2", "nvmlEventSetWait", args=(self._events, 0))
        except Fault as fault:
            if fault.code == _TIMEOUT:
                return None
            raise
