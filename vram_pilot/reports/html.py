"""A session as one page that needs nothing else and asks nobody for anything.

With plotly its charts are interactive; without it, without scripts and on paper they are drawings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vram_pilot.reports import interactive, moments, readings, sections, words
from vram_pilot.reports.files import write_whole
from vram_pilot.reports.interactive import Interactive
from vram_pilot.reports.style import CSS
from vram_pilot.session.rows import mode_text
from vram_pilot.units import format_bytes, format_seconds

#: Beyond these, a table says how many rows it leaves out; the other formats have them all.
MAX_ROWS = 200

_PROGRAMS = {
    "vram_pilot": "VRAM Pilot",
    "python": "Python",
    "torch": "PyTorch",
    "cuda": "CUDA",
    "driver": "Driver",
    "system": "System",
}
_WITHOUT = "These charts are drawings. With the package plotly installed, a report lets you point at them and zoom."


class HtmlReporter:
    format = "html"
    media_type = "text/html; charset=utf-8"

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        write_whole(path, render(session).encode())


def render(session: Mapping[str, Any]) -> str:
    """The page. Every text of the session is escaped; the policy forbids whatever could still be loaded."""
    heading = words.title(session)
    live = interactive.build(session)
    without = "" if interactive.is_installed() else f'<p class="note">{_WITHOUT}</p>'
    parts = [
        _header(session, heading),
        _words(session),
        _figures(session.get("summary") or {}),
        _section("Step by step", sections.steps(session) + without),
        _section("Memory at the end of each step", sections.memory(session)),
        *_readings(session),
        _section("Where the time went", sections.phases(session)),
        _section("Modes", _modes(session)),
        _notes(session),
        _section("Setup", _setup(session)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(live)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:,"><title>{escape(heading)} – VRAM Pilot</title><style>{CSS}</style></head>\n'
        f"<body><main>{''.join(parts)}{_footer(session)}</main>{'' if live is None else live.body}</body></html>\n"
    )


def _policy(live: Interactive | None) -> str:
    """Nothing may be loaded from anywhere. plotly styles what it draws, and saves a chart by way of a blob of the page."""
    if live is None:
        allowed = f"img-src data:; style-src {interactive.digest(CSS)}"
    else:
        allowed = f"img-src data: blob:; style-src 'unsafe-inline'; script-src {' '.join(live.scripts)}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _header(session: Mapping[str, Any], heading: str) -> str:
    status = session["status"]
    known = status if status in words.STATUS_WORDS else "error"
    started = escape(str(session["started_at"])[:19].replace("T", " "))
    return (
        f'<header><p class="brand">VRAM Pilot · generation report</p><h1>{escape(heading)}</h1><p class="meta">'
        f'<span class="status {known}">{words.STATUS_WORDS[known]}</span>{started} UTC</p></header>'
    )


def _words(session: Mapping[str, Any]) -> str:
    return f'<section class="words">{"".join(f"<p>{escape(text)}</p>" for text in words.sentences(session))}</section>'


def _figures(summary: Mapping[str, Any]) -> str:
    """Only what was measured."""
    shown = [
        ("Duration", summary.get("duration_s"), format_seconds),
        ("Steps a second", summary.get("steps_per_s"), words.number),
        ("Median step", summary.get("step_p50_s"), format_seconds),
        ("95th percentile", summary.get("step_p95_s"), format_seconds),
        ("Images a minute", _per_minute(summary.get("images_per_s")), words.number),
        ("Peak allocated", summary.get("peak_allocated_bytes"), format_bytes),
        ("Peak reserved", summary.get("peak_reserved_bytes"), format_bytes),
        ("Weights streamed", summary.get("streamed_bytes") or None, format_bytes),
    ]
    cells = [f"<div><dt>{label}</dt><dd>{escape(show(value))}</dd></div>" for label, value, show in shown if value is not None]
    css = "figures many" if len(cells) > 6 else "figures"
    return f'<dl class="{css}">{"".join(cells)}</dl>' if cells else ""


def _per_minute(per_second: float | None) -> float | None:
    return None if per_second is None else 60.0 * per_second


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def _readings(session: Mapping[str, Any]) -> list[str]:
    """Who holds the memory at full width, the others two in a row."""
    drawn = {chart.name: _section(chart.title, sections.reading(session, chart)) for chart in readings.charts(session)}
    wide = drawn.pop("vram", "")
    return [wide, f'<div class="pair">{"".join(drawn.values())}</div>' if drawn else ""]


def _modes(session: Mapping[str, Any]) -> str:
    mode = session.get("mode") or {}
    head = _pairs(
        [("Asked for at the start", mode_text(mode.get("requested"))), ("Last in force", mode_text(mode.get("effective")))]
    )
    changes = mode.get("history") or []
    if not changes:
        return f'{head}<p class="note">The mode did not change while this was made.</p>'
    rows = [
        (
            format_seconds(change["t_s"]),
            moments.place(session, change),
            change["from"],
            change["to"] + (" (failed, undone)" if change["failed"] else ""),
            format_seconds(change.get("duration_s")),
            change["reason"],
        )
        for change in changes
    ]
    return (
        head + "<h3>Changes</h3>" + sections.table(("At", "Place", "From", "To", "Took", "Why"), rows, numbers=(4,), long=(5,))
    )


def _notes(session: Mapping[str, Any]) -> str:
    notes = session.get("notes") or []
    items = "".join(f"<li>{escape(note['text'])} ({format_seconds(note['t_s'])})</li>" for note in notes[:MAX_ROWS])
    return _section("Notes", f'<ul class="notes">{items}</ul>' if items else "")


def _setup(session: Mapping[str, Any]) -> str:
    request, model = session.get("request") or {}, session.get("model") or {}
    hires = request.get("hires") or {}
    size = f"{request['width']} × {request['height']}" if request.get("width") and request.get("height") else None
    settings = session.get("settings") or {}
    left = [
        ("Model", model.get("name")),
        ("Model hash", model.get("hash")),
        ("Family", model.get("family")),
        ("Size", size),
        ("Images", _product(request.get("batch_size"), request.get("n_iter"))),
        ("Steps", request.get("steps")),
        ("Sampler", request.get("sampler")),
        ("CFG scale", request.get("cfg_scale")),
        ("Hires pass", _hires(hires)),
        ("Data type", settings.get("dtype")),
        ("Attention", settings.get("attention")),
        ("Accelerate", settings.get("accelerate")),
        ("Allocator", settings.get("allocator")),
    ]
    right: list[tuple[str, object]] = []
    for gpu in session.get("gpus") or ():
        right += [("Card", gpu.get("name")), ("Its memory", _bytes(gpu.get("total_bytes"))), ("UUID", gpu.get("uuid"))]
    host = session.get("host") or {}
    right.append(("Host", " ".join(str(host[key]) for key in ("name", "version") if host.get(key)) or None))
    right += [(_PROGRAMS.get(name, name), version) for name, version in (session.get("software") or {}).items()]
    return f'<div class="pairs"><div>{_pairs(left)}</div><div>{_pairs(right)}</div></div>'


def _pairs(pairs: Iterable[tuple[str, object]]) -> str:
    """A table of name and value, without what is unknown."""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in pairs
        if value is not None
    ]
    return f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""


def _bytes(size: object) -> str | None:
    return format_bytes(size) if isinstance(size, (int, float)) else None


def _product(batch_size: object, n_iter: object) -> str | None:
    if not isinstance(batch_size, int) or not isinstance(n_iter, int):
        return None
    return f"{batch_size * n_iter} ({n_iter} × batch of {batch_size})" if batch_size * n_iter > 1 else "1"


def _hires(hires: Mapping[str, Any]) -> str | None:
    parts: Sequence[str] = [
        f"{hires['width']} × {hires['height']}" if hires.get("width") and hires.get("height") else "",
        f"scale {hires['scale']:g}" if isinstance(hires.get("scale"), (int, float)) else "",
        f"{hires['steps']} steps" if hires.get("steps") else "",
    ]
    return ", ".join(part for part in parts if part) or None


def _footer(session: Mapping[str, Any]) -> str:
    return f"<footer>Session {escape(str(session['id']))}. No prompt, image, user name or folder is recorded.</footer>"
