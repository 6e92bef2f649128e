"""Charts as SVG text, each by a function of its data alone. Colours are classes, so that the page's style decides. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from vram_pilot.reports.thinning import extremes


@dataclass(frozen=True)
class Series:
    """One line. points: (x, y), x rising; None as y breaks the line. css: the classes that colour it. filled: the area below
    it, too; dots: its points tell their values."""

    label: str
    css: str
    points: Sequence[tuple[float, float | None]]
    filled: bool = False
    dots: bool = True


@dataclass(frozen=True)
class Mark:
    """A moment: a vertical line with a text at its top, or without one."""

    x: float
    text: str


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis with its name beneath."""

    start: float
    stop: float
    text: str


@dataclass(frozen=True)
class Frame:
    """Where things are on a chart, in user units of its view box."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_top: float
    top: float
    left: float
    right: float = 14.0
    bottom: float = 44.0

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1.0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        floor = self.height - self.bottom
        return floor - min(max(value / (self.y_top or 1.0), 0.0), 1.0) * (floor - self.top)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_format: Callable[[float], str],
    y_step: Callable[[float], float],
    width: float,
    height: float = 260.0,
    y_top: float | None = None,
    marks: Sequence[Mark] = (),
    bands: Sequence[Band] = (),
    css: str = "",
    x_range: tuple[float, float] | None = None,
) -> str:
    """Lines over whole numbers, or over `x_range` when that is given. y_format: a tick's text; y_step: the distance of ticks
    for a given top; y_top: what lies above is drawn at the top with its value. Reads well at `width` CSS pixels."""
    points = [point for line in series for point in line.points]
    highest = y_top or max((y for _, y in points if y is not None), default=1.0) or 1.0
    step, whole = y_step(highest), x_range is None
    x_range = x_range or (min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0))
    y_top = math.ceil(highest / step - 1e-9) * step
    left = max(62.0, 7.0 * len(y_format(y_top)) + 10.0)
    frame = Frame(width, height, x_range, y_top, top=16.0, left=left)
    rows = _rows(frame, marks)
    frame = replace(frame, top=16.0 + 18.0 * (max(rows, default=-1) + 1))
    body = [
        _bands(frame, bands),
        _y_axis(frame, step, y_format),
        _x_axis(frame, x_label, crowded=bool(bands), whole=whole),
        *(_series(frame, line, y_format) for line in series),
        *(_mark(frame, mark, row) for mark, row in zip(marks, rows)),
    ]
    return (
        f'<svg class="drawing chart {css}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(title)}">{"".join(body)}</svg>'
    )


def shares_bar(parts: Sequence[tuple[str, str, float]], *, title: str, width: float, height: float = 26.0) -> str:
    """One bar cut into (label, css, amount) by their shares."""
    total = sum(amount for _, _, amount in parts) or 1.0
    drawn, x = [], 0.0
    for label, css, amount in parts:
        size = amount / total * width
        text = f"{escape(label)}: {100 * amount / total:.1f} %"
        drawn.append(
            f'<rect class="{css}" x="{x:.2f}" y="0" width="{size:.2f}" height="{height:g}"><title>{text}</title></rect>'
        )
        x += size
    return (
        f'<svg class="drawing bar" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    )


def decimate(points: Sequence[tuple[float, float | None]], buckets: int) -> list[tuple[float, float | None]]:
    """At most 2 × `buckets` points: of each stretch its lowest and its highest, so that no spike is lost."""
    return [points[place] for place in extremes([y for _, y in points], buckets)]


def nice_step(top: float, ticks: int = 4) -> float:
    """1, 2 or 5 times a power of ten, so that about `ticks` of them reach `top`."""
    raw = max(top, 1e-300) / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if raw <= factor * power * (1 + 1e-9))


def nice_binary_step(top: float, ticks: int = 4) -> float:
    """A power of two of bytes, so that ticks read as whole MiB or GiB."""
    return 2.0 ** math.ceil(math.log2(max(top, 1.0) / ticks) - 1e-9)


def clip_top(values: Sequence[float], p95: float | None) -> float | None:
    """Where to cut the y axis when a few slow steps would flatten all others: None when they would not."""
    return 2.0 * p95 if values and p95 and max(values) > 4.0 * p95 else None


def _series(frame: Frame, line: Series, y_format: Callable[[float], str]) -> str:
    points = decimate(line.points, max(int(frame.width / 2), 1))
    runs = _runs(points)
    traces = ["M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in run) for run in runs]
    drawn = [f'<path class="line {line.css}" d="{"".join(traces)}"/>'] if traces else []
    if line.filled and traces:
        floor = frame.y(0.0)
        areas = [
            f"{trace}L{frame.x(run[-1][0]):.1f} {floor:.1f}L{frame.x(run[0][0]):.1f} {floor:.1f}Z"
            for trace, run in zip(traces, runs)
        ]
        drawn.insert(0, f'<path class="area {line.css}" d="{"".join(areas)}"/>')
    if not line.dots:
        return "".join(drawn)
    return "".join(drawn + [_dot(frame, line, x, y, y_format, len(points)) for x, y in points if y is not None])


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """What is known, cut where it is not."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _dot(frame: Frame, line: Series, x: float, y: float, y_format: Callable[[float], str], count: int) -> str:
    """A point that tells its value when pointed at. Above the axis' top it says so in any case."""
    hint = f"<title>{escape(line.label)} {x:g}: {escape(y_format(y))}</title>"
    place = f"{frame.x(x):.1f}"
    if y > frame.y_top:
        side, shift = ("start", 8) if frame.x(x) < frame.width / 2 else ("end", -8)
        spot = f'x="{frame.x(x) + shift:.1f}" y="{frame.top + 4:.1f}" text-anchor="{side}"'
        tip = f'<path class="dot {line.css}" d="M{place} {frame.top - 6:.1f}l5 8h-10z">{hint}</path>'
        return f'{tip}<text class="small" {spot}>{escape(y_format(y))}</text>'
    if count > 200:
        return ""
    radius = 3.0 if count <= frame.width / 12 else 0.0
    shown = f'<circle class="dot {line.css}" cx="{place}" cy="{frame.y(y):.1f}" r="{radius:g}"/>' if radius else ""
    return f'{shown}<circle class="touch" cx="{place}" cy="{frame.y(y):.1f}" r="8">{hint}</circle>'


def _y_axis(frame: Frame, step: float, y_format: Callable[[float], str]) -> str:
    drawn = []
    for number in range(round(frame.y_top / step) + 1):
        y = frame.y(number * step)
        css = "axis" if number == 0 else "grid"
        drawn.append(f'<line class="{css}" x1="{frame.left:g}" x2="{frame.width - frame.right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = "0" if number == 0 else escape(y_format(number * step))
        drawn.append(f'<text class="tick" x="{frame.left - 8:g}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(drawn)


def _x_axis(frame: Frame, label: str, crowded: bool, whole: bool) -> str:
    low, high = frame.x_range
    step = nice_step(max(high - low, 1.0 if whole else 0.0), max(int(frame.width / 90), 2))
    step = max(1.0, step) if whole else step
    floor = frame.height - frame.bottom
    ticks = [low] + [tick * step for tick in range(math.ceil((low + 0.6 * step) / step), math.floor(high / step) + 1)]
    drawn = [
        f'<text class="tick" x="{frame.x(tick):.1f}" y="{floor + 16:.1f}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks
    ]
    if not crowded:
        middle = (frame.left + frame.width - frame.right) / 2
        drawn.append(f'<text class="tick" x="{middle:.1f}" y="{floor + 34:.1f}" text-anchor="middle">{escape(label)}</text>')
    return "".join(drawn)


def _bands(frame: Frame, bands: Sequence[Band]) -> str:
    """Every second band is shaded; a name is written where it has room."""
    drawn = []
    floor = frame.height - frame.bottom
    for number, band in enumerate(bands):
        x, size = frame.x(band.start), frame.x(band.stop) - frame.x(band.start)
        if number % 2:
            box = f'x="{x:.1f}" y="{frame.top:g}" width="{max(size, 0.0):.1f}" height="{floor - frame.top:.1f}"'
            drawn.append(f'<rect class="band" {box}/>')
        if _text_width(band.text) < size:
            middle = x + size / 2
            drawn.append(
                f'<text class="tick" x="{middle:.1f}" y="{floor + 34:.1f}" text-anchor="middle">{escape(band.text)}</text>'
            )
    return "".join(drawn)


def _mark(frame: Frame, mark: Mark, row: int) -> str:
    x, y = frame.x(mark.x), 12.0 + 18.0 * row
    top = y - 10 if mark.text else frame.top
    drawn = f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{frame.height - frame.bottom:.1f}"/>'
    if not mark.text:
        return drawn
    left, right = _tag(frame.width - frame.right, x, mark.text)
    return (
        f'{drawn}<rect class="tag" x="{left:.1f}" y="{y - 10:.1f}" width="{right - left:.1f}" height="16" rx="3"/>'
        f'<text class="tagtext" x="{(left + right) / 2:.1f}" y="{y + 2:.1f}" text-anchor="middle">{escape(mark.text)}</text>'
    )


def _tag(edge: float, x: float, text: str) -> tuple[float, float]:
    """Where a mark's text begins and ends: right of its line, or left of it when it would pass the edge."""
    size = _text_width(text)
    return (x - size, x) if x + size > edge else (x, x + size)


def _rows(frame: Frame, marks: Sequence[Mark]) -> list[int]:
    """A row for each mark's text so that none covers another; past four rows they do. A mark without a text needs none: -1.
    Only the x axis of `frame` is used."""
    ends: list[float] = []
    rows = []
    for mark in marks:
        if not mark.text:
            rows.append(-1)
            continue
        left, right = _tag(frame.width - frame.right, frame.x(mark.x), mark.text)
        row = min(next((number for number, end in enumerate(ends) if end < left), len(ends)), 3)
        if row == len(ends):
            ends.append(0.0)
        ends[row] = right + 4
        rows.append(row)
    return rows


def _text_width(text: str) -> float:
    """About as wide as bold 11 px text is in a wide font, with a margin."""
    return 7.2 * len(text) + 12.0
