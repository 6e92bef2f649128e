"""What a reading of the card is: one call of the driver's library and the metrics that it gives, in base units."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vram_pilot.telemetry.nvml import Nvml, number

Values = tuple[float | None, ...]


@dataclass
class OpenCard:
    """A card while the library is open. handle: the card, or the slice of it that is used; whole: the card itself."""

    nvml: Nvml
    handle: Any
    whole: Any
    #: Whether this process has a context on the card: without one it holds none of its memory.
    has_context: Callable[[], bool] = lambda: True
    #: Bytes a second that the card's PCIe link can carry at most each way, None when nobody knows.
    link_bytes_per_s: float | None = None
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep


class Field(Protocol):
    """It may keep what it needs from one reading to the next."""

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that it gives, in the order of its values."""

    def read(self, card: OpenCard) -> Values:
        """Raises Fault."""

    def close(self, card: OpenCard) -> None:
        """Gives back what it took of the library, and forgets. Raises Fault."""


class Plain:
    """A field that keeps nothing."""

    def __init__(self, names: str | tuple[str, ...], function: Callable[[OpenCard], float | Values | None]) -> None:
        self.names = (names,) if isinstance(names, str) else names
        self._function = function

    def read(self, card: OpenCard) -> Values:
        values = self._function(card)
        return values if isinstance(values, tuple) else (values,)

    def close(self, card: OpenCard) -> None:
        return


def whole(
    name: str, *functions: str, args: tuple[Any, ...] = (), times: int = 1, per: int = 1, part: int | None = None
) -> Plain:
    """What one function (the first of these that there is) says of the whole card. part: which entry of its answer."""

    def read(card: OpenCard) -> float | None:
        answer = card.nvml.call(*functions, args=(card.whole, *args))
        return scaled(answer if part is None else answer[part], times, per)

    return Plain(name, read)


def scaled(raw: Any, times: int = 1, per: int = 1) -> float | None:
    """`raw` in the base unit, None for a sentinel. A whole number stays one where nothing is to be divided."""
    value = number(raw)
    return None if value is None else value * times if per == 1 else value * times / per
