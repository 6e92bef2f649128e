"""What lies over and under a figure's lines, as plotly's own plain objects: passes, switches of the mode, phases. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vram_pilot.reports import moments
from vram_pilot.units import format_seconds

Session = Mapping[str, Any]
Palette = Mapping[str, str]

#: How much of its colour an area has.
TINT = 0.13
_MOST_PHASES, _MOST_PASSES = 300, 40
#: Pixels that a chart is taken to be wide when texts on it are placed.
_WIDTH = 860.0


def tint(color: str) -> str:
    """'#rrggbb' made translucent."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {TINT:g})"


def short(value: float) -> float:
    """Six digits are more than a screen has."""
    return float(f"{value:.6g}")


def shapes(session: Session, colors: Palette, top: float = 1.0) -> list[dict[str, Any]]:
    """Every second pass shaded, and a line for each switch of the mode. top: where they end, 0 to 1 of the figure's height."""
    unit_s = moments.time_scale(session).unit_s
    drawn = [_band(start_s / unit_s, end_s / unit_s, top, colors) for start_s, end_s, _ in _passes(session)[1::2]]
    return drawn + [_mark(change["t_s"] / unit_s, top, colors) for change in moments.marked(session)]


def texts(session: Session, colors: Palette, top: float = 1.0) -> list[dict[str, Any]]:
    """The passes' names beneath the axis, where there is room, and the modes' beside their marks."""
    pixels_per_s = _WIDTH / (moments.duration(session) or 1.0)
    return [*_pass_names(session, colors, pixels_per_s), *_mode_names(session, colors, pixels_per_s, top)]


def stretches(phases: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """(name, start, length) in seconds; of very many phases, stretches that bear the name of what fills most of them."""
    found = [(str(phase["name"]), float(phase["start_s"]), float(phase["duration_s"])) for phase in phases]
    if len(found) <= _MOST_PHASES:
        return found
    cut = []
    for number in range(_MOST_PHASES):
        part = found[len(found) * number // _MOST_PHASES : len(found) * (number + 1) // _MOST_PHASES]
        shares: dict[str, float] = {}
        for name, _, length_s in part:
            shares[name] = shares.get(name, 0.0) + length_s
        start_s = part[0][1]
        cut.append((max(shares, key=lambda name: shares[name]), start_s, part[-1][1] + part[-1][2] - start_s))
    return cut


def change_text(session: Session, change: Mapping[str, Any]) -> str:
    """What is told of a switch when it is pointed at."""
    took = "" if change.get("duration_s") is None else f", took {format_seconds(change['duration_s'])}"
    text = f"{change['from']} → {change['to']} at {moments.place(session, change)}{took}: {change['reason']}"
    return "<br>".join(escape(line) for line in textwrap.wrap(text, 60, max_lines=4, placeholder=" …"))


def _passes(session: Session) -> list[tuple[float, float, str]]:
    """(start, end, name) in seconds of each pass, where there are several and not too many."""
    steps = session.get("steps") or []
    runs = moments.runs(steps)
    if len(runs) > _MOST_PASSES:
        return []
    ends = [steps[run.last]["start_s"] + (steps[run.last]["duration_s"] or 0.0) for run in runs]
    return [(steps[run.first]["start_s"], end_s, run.text) for run, end_s in zip(runs, ends)]


def _band(x0: float, x1: float, top: float, colors: Palette) -> dict[str, Any]:
    return {
        **{"type": "rect", "yref": "paper", "x0": short(x0), "x1": short(x1), "y0": 0, "y1": top},
        **{"layer": "below", "fillcolor": tint(colors["soft"]), "line": {"width": 0}},
    }


def _mark(x: float, top: float, colors: Palette) -> dict[str, Any]:
    return {
        **{"type": "line", "yref": "paper", "x0": short(x), "x1": short(x), "y0": 0, "y1": top},
        **{"layer": "above", "line": {"color": colors["warn"], "width": 1, "dash": "dot"}},
    }


def _pass_names(session: Session, colors: Palette, pixels_per_s: float) -> list[dict[str, Any]]:
    unit_s = moments.time_scale(session).unit_s
    return [
        {**_text((start_s + end_s) / 2 / unit_s, 0.0, text, colors["soft"]), "xanchor": "center", "yshift": -20}
        for start_s, end_s, text in _passes(session)
        if 6.5 * len(text) < (end_s - start_s) * pixels_per_s
    ]


def _mode_names(session: Session, colors: Palette, pixels_per_s: float, top: float) -> list[dict[str, Any]]:
    """In rows, so that none covers another; those without room are told when pointed at."""
    unit_s = moments.time_scale(session).unit_s
    ends, placed = [0.0, 0.0, 0.0], []
    for change in moments.marked(session):
        left, text = change["t_s"] * pixels_per_s, "→ " + change["to"].partition(",")[0]
        width = 7.0 * len(text) + 10.0
        anchor = "left" if left + width < _WIDTH else "right"
        left -= 0.0 if anchor == "left" else width
        row = next((number for number, end in enumerate(ends) if end <= left), None)
        if row is not None:
            ends[row] = left + width
            drawn = _text(change["t_s"] / unit_s, top, text, colors["warn"])
            placed.append({**drawn, "xanchor": anchor, "yshift": -14 * row, "bgcolor": colors["card"], "borderpad": 1})
    return placed


def _text(x: float, y: float, text: str, color: str) -> dict[str, Any]:
    return {
        **{"x": short(x), "y": y, "yref": "paper", "yanchor": "top", "text": escape(text), "showarrow": False},
        **{"font": {"size": 11, "color": color}},
    }
