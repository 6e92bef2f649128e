"""A session in sentences, for the report and the command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from vram_pilot.reports.readings import statistics
from vram_pilot.session.rows import mode_text
from vram_pilot.units import format_bytes, format_seconds

STATUS_WORDS = {
    "running": "still running",
    "ok": "finished",
    "interrupted": "interrupted",
    "oom": "out of memory",
    "error": "failed",
    "aborted": "aborted",
}
_ENDINGS = {
    "running": "It is still running.",
    "interrupted": "It was interrupted before its last image.",
    "oom": "It ended for lack of device memory.",
    "error": "It ended with an error.",
    "aborted": "The program ended while it ran, so what it measured is lost.",
}


def title(session: Mapping[str, Any]) -> str:
    """'sd15 · 512 × 512 · lowvram': as much of it as is known."""
    model, request = session.get("model") or {}, session.get("request") or {}
    size = f"{request['width']} × {request['height']}" if request.get("width") and request.get("height") else None
    parts = [model.get("name") or model.get("family"), size, mode_text((session.get("mode") or {}).get("effective"))]
    return " · ".join(str(part) for part in parts if part) or "A generation"


def sentences(session: Mapping[str, Any]) -> list[str]:
    """What happened, most important first. Nothing is said of what was not measured."""
    summary = session.get("summary") or {}
    said = [
        _work(session, summary),
        _ending(session),
        _speed(summary),
        _memory(summary),
        _card_memory(session),
        _streamed(summary),
        _card(session),
        _switches(session),
    ]
    if session.get("truncated"):
        said.append("The job was so long that its last steps are counted but not listed.")
    return [sentence for sentence in said if sentence]


def number(value: float) -> str:
    """Three significant figures, without an exponent: '0.0312', '24.9', '1,240'."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    places = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3 if magnitude >= 0.1 else 4
    return f"{value:,.{places}f}"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _work(session: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    steps, images = summary.get("step_count"), summary.get("image_count")
    if not steps and not images:
        return "No step was recorded."
    what = " and ".join(_plural(count, word) for count, word in ((images, "image"), (steps, "step")) if count)
    took = f" took {format_seconds(summary['duration_s'])}" if summary.get("duration_s") is not None else " were recorded"
    mode = mode_text((session.get("mode") or {}).get("effective"))
    return what + (f" in {mode}" if mode else "") + took + "."


def _ending(session: Mapping[str, Any]) -> str | None:
    ending = _ENDINGS.get(session["status"])
    return f"{ending} {session['error']}" if ending and session.get("error") else ending


def _speed(summary: Mapping[str, Any]) -> str | None:
    if summary.get("steps_per_s") is None or summary.get("step_p50_s") is None:
        return None
    half, most = format_seconds(summary["step_p50_s"]), format_seconds(summary["step_p95_s"])
    return f"{number(summary['steps_per_s'])} steps a second: half of them took {half} or less, 95 % took {most} or less."


def _memory(summary: Mapping[str, Any]) -> str | None:
    allocated, reserved = summary.get("peak_allocated_bytes"), summary.get("peak_reserved_bytes")
    if allocated is None:
        return None
    held = "" if reserved is None else f", for which the allocator held {format_bytes(reserved)}"
    return f"At most {format_bytes(allocated)} of device memory were in use at once{held}."


def _card_memory(session: Mapping[str, Any]) -> str | None:
    """All programs together, as the driver counts."""
    used, total = (statistics(session, f"gpu_{name}_bytes", max) for name in ("used", "total"))
    if used is None:
        return None
    others = statistics(session, "gpu_other_processes_bytes", max)
    whole = "" if total is None else f" of the card’s {format_bytes(total)}"
    theirs = f", up to {format_bytes(others)} by other programs" if others else ""
    return f"All programs together used at most {format_bytes(used)}{whole}{theirs}."


def _card(session: Mapping[str, Any]) -> str | None:
    busy = statistics(session, "gpu_utilization_ratio", fmean)
    power, warmth = (statistics(session, name, max) for name in ("gpu_power_w", "gpu_temperature_c"))
    parts = [
        "" if busy is None else f"was busy {100 * busy:.0f} % of the time",
        "" if power is None else f"drew up to {power:.0f} W",
        "" if warmth is None else f"reached {warmth:.0f} °C",
    ]
    known = [part for part in parts if part]
    return f"The card {', '.join(known[:-1]) + ' and ' * (len(known) > 1)}{known[-1]}." if known else None


def _streamed(summary: Mapping[str, Any]) -> str | None:
    streamed = summary.get("streamed_bytes")
    return f"{format_bytes(streamed)} of weights were copied to the device while it sampled." if streamed else None


def _switches(session: Mapping[str, Any]) -> str | None:
    changes = [change for change in (session.get("mode") or {}).get("history") or () if not change["failed"]]
    if not changes:
        return None
    if len(changes) == 1:
        return f"The mode changed once, from {changes[0]['from']} to {changes[0]['to']}."
    return f"The mode changed {len(changes)} times."
