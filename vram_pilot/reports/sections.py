"""The report's parts that show figures: charts with their legends, and tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from vram_pilot.reports import charts, moments, readings
from vram_pilot.reports.charts import Band, Mark, Series
from vram_pilot.reports.thinning import extremes
from vram_pilot.units import format_bytes, format_seconds

#: The same chart for a page and for a telephone, of which the style shows one; and one that stands beside another.
_BOTH = (("wide", 920.0, 260.0), ("narrow", 340.0, 240.0))
_HALF = (("half", 380.0, 220.0),)
_STACK_BUCKETS = 300
_PHASES = ("load", "encode", "denoise", "decode", "other")


def steps(session: Mapping[str, Any]) -> str:
    """Each step's duration, the median, the switches of the mode, and the passes beneath."""
    found = session.get("steps") or []
    if not found:
        return '<p class="note">No step was recorded.</p>'
    timed = [step["duration_s"] for step in found if step["duration_s"] is not None]
    if not timed:
        return '<p class="note">The steps could not be timed.</p>'
    summary = session.get("summary") or {}
    lines = [Series("Step", "latency", _column(found, "duration_s"))]
    middle = summary.get("step_p50_s")
    if middle and len(found) > 1:
        lines.insert(0, Series("Median", "middle", [(1.0, middle), (float(len(found)), middle)], dots=False))
    top = charts.clip_top(timed, summary.get("step_p95_s"))
    drawn = _drawings(
        lines,
        title="Duration of each step",
        x_label="step",
        y_format=format_tick_seconds,
        y_step=charts.nice_step,
        y_top=top,
        marks=step_marks(session),
        bands=step_bands(found),
    )
    names = dict.fromkeys(phase["name"] for phase in session.get("phases") or ())
    legend = [_entry("latency", "duration of a step"), _entry("middle", f"median, {format_seconds(middle)}")]
    legend += [_entry(name, name, "live-only") for name in _PHASES if name in names]
    unmarked = len(moments.switches(session)) > moments.MAX_MARKS
    return _plot("step_latency", legend, drawn, "The mode changed too often to be marked in the charts." if unmarked else None)


def memory(session: Mapping[str, Any]) -> str:
    """What torch's allocator held; a sentence instead where there is no such allocator."""
    found = session.get("steps") or []
    if not any(step["allocated_bytes"] is not None for step in found):
        return (
            '<p class="note">Not recorded: the work did not run on a device with torch’s caching allocator.</p>'
            if found
            else ""
        )
    lines = [Series("Reserved after step", "reserved", _column(found, "reserved_bytes"))]
    lines.append(Series("Allocated after step", "allocated", _column(found, "allocated_bytes"), filled=True))
    drawn = _drawings(
        lines,
        title="Memory at the end of each step",
        x_label="step",
        y_format=format_bytes,
        y_step=charts.nice_binary_step,
        marks=step_marks(session),
        bands=step_bands(found),
    )
    peak = (session.get("summary") or {}).get("peak_allocated_bytes")
    above = "" if peak is None else f" At the highest moment it was {format_bytes(peak)}."
    legend = [_entry("allocated", "allocated: in use"), _entry("reserved", "reserved: held by the allocator")]
    return _plot("step_memory", legend, drawn, f"Within a step more is in use than at its end.{above}")


def reading(session: Mapping[str, Any], chart: readings.Chart) -> str:
    """One chart of the instruments' readings over the time of the job."""
    scale = moments.time_scale(session)
    lines = _stacked(chart) if chart.stacked else [Series(line.label, line.color, line.points) for line in chart.lines]
    lines = [replace(line, points=[(x / scale.unit_s, y) for x, y in line.points], dots=False) for line in lines]
    drawn = _drawings(
        lines,
        half=not chart.stacked,
        title=chart.title,
        x_label=f"{scale.name} since the start",
        y_format=lambda value: f"{value:,g} {chart.unit}",
        y_step=charts.nice_step,
        y_top=chart.y_top,
        x_range=(0.0, (moments.duration(session) or 1.0) / scale.unit_s),
        marks=[Mark(change["t_s"] / scale.unit_s, "") for change in moments.marked(session)],
    )
    return _plot(chart.name, [_entry(line.color, line.label) for line in chart.lines], drawn, chart.note)


def _stacked(chart: readings.Chart) -> list[Series]:
    """Each part on top of those before it, the highest first, so that a lower one covers it."""
    kept = extremes(chart.sums(), _STACK_BUCKETS)
    lines = []
    for number, line in enumerate(chart.lines):
        tops = replace(chart, lines=chart.lines[: number + 1]).sums()
        points = [(line.points[place][0], tops[place]) for place in kept]
        lines.append(Series(line.label, f"stack {line.color}", points, filled=True))
    return lines[::-1]


def phases(session: Mapping[str, Any]) -> str:
    """The share of each kind of phase, all its occurrences together."""
    found = session.get("phases") or []
    total = sum(phase["duration_s"] for phase in found)
    if total <= 0:
        return ""
    by_name = {name: [phase["duration_s"] for phase in found if phase["name"] == name] for name in _PHASES}
    parts = [(name, name, sum(times)) for name, times in by_name.items() if times]
    rows = [
        (_key(name) + name, f"{len(by_name[name]):,}", format_seconds(spent), f"{100 * spent / total:.1f} %")
        for name, _, spent in parts
    ]
    bar = charts.shares_bar(parts, title="Share of each phase", width=920.0)
    return bar + table(("Phase", "Times", "Together", "Share"), rows, numbers=(1, 2, 3), raw=(0,))


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    raw: Iterable[int] = (),
    long: Iterable[int] = (),
    limit: int = 200,
) -> str:
    """numbers: columns set flush right; raw: columns that hold markup of ours; long: columns that may wrap. Rows past `limit`
    are counted instead."""
    classes = {**dict.fromkeys(numbers, "n"), **dict.fromkeys(long, "long")}
    markup = set(raw)

    def cells(tag: str, texts: Sequence[str], plain: bool) -> str:
        drawn = []
        for number, text in enumerate(texts):
            css = f' class="{classes[number]}"' if number in classes else ""
            drawn.append(f"<{tag}{css}>{text if number in markup and not plain else escape(text)}</{tag}>")
        return "".join(drawn)

    body = "".join(f"<tr>{cells('td', row, False)}</tr>" for row in rows[:limit])
    more = f'<p class="note">{len(rows) - limit:,} more are in the other formats.</p>' if len(rows) > limit else ""
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", head, True)}</tr></thead><tbody>{body}</tbody></table></div>{more}'
    )


def step_marks(session: Mapping[str, Any]) -> list[Mark]:
    """Each switch at the step in which it was made, counted from 1 through the whole job."""
    placed = [(change, moments.step_number(session, change)) for change in moments.marked(session)]
    return [Mark(float(number), "→ " + change["to"].partition(",")[0]) for change, number in placed if number]


def step_bands(found: Sequence[Mapping[str, Any]]) -> list[Band]:
    """The passes, and the images where there are several; none for a job of one pass of one image."""
    last = float(len(found))
    return [Band(max(run.first + 0.5, 1.0), min(run.last + 1.5, last), run.text) for run in moments.runs(found)]


def format_tick_seconds(value: float) -> str:
    """Short enough for an axis: '20 ms', '1.5 s'."""
    return f"{value * 1000:.4g} ms" if value < 1 else f"{value:.4g} s"


def _drawings(lines: Sequence[Series], *, half: bool = False, **options: Any) -> str:
    sizes = _HALF if half else _BOTH
    return "".join(charts.line_chart(lines, width=width, height=height, css=css, **options) for css, width, height in sizes)


def _column(found: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float | None]]:
    return [(float(number), step[name]) for number, step in enumerate(found, start=1)]


def _plot(name: str, legend: Sequence[str], drawn: str, note: str | None = None) -> str:
    """The drawn chart in its place, which the page's script finds by the name to put the interactive one there."""
    below = "" if note is None else f'<p class="note">{escape(note)}</p>'
    return (
        f'<div class="plot" data-chart="{name}"><ul class="legend">{"".join(legend)}</ul>'
        f'<div class="still">{drawn}</div></div>{below}'
    )


def _entry(color: str, text: str, css: str = "") -> str:
    return f'<li class="{css}">{_key(color)}{escape(text)}</li>' if css else f"<li>{_key(color)}{escape(text)}</li>"


def _key(color: str) -> str:
    is_line = color in ("middle", "limit", "reserved")
    css, width = ("drawing key long", 18) if is_line else ("drawing key", 12)
    line = f'<line class="line {color}" x1="0" x2="18" y1="6" y2="6"/>'
    drawn = line if is_line else f'<rect class="{color}" width="12" height="12" rx="2"/>'
    return f'<svg class="{css}" viewBox="0 0 {width} 12" aria-hidden="true">{drawn}</svg>'
