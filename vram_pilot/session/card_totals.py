"""What the readings of a job's card add up to: the most memory in use, and the energy. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_Point = tuple[float, float]


class CardTotals:
    """Readings come in order of time, in seconds since the job's start."""

    def __init__(self) -> None:
        self.peak_device_bytes: int | None = None
        self._counter: tuple[_Point, _Point] | None = None  # (t_s, joules so far) at the first and the last reading
        self._power: tuple[_Point, _Point] | None = None  # (t_s, watts) at the first and the last reading
        self._joules_between = 0.0  # the power's integral from its first to its last reading

    def add(self, t_s: float, values: Mapping[str, float | None]) -> None:
        used = values.get("gpu_used_bytes")
        if used is not None:
            self.peak_device_bytes = max(self.peak_device_bytes or 0, int(used))
        joules, watts = values.get("gpu_energy_j"), values.get("gpu_power_w")
        if joules is not None:
            self._counter = (self._counter[0] if self._counter else (t_s, joules), (t_s, joules))
        if watts is not None:
            if self._power is not None:
                before_s, before_w = self._power[1]
                self._joules_between += (watts + before_w) / 2 * max(t_s - before_s, 0.0)
            self._power = (self._power[0] if self._power else (t_s, watts), (t_s, watts))

    def energy_j(self, duration_s: float | None) -> float | None:
        """The energy of a job of this duration: by the driver's counter between its readings, by the power where there is none
        (the job's edges, a short job). None when there are too few readings."""
        if duration_s is None:
            return None
        measured = self._by_counter()
        if self._power is None:
            return None if measured is None else self._stretched(*measured, duration_s)
        (first_s, first_w), (last_s, last_w) = self._power
        if measured is not None:
            first_s, last_s, joules = measured
        else:
            joules = self._joules_between
        return joules + first_w * max(first_s, 0.0) + last_w * max(duration_s - last_s, 0.0)

    def _by_counter(self) -> tuple[float, float, float] | None:
        """(from, to, joules), None when the counter was read once, or was set back."""
        if self._counter is None:
            return None
        (first_s, first_j), (last_s, last_j) = self._counter
        return (first_s, last_s, last_j - first_j) if last_s > first_s and last_j >= first_j else None

    @staticmethod
    def _stretched(first_s: float, last_s: float, joules: float, duration_s: float) -> float:
        return joules * max(duration_s, last_s - first_s) / (last_s - first_s)
