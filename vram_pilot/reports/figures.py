"""The report's parts that show figures: charts with their legends, and tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from vram_pilot.reports import charts
from vram_pilot.reports.charts import Band, Mark, Series
from vram_pilot.units import format_bytes, format_seconds

_WIDTHS = (("wide", 920.0, 260.0), ("narrow", 340.0, 240.0))
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
    lines = [Series("Step", "one", _column(found, "duration_s"))]
    middle = summary.get("step_p50_s")
    if middle and len(found) > 1:
        lines.insert(0, Series("Median", "middle", [(1.0, middle), (float(len(found)), middle)], dots=False))
    top = charts.clip_top(timed, summary.get("step_p95_s"))
    drawn = _both_widths(
        lines, session, "Duration of each step", format_tick_seconds, charts.nice_step, top, bands=bands(found)
    )
    legend = _legend([("one", "duration of a step"), ("middle", f"median, {format_seconds(middle)}")])
    return legend + drawn


def memory(session: Mapping[str, Any]) -> str:
    """What torch's allocator held; a sentence instead where there is no such allocator."""
    found = session.get("steps") or []
    if not any(step["allocated_bytes"] is not None for step in found):
        return (
            '<p class="note">Not recorded: the work did not run on a device with torch’s caching allocator.</p>'
            if found
            else ""
        )
    lines = [Series("Reserved after step", "two", _column(found, "reserved_bytes"))]
    lines.append(Series("Allocated after step", "one", _column(found, "allocated_bytes"), filled=True))
    drawn = _both_widths(
        lines, session, "Memory at the end of each step", format_bytes, charts.nice_binary_step, None, bands(found)
    )
    peak = (session.get("summary") or {}).get("peak_allocated_bytes")
    above = "" if peak is None else f" At the highest moment it was {escape(format_bytes(peak))}."
    note = f'<p class="note">Within a step more is in use than at its end.{above}</p>'
    return _legend([("one", "allocated: in use"), ("two", "reserved: held by the allocator")]) + drawn + note


def phases(session: Mapping[str, Any]) -> str:
    """The share of each kind of phase, all its occurrences together."""
    found = session.get("phases") or []
    total = sum(phase["duration_s"] for phase in found)
    if total <= 0:
        return ""
    by_name = {name: [phase["duration_s"] for phase in found if phase["name"] == name] for name in _PHASES}
    parts = [(name, f"p-{name}", sum(times)) for name, times in by_name.items() if times]
    rows = [
        (_key(f"p-{name}") + name, f"{len(by_name[name]):,}", format_seconds(spent), f"{spent / total:.1%}")
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


def marks(session: Mapping[str, Any]) -> list[Mark]:
    """Each switch at the step in which it was made, counted from 1 through the whole job."""
    changes = (session.get("mode") or {}).get("history") or ()
    placed = [(change, _step_number(session, change)) for change in changes if not change["failed"]]
    return [Mark(float(number), "→ " + change["to"].partition(",")[0]) for change, number in placed if number][:50]


def place(session: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Where in the job a switch was made: 'step 9', 'step 5 of hires, batch 2'."""
    number = _step_number(session, change)
    if number is None:
        return "between steps" if change["step"] is None else f"step {change['step'] + 1}"
    step = session["steps"][number - 1]
    batch = f", batch {step['image'] + 1}" if session["steps"][-1]["image"] else ""
    return f"step {step['index'] + 1}{'' if step['pass'] == 'base' else ' of ' + str(step['pass'])}{batch}"


def _step_number(session: Mapping[str, Any], change: Mapping[str, Any]) -> int | None:
    """The step that a switch belongs to, counted from 1 through the whole job; None when it was made outside of all."""
    if change["step"] is None:
        return None
    return sum(step["start_s"] <= change["t_s"] for step in session.get("steps") or ()) or None


def bands(found: Sequence[Mapping[str, Any]]) -> list[Band]:
    """The passes, and the images where there are several; none for a job of one pass of one image."""
    runs: list[tuple[tuple[Any, Any], int, int]] = []
    for number, step in enumerate(found, start=1):
        key = (step["image"], step["pass"])
        if runs and runs[-1][0] == key:
            runs[-1] = (key, runs[-1][1], number)
        else:
            runs.append((key, number, number))
    if len(runs) < 2:
        return []
    several = len({key[0] for key, _, _ in runs}) > 1
    hires = len({key[1] for key, _, _ in runs}) > 1
    last = float(len(found))
    drawn = []
    for (image, pass_name), first, final in runs:
        words = [f"batch {image + 1}"] * several + [str(pass_name)] * hires
        drawn.append(Band(max(first - 0.5, 1.0), min(final + 0.5, last), ", ".join(words)))
    return drawn


def format_tick_seconds(value: float) -> str:
    """Short enough for an axis: '20 ms', '1.5 s'."""
    return f"{value * 1000:.4g} ms" if value < 1 else f"{value:.4g} s"


def _both_widths(
    lines: Sequence[Series],
    session: Mapping[str, Any],
    title: str,
    y_format: Callable[[float], str],
    y_step: Callable[[float], float],
    y_top: float | None,
    bands: Sequence[Band],
) -> str:
    """The chart for a page and the one for a telephone; the style shows the one that fits."""
    return "".join(
        charts.line_chart(
            lines,
            title=title,
            x_label="step",
            y_format=y_format,
            y_step=y_step,
            width=width,
            height=height,
            y_top=y_top,
            marks=marks(session),
            bands=bands,
            css=css,
        )
        for css, width, height in _WIDTHS
    )


def _column(found: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float | None]]:
    return [(float(number), step[name]) for number, step in enumerate(found, start=1)]


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<li>{_key(css)}{escape(text)}</li>" for css, text in entries)
    return f'<ul class="legend">{items}</ul>'


def _key(css: str) -> str:
    if css == "middle":
        return (
            '<svg class="key" viewBox="0 0 12 12" aria-hidden="true"><line class="middle" x1="0" x2="12" y1="6" y2="6"/></svg>'
        )
    return f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true"><rect class="{css}" width="12" height="12" rx="2"/></svg>'
