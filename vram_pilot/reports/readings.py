"""The instruments' readings of a session as charts over time, before anything is drawn. Pure.

A chart is there only when something of it was read twice: one reading makes no line. Values are in the chart's unit, times in
seconds since the job's start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vram_pilot.reports.thinning import with_gaps
from vram_pilot.units import GIB, MIB, format_bytes

Points = list[tuple[float, float | None]]
Samples = Mapping[str, Sequence[Any]]
#: Below this share of the card's memory, an axis up to its whole would flatten what happened.
_WORTH_THE_WHOLE = 0.35


@dataclass(frozen=True)
class Line:
    """color: a name of reports.palette; limit: a bound rather than a reading; held: room that is kept and not in use."""

    label: str
    color: str
    points: Points
    limit: bool = False
    held: bool = False


@dataclass(frozen=True)
class Chart:
    """stacked: the lines are parts of a sum, the first at the bottom; all have the same times. y_top: where the axis ends."""

    name: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    stacked: bool = False
    y_top: float | None = None
    note: str | None = None

    def sums(self) -> list[float | None]:
        """Of a stacked chart, what its parts come to at each time; None in a gap."""
        rows = zip(*(line.points for line in self.lines))
        return [None if row[0][1] is None else sum(value or 0.0 for _, value in row) for row in rows]


@dataclass(frozen=True)
class _Spec:
    """lines: (metric, label, colour). scale: what one of the unit is in the metric's own."""

    name: str
    title: str
    unit: str
    scale: float
    lines: tuple[tuple[str, str, str], ...]
    limits: tuple[str, ...] = ()
    y_top: float | None = None


_SPECS = (
    _Spec(
        "utilization",
        "Utilisation",
        "%",
        0.01,
        (
            ("gpu_utilization_ratio", "card busy", "first"),
            ("gpu_memory_utilization_ratio", "its memory busy", "second"),
            ("host_cpu_ratio", "CPU", "third"),
        ),
        y_top=100.0,
    ),
    _Spec(
        "power",
        "Power",
        "W",
        1.0,
        (("gpu_power_w", "power", "first"), ("gpu_power_limit_w", "limit in force", "limit")),
        limits=("gpu_power_limit_w",),
    ),
    _Spec(
        "temperature",
        "Temperature",
        "°C",
        1.0,
        (("gpu_temperature_c", "card", "second"), ("gpu_memory_temperature_c", "its memory", "first")),
    ),
    _Spec(
        "clocks",
        "Clocks",
        "MHz",
        1e6,
        (
            ("gpu_sm_clock_hz", "multiprocessors", "first"),
            ("gpu_memory_clock_hz", "memory", "second"),
            ("gpu_video_clock_hz", "video", "third"),
        ),
    ),
)


def charts(session: Mapping[str, Any]) -> list[Chart]:
    """Every chart that the session has readings for, in the order of a report."""
    found = [vram(session), *(_lines(session, spec) for spec in _SPECS), pcie(session), ram(session)]
    return [chart for chart in found if chart is not None]


def chart(session: Mapping[str, Any], name: str) -> Chart | None:
    """One of `charts` by its name, None when there are no readings for it."""
    return next((found for found in charts(session) if found.name == name), None)


# ---------------------------------------------------------------------------------------------------- lines


def pcie(session: Mapping[str, Any]) -> Chart | None:
    lines = (
        ("gpu_pcie_rx_bytes_per_s", "received by the card", "first"),
        ("gpu_pcie_tx_bytes_per_s", "sent by the card", "second"),
    )
    unit, scale = byte_unit(_highest(session, lines))
    return _lines(session, _Spec("pcie", "PCIe traffic", f"{unit}/s", scale, lines))


def ram(session: Mapping[str, Any]) -> Chart | None:
    """What this process holds of the machine's memory, and what is in use of it in all."""
    samples = _samples(session)
    total, available = _column(samples, "host_ram_total_bytes"), _column(samples, "host_ram_available_bytes")
    used = [None if whole is None or free is None else whole - free for whole, free in zip(total, available)]
    lines = (("host_used", "in use on the machine", "second"), ("process_rss_bytes", "this process", "first"))
    session = {"samples": {**samples, "host_used": used}}
    unit, scale = byte_unit(_highest(session, lines))
    return _lines(session, _Spec("ram", "Memory of the machine", unit, scale, lines))


def byte_unit(highest: float) -> tuple[str, float]:
    """The unit in which sizes up to `highest` bytes read well, and its bytes."""
    return ("GiB", float(GIB)) if highest >= GIB else ("MiB", float(MIB))


def _lines(session: Mapping[str, Any], spec: _Spec) -> Chart | None:
    samples = _samples(session)
    drawn = []
    for metric, label, color in spec.lines:
        points = _points(samples, metric, spec.scale)
        if points:
            drawn.append(Line(label, color, points, limit=metric in spec.limits))
    if all(line.limit for line in drawn):
        return None
    return Chart(spec.name, spec.title, spec.unit, tuple(drawn), y_top=spec.y_top)


def _points(samples: Samples, metric: str, scale: float) -> Points:
    known = [(t_s, value / scale) for t_s, value in zip(samples["t_s"], _column(samples, metric)) if value is not None]
    return with_gaps(known) if len(known) > 1 else []


def _highest(session: Mapping[str, Any], lines: Sequence[tuple[str, str, str]]) -> float:
    samples = _samples(session)
    return max((value for metric, _, _ in lines for value in _column(samples, metric) if value is not None), default=0.0)


# ---------------------------------------------------------------------------------------------------- who holds the card


def vram(session: Mapping[str, Any]) -> Chart | None:
    """The card's memory by who holds it. Without a reading of the card itself, what torch holds of it."""
    samples = _samples(session)
    total = max((value for value in _column(samples, "gpu_total_bytes") if value is not None), default=None)
    owners = _Owners(samples)
    rows = [(t_s, row) for t_s, row in zip(samples["t_s"], owners.rows()) if row is not None]
    if len(rows) < 2:
        return None
    highest = max(sum(row) for _, row in rows)
    unit, scale = byte_unit(highest)
    whole = total if total is not None and highest >= _WORTH_THE_WHOLE * total else None
    return Chart(
        "vram",
        "Who holds the card’s memory",
        unit,
        tuple(_stack(rows, owners.names, scale)),
        stacked=True,
        y_top=None if whole is None else whole / scale,
        note=_vram_note(owners, total),
    )


def _stack(rows: list[tuple[float, tuple[float, ...]]], names: Sequence[tuple[str, str]], scale: float) -> list[Line]:
    lines = []
    for place, (label, color) in enumerate(names):
        points = with_gaps([(t_s, row[place] / scale) for t_s, row in rows])
        if any(value for _, value in points):
            lines.append(Line(label, color, points, held=color == "cached"))
    return lines


def _vram_note(owners: _Owners, total: float | None) -> str | None:
    parts = []
    if not owners.has_card:
        parts.append("Only torch’s own part is known: the card itself was not read.")
    elif not owners.has_processes:
        parts.append("The driver does not tell processes apart here.")
    if total is not None:
        parts.append(f"The card has {format_bytes(total)}.")
    return " ".join(parts) or None


class _Owners:
    """Cuts each reading of the card's use into who holds it; the parts sum up to what the driver says is taken."""

    def __init__(self, samples: Samples) -> None:
        self._allocated, self._reserved = _column(samples, "allocated_bytes"), _column(samples, "reserved_bytes")
        self._used = _column(samples, "gpu_used_bytes")
        self._driver = _held(_column(samples, "gpu_reserved_bytes"))
        self._process = _held(_column(samples, "gpu_process_bytes"))
        self._others = _held(_column(samples, "gpu_other_processes_bytes"))
        self.has_card = any(value is not None for value in self._used)
        self.has_processes = self.has_card and any(value is not None for value in self._others)

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        torch = (("Torch, in use", "allocated"), ("Torch, cached", "cached"))
        if not self.has_card:
            return torch
        if not self.has_processes:
            return (*torch, ("Others and driver", "others"))
        return (
            *torch,
            ("This process beside torch", "process"),
            ("Other processes", "others"),
            ("Driver and the rest", "driver"),
        )

    def rows(self) -> list[tuple[float, ...] | None]:
        """The parts in the order of `names`, in bytes; None where that was not read."""
        return [self._row(place) for place in range(len(self._used))]

    def _row(self, place: int) -> tuple[float, ...] | None:
        allocated, reserved, used = self._allocated[place], self._reserved[place], self._used[place]
        if used is None and (self.has_card or allocated is None or reserved is None):
            return None
        allocated, reserved = allocated or 0.0, max(reserved or 0.0, allocated or 0.0)
        torch = (allocated, reserved - allocated)
        if used is None:
            return torch
        outside, driver = max(used - reserved, 0.0), self._driver[place] or 0.0
        if not self.has_processes:
            return (*torch, outside + driver)
        process = min(max((self._process[place] or 0.0) - reserved, 0.0), outside)
        others = min(self._others[place] or 0.0, outside - process)
        return (*torch, process, others, outside - process - others + driver)


def _held(column: Sequence[float | None]) -> list[float | None]:
    """What was read last, also where nothing was due; before the first reading, that one."""
    last: float | None = next((value for value in column if value is not None), None)
    filled: list[float | None] = []
    for value in column:
        last = last if value is None else value
        filled.append(last)
    return filled


# ---------------------------------------------------------------------------------------------------- columns


def _samples(session: Mapping[str, Any]) -> Samples:
    return session.get("samples") or {"t_s": []}


def _column(samples: Samples, name: str) -> Sequence[float | None]:
    return samples.get(name) or [None] * len(samples["t_s"])


def statistics(session: Mapping[str, Any], metric: str, of: Callable[[list[float]], float]) -> float | None:
    """`of` all that was read of one metric, None when nothing was."""
    known = [value for value in _column(_samples(session), metric) if value is not None]
    return of(known) if known else None
