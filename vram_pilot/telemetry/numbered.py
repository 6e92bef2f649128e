"""The card's readings that the driver gives by number, several in one call."""

from __future__ import annotations

from dataclasses import dataclass

from vram_pilot.telemetry.backoff import Backoff
from vram_pilot.telemetry.field import OpenCard, Values
from vram_pilot.telemetry.nvml import FieldValue


@dataclass(frozen=True)
class _Numbered:
    """per: the driver's units in a base unit."""

    name: str
    field_id: int
    per: float


_NUMBERED = (
    _Numbered("gpu_memory_temperature_c", 82, 1),
    _Numbered("gpu_power_instant_w", 186, 1000),
    # for how long clocks were held down, in nanoseconds
    _Numbered("gpu_clock_event_power_cap_s", 74, 1e9),
    _Numbered("gpu_clock_event_sync_boost_s", 76, 1e9),
    _Numbered("gpu_clock_event_sw_thermal_s", 269, 1e9),
    _Numbered("gpu_clock_event_hw_thermal_s", 270, 1e9),
    _Numbered("gpu_clock_event_hw_power_brake_s", 271, 1e9),
)


class NumberedValues:
    """Each has its own troubles: what this card does not have is not asked for with every reading."""

    names = tuple(each.name for each in _NUMBERED)

    def __init__(self) -> None:
        self._backoffs = [Backoff() for _ in _NUMBERED]

    def read(self, card: OpenCard) -> Values:
        now_s = card.monotonic()
        asked = [place for place, backoff in enumerate(self._backoffs) if backoff.ready(now_s)]
        answers = card.nvml.values(card.whole, [_NUMBERED[place].field_id for place in asked]) if asked else []
        values: list[float | None] = [None] * len(_NUMBERED)
        for place, answer in zip(asked, answers):
            if isinstance(answer, FieldValue):
                values[place] = answer.value / _NUMBERED[place].per
                self._backoffs[place].worked()
            else:
                self._backoffs[place].failed(now_s, unsupported=answer.kind == "unsupported")
        return tuple(values)

    def close(self, card: OpenCard) -> None:
        self._backoffs = [Backoff() for _ in _NUMBERED]
