"""A session as plotly figures, for the report's page and for notebooks. The one module that needs plotly.

    from vram_pilot.reports import figures
    figures.vram(session).show()

Each function takes a session (docs/session.schema.json), which it does not change, and a palette (`reports.palette`), and
gives a figure, or None when the session has nothing to show for it. All share one axis: the time since the job's start. Long
jobs are thinned to what a screen can show; no spike is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from vram_pilot.reports import moments, overlays, readings
from vram_pilot.reports.charts import clip_top
from vram_pilot.reports.palette import LIGHT
from vram_pilot.reports.readings import Chart, Line
from vram_pilot.reports.thinning import extremes
from vram_pilot.units import format_bytes, format_seconds

try:
    from plotly.graph_objects import Figure
except ImportError as error:
    raise ImportError("vram_pilot.reports.figures needs the package plotly: pip install plotly") from error

Session = Mapping[str, Any]
Palette = Mapping[str, str]

_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
#: Stretches of a line of which the lowest and the highest point are drawn.
BUCKETS = 400
#: Steps that are drawn as bars, as wide as they were long; more than these are a line.
MOST_BARS = 300
_MOST_OUTLIERS = 200
#: Where the plot of the steps ends and the strip of phases begins, of the figure's height.
_PLOT_TOP, _STRIP_BOTTOM = 0.9, 0.935


def all_figures(session: Session, colors: Palette = LIGHT) -> dict[str, Figure]:
    """Every figure that the session has something for, by its name, in the order of a report."""
    found: dict[str, Figure | None] = {
        "step_latency": step_latency(session, colors),
        "step_memory": step_memory(session, colors),
    }
    found.update((chart.name, _over_time(session, chart, colors)) for chart in readings.charts(session))
    return {name: figure for name, figure in found.items() if figure is not None}


def vram(session: Session, colors: Palette = LIGHT) -> Figure | None:
    """The card's memory by who holds it."""
    return _named(session, "vram", colors)


def utilization(session: Session, colors: Palette = LIGHT) -> Figure | None:
    return _named(session, "utilization", colors)


def power(session: Session, colors: Palette = LIGHT) -> Figure | None:
    return _named(session, "power", colors)


def temperature(session: Session, colors: Palette = LIGHT) -> Figure | None:
    return _named(session, "temperature", colors)


def clocks(session: Session, colors: Palette = LIGHT) -> Figure | None:
    return _named(session, "clocks", colors)


def pcie(session: Session, colors: Palette = LIGHT) -> Figure | None:
    return _named(session, "pcie", colors)


def ram(session: Session, colors: Palette = LIGHT) -> Figure | None:
    return _named(session, "ram", colors)


# ---------------------------------------------------------------------------------------------------- steps


def step_latency(session: Session, colors: Palette = LIGHT) -> Figure | None:
    """How long each step took, at its time; above it the phases, with a mark for each switch of the mode."""
    timed = [step["duration_s"] for step in session.get("steps") or () if step["duration_s"] is not None]
    if not timed:
        return None
    summary = session.get("summary") or {}
    top = clip_top(timed, summary.get("step_p95_s"))
    unit, scale = ("ms", 1e-3) if (top or max(timed)) < 1 else ("s", 1.0)
    figure = _figure(session, "Duration of each step", unit, colors)
    _draw_steps(figure, session, _Steps("duration_s", "step", scale, _latency_text), colors["latency"])
    if summary.get("step_p50_s") and len(timed) > 1:
        figure.add_hline(summary["step_p50_s"] / scale, line={"color": colors["soft"], "width": 1, "dash": "dash"})
    if top is not None:
        _draw_outliers(figure, session, top, scale, colors)
    _draw_strip(figure, session, colors)
    figure.update_layout(
        yaxis={"range": [0, (top or 1.08 * max(timed)) / scale], "domain": [0, _PLOT_TOP]},
        yaxis2={"domain": [_STRIP_BOTTOM, 1], "range": [-0.5, 0.5], "visible": False, "fixedrange": True},
    )
    return _with_moments(figure, session, colors, _PLOT_TOP)


def step_memory(session: Session, colors: Palette = LIGHT) -> Figure | None:
    """What torch's allocator held at the end of each step."""
    steps = session.get("steps") or []
    known = [step[key] for step in steps for key in ("allocated_bytes", "reserved_bytes") if step[key] is not None]
    if not known:
        return None
    unit, scale = readings.byte_unit(max(known))
    figure = _figure(session, "Memory at the end of each step", unit, colors)
    _draw_steps(figure, session, _Steps("allocated_bytes", "allocated", scale, _memory_text), colors["allocated"])
    _draw_outline(figure, session, _Steps("reserved_bytes", "reserved", scale, _memory_text), colors["reserved"])
    figure.update_layout(yaxis={"range": [0, 1.08 * max(known) / scale]})
    return _with_moments(figure, session, colors)


@dataclass(frozen=True)
class _Steps:
    """One figure of every step. scale: what one of the axis' unit is; text: what is told of the step at a place."""

    key: str
    name: str
    scale: float
    text: Callable[[Session, int], str]


def _draw_steps(figure: Figure, session: Session, what: _Steps, color: str) -> None:
    """Bars while they are few, else a line through the extremes."""
    steps, unit_s = session["steps"], moments.time_scale(session).unit_s
    places = [place for place in extremes([step[what.key] for step in steps], BUCKETS) if steps[place][what.key] is not None]
    lengths_s = [steps[place]["duration_s"] or 0.0 for place in places]
    points = {
        "x": [overlays.short((steps[place]["start_s"] + length_s / 2) / unit_s) for place, length_s in zip(places, lengths_s)],
        "y": [overlays.short(steps[place][what.key] / what.scale) for place in places],
        "name": what.name,
        "customdata": [what.text(session, place) for place in places],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    if len(steps) > MOST_BARS:
        figure.add_scatter(mode="lines", line={"color": color, "width": 1.5}, **points)
    else:
        widths = [overlays.short(0.94 * length_s / unit_s) for length_s in lengths_s]
        figure.add_bar(width=widths, marker={"color": color, "line": {"width": 0}}, **points)


def _draw_outline(figure: Figure, session: Session, what: _Steps, color: str) -> None:
    """A dashed line along each step, broken between passes; the bars tell its values."""
    steps, unit_s = session["steps"], moments.time_scale(session).unit_s
    firsts = {run.first for run in moments.runs(steps)}
    x: list[float] = []
    y: list[float | None] = []
    for place in extremes([step[what.key] for step in steps], BUCKETS // 2):  # each has two ends
        step, value = steps[place], steps[place][what.key]
        if place in firsts and x:
            x, y = [*x, x[-1]], [*y, None]
        ends = step["start_s"], step["start_s"] + (step["duration_s"] or 0.0)
        x += [overlays.short(end_s / unit_s) for end_s in ends]
        y += [None if value is None else overlays.short(value / what.scale)] * 2
    look = {"color": color, "width": 2, "dash": "dash"}
    figure.add_scatter(x=x, y=y, name=what.name, mode="lines", line=look, hoverinfo="skip")


def _latency_text(session: Session, place: int) -> str:
    step = session["steps"][place]
    copied = f", {format_bytes(step['streamed_bytes'])} copied" if step["streamed_bytes"] else ""
    return escape(f"{moments.step_name(session['steps'], place)}: {format_seconds(step['duration_s'])}{copied}")


def _memory_text(session: Session, place: int) -> str:
    step = session["steps"][place]
    held = f"allocated {format_bytes(step['allocated_bytes'])}, reserved {format_bytes(step['reserved_bytes'])}"
    return escape(f"{moments.step_name(session['steps'], place)}: {held}")


def _draw_outliers(figure: Figure, session: Session, top_s: float, scale: float, colors: Palette) -> None:
    """Steps above the axis' top, at its edge, with their durations; the slowest of them when they are many."""
    steps, unit_s = session["steps"], moments.time_scale(session).unit_s
    above = [place for place, step in enumerate(steps) if (step["duration_s"] or 0.0) > top_s]
    above = sorted(sorted(above, key=lambda place: -steps[place]["duration_s"])[:_MOST_OUTLIERS])
    figure.add_scatter(
        x=[overlays.short((steps[place]["start_s"] + steps[place]["duration_s"] / 2) / unit_s) for place in above],
        y=[0.97 * top_s / scale] * len(above),
        mode="markers+text" if len(above) <= 6 else "markers",
        name="above the axis",
        text=[format_seconds(steps[place]["duration_s"]) for place in above],
        textposition="middle right",
        textfont={"color": colors["ink"]},
        marker={"symbol": "triangle-up", "size": 10, "color": colors["ink"]},
        customdata=[_latency_text(session, place) for place in above],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _draw_strip(figure: Figure, session: Session, colors: Palette) -> None:
    """The job's phases, and on them the switches of the mode."""
    unit_s = moments.time_scale(session).unit_s
    stretches = overlays.stretches(session.get("phases") or [])
    for name in dict.fromkeys(stretch[0] for stretch in stretches):
        own = [stretch for stretch in stretches if stretch[0] == name]
        figure.add_bar(
            orientation="h",
            base=[overlays.short(start_s / unit_s) for _, start_s, _ in own],
            x=[overlays.short(length_s / unit_s) for _, _, length_s in own],
            y=[0.0] * len(own),
            width=1.0,
            name=name,
            marker={"color": colors.get(name, colors["other"]), "line": {"width": 0}},
            customdata=[escape(f"{name}, {format_seconds(length_s)}") for _, _, length_s in own],
            hovertemplate="%{customdata}<extra></extra>",
            yaxis="y2",
        )
    changes = moments.marked(session)
    if changes:
        figure.add_scatter(
            x=[overlays.short(change["t_s"] / unit_s) for change in changes],
            y=[0.0] * len(changes),
            mode="markers",
            name="mode changed",
            marker={"symbol": "diamond", "size": 11, "color": colors["warn"], "line": {"width": 1.5, "color": colors["card"]}},
            customdata=[overlays.change_text(session, change) for change in changes],
            hovertemplate="%{customdata}<extra></extra>",
            yaxis="y2",
        )


# ---------------------------------------------------------------------------------------------------- readings


def _named(session: Session, name: str, colors: Palette) -> Figure | None:
    chart = readings.chart(session, name)
    return None if chart is None else _over_time(session, chart, colors)


def _over_time(session: Session, chart: Chart, colors: Palette) -> Figure:
    """A chart of readings, with the job's passes and switches behind it."""
    figure = _figure(session, chart.title, chart.unit, colors)
    unit_s = moments.time_scale(session).unit_s
    places = extremes(chart.sums(), BUCKETS) if chart.stacked else None
    for line in chart.lines:
        drawn = places if places is not None else extremes([y for _, y in line.points], BUCKETS)
        points = [line.points[place] for place in drawn]
        figure.add_scatter(
            x=[overlays.short(t_s / unit_s) for t_s, _ in points],
            y=[None if value is None else overlays.short(value) for _, value in points],
            name=line.label,
            mode="lines",
            hovertemplate=f"{line.label}: %{{y:,.{_decimals(chart.unit)}f}} {chart.unit}<extra></extra>",
            **_look(line, chart, colors),
        )
    figure.update_layout(hovermode="x unified", yaxis={"rangemode": "tozero"})
    if chart.y_top is not None:
        figure.update_layout(yaxis={"range": [0, 1.02 * chart.y_top]})
    return _with_moments(figure, session, colors)


def _look(line: Line, chart: Chart, colors: Palette) -> dict[str, Any]:
    color = colors[line.color]
    if chart.stacked:
        look: dict[str, Any] = {"stackgroup": "all", "fillcolor": color, "line": {"color": colors["card"], "width": 0.5}}
        if line.held:  # told from what is in use by its hatching, too
            look["fillpattern"] = {"shape": "/", "fgcolor": colors["allocated"], "bgcolor": color, "size": 6, "solidity": 0.2}
        return look
    return {"line": {"color": color, "width": 1.5 if line.limit else 2, "dash": "dash" if line.limit else "solid"}}


def _decimals(unit: str) -> int:
    return 2 if unit.startswith("GiB") else 0


# ---------------------------------------------------------------------------------------------------- shared


def _figure(session: Session, title: str, unit: str, colors: Palette) -> Figure:
    scale = moments.time_scale(session)
    axis = {
        "gridcolor": colors["faint"],
        "linecolor": colors["line"],
        "zeroline": False,
        "tickfont": {"color": colors["soft"]},
        "title": None,
    }
    return Figure(
        layout={
            "template": "none",
            "title": {"text": title, "font": {"size": 16}},
            "font": {"family": _FONT, "size": 12, "color": colors["ink"]},
            "paper_bgcolor": colors["card"],
            "plot_bgcolor": colors["card"],
            "margin": {"l": 70, "r": 16, "t": 48, "b": 40},
            "height": 320,
            "barmode": "overlay",
            "hovermode": "closest",
            "hoverdistance": 30,
            "hoverlabel": {
                "bgcolor": colors["card"],
                "bordercolor": colors["soft"],
                "font": {"color": colors["ink"], "family": _FONT},
            },
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
            "xaxis": {
                **axis,
                "showgrid": False,
                "showline": True,
                "ticksuffix": f" {scale.short}",
                "hoverformat": ",.2f",
                "range": [0, overlays.short((moments.duration(session) or 1.0) / scale.unit_s)],
            },
            "yaxis": {**axis, "ticksuffix": f" {unit}", "tickformat": ",~r", "fixedrange": True},
        }
    )


def _with_moments(figure: Figure, session: Session, colors: Palette, top: float | None = None) -> Figure:
    """The passes and the switches of the mode behind and over the figure; with their names when `top` says where those go."""
    ours = overlays.shapes(session, colors, 1.0 if top is None else top)
    figure.update_layout(shapes=[*(figure.layout.shapes or ()), *ours])
    if top is not None:
        texts = overlays.texts(session, colors, top)
        below = any(text["y"] == 0 for text in texts)
        figure.update_layout(annotations=texts, margin={"b": 56 if below else 40})
    return figure


def plotly_script() -> str:
    """The JavaScript that shows figures in a page, as plotly itself brings it along."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
