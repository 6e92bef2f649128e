"""What passes between the card and the rest of the machine, by the driver's byte counters.

nvmlDeviceGetPcieThroughput is never called: it holds the driver for 20 ms while it samples. The counters take 0.3 ms, but
PCIe's may be 32 bits wide, which a fast link fills in 80 ms: two readings close together then tell the rate.
"""

from __future__ import annotations

from collections.abc import Callable

from vram_pilot.telemetry.field import OpenCard, Values
from vram_pilot.telemetry.nvml import Fault, FieldId, FieldValue
from vram_pilot.telemetry.rates import CounterRate

_WINDOW_S = 0.02
_ALL_LINKS = 0xFFFFFFFF
_FASTEST_PCIE = 121e9  # generation 6, 16 lanes: what an unknown link is taken for
_FASTEST_NVLINK = 2e12


class Traffic:
    """Two counters, of what the card sent and what it received. unit_bytes: what one count stands for."""

    def __init__(
        self,
        names: tuple[str, str],
        ids: tuple[FieldId, FieldId],
        unit_bytes: int,
        most_bytes_per_s: Callable[[OpenCard], float],
    ) -> None:
        self.names = names
        self._ids, self._unit_bytes, self._most = ids, unit_bytes, most_bytes_per_s
        self._rates = (CounterRate(), CounterRate())

    def read(self, card: OpenCard) -> Values:
        counters = self._counters(card)
        rates = self._update(card, counters)
        if any(rate is None and counter is not None and counter.bits <= 32 for rate, counter in zip(rates, counters)):
            card.pause(_WINDOW_S)
            rates = self._update(card, self._counters(card))
        return rates

    def close(self, card: OpenCard) -> None:
        self._rates = (CounterRate(), CounterRate())

    def _counters(self, card: OpenCard) -> list[FieldValue | None]:
        answers = card.nvml.values(card.whole, self._ids)
        faults = [answer for answer in answers if isinstance(answer, Fault)]
        if len(faults) == len(answers):
            raise faults[0]
        return [None if isinstance(answer, Fault) else answer for answer in answers]

    def _update(self, card: OpenCard, counters: list[FieldValue | None]) -> Values:
        most = self._most(card) / self._unit_bytes
        values: list[float | None] = []
        for rate, counter in zip(self._rates, counters):
            grown = None if counter is None else rate.update(counter.value, counter.bits, self._time_s(card, counter), most)
            values.append(None if grown is None else grown * self._unit_bytes)
        return tuple(values)

    @staticmethod
    def _time_s(card: OpenCard, counter: FieldValue) -> float:
        """The driver's own time of the reading: this thread may have waited since."""
        return counter.time_s or card.monotonic()


def pcie_traffic() -> Traffic:
    names = ("gpu_pcie_tx_bytes_per_s", "gpu_pcie_rx_bytes_per_s")
    return Traffic(names, (197, 198), 1, lambda card: card.link_bytes_per_s or _FASTEST_PCIE)


def nvlink_traffic() -> Traffic:
    names = ("gpu_nvlink_tx_bytes_per_s", "gpu_nvlink_rx_bytes_per_s")
    return Traffic(names, ((138, _ALL_LINKS), (139, _ALL_LINKS)), 1024, lambda card: _FASTEST_NVLINK)
