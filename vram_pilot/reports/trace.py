"""A session as a trace in Chrome's format, for ui.perfetto.dev and chrome://tracing. Standard library only.

Times are whole microseconds since the job's start. Steps lie within their phases on one track; what was copied to the card has
a second one; every metric of the instruments is a counter, written where it changes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vram_pilot.reports import moments, words
from vram_pilot.reports.files import write_whole
from vram_pilot.session.metrics import unit_of
from vram_pilot.units import format_bytes

Event = dict[str, Any]

_PROCESS, _WORK, _COPIES = 1, 1, 2


class TraceReporter:
    format = "trace"
    media_type = "application/json"

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        write_whole(path, (piece.encode() for piece in pieces(session)))


def render(session: Mapping[str, Any]) -> str:
    return "".join(pieces(session))


def pieces(session: Mapping[str, Any]) -> Iterator[str]:
    """The file, an event at a time: a day of readings as events would take gigabytes."""
    about = {key: session.get(key) for key in ("id", "schema", "status", "started_at")}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about, ensure_ascii=False)},"traceEvents":['
    separator = "\n"
    for event in events(session):
        yield separator + json.dumps(event, ensure_ascii=False, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"


def events(session: Mapping[str, Any]) -> Iterator[Event]:
    """Names first, then what lasted, what happened, and what was read."""
    yield from _names(session)
    yield from _work(session)
    yield from _copies(session)
    yield from _moments(session)
    yield from _step_counters(session)
    yield from _counters(session)


def _names(session: Mapping[str, Any]) -> Iterator[Event]:
    yield _named("process_name", {"name": f"VRAM Pilot: {words.title(session)}"})
    threads = [(_WORK, "Phases and steps")]
    threads += [(_COPIES, "Copies to the card")] if any(step["streamed_bytes"] for step in session.get("steps") or ()) else []
    for thread, name in threads:
        yield {**_named("thread_name", {"name": name}), "tid": thread}
        yield {**_named("thread_sort_index", {"sort_index": thread}), "tid": thread}


def _named(name: str, args: Mapping[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": _PROCESS, "args": dict(args)}


def _work(session: Mapping[str, Any]) -> Iterator[Event]:
    """Phases with the steps in them. Each is rounded on its own, so what begins is cut to where the one before has ended."""
    steps = deque(step for step in session.get("steps") or () if step["duration_s"] is not None)
    done = 0
    for phase in session.get("phases") or ():
        start, end = _cut(phase, done)
        yield _lasting(phase["name"], "phase", start, end)
        inner = start
        while steps and steps[0]["start_s"] + steps[0]["duration_s"] / 2 < phase["start_s"] + phase["duration_s"]:
            step = steps.popleft()
            begin, inner = _cut(step, inner, end)
            yield _lasting(_step_name(step), "step", begin, inner, _step_facts(step))
        done = end
    for step in steps:  # phases beyond those that are kept of a very long job
        begin, done = _cut(step, done)
        yield _lasting(_step_name(step), "step", begin, done, _step_facts(step))


def _cut(entry: Mapping[str, Any], earliest: int, latest: int | None = None) -> tuple[int, int]:
    """Start and end of a step or phase in microseconds, not before `earliest` and not after `latest`."""
    start, end = _us(entry["start_s"]), _us(entry["start_s"] + entry["duration_s"])
    if latest is not None:
        start, end = min(start, latest), min(end, latest)
    start = max(start, earliest)
    return start, max(end, start)


def _step_name(step: Mapping[str, Any]) -> str:
    return f"step {step['index'] + 1}" + ("" if step["pass"] == "base" else f" ({step['pass']})")


def _step_facts(step: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: step[key] for key in ("pass", "image", "calls", "allocated_bytes", "reserved_bytes", "streamed_bytes")}
    return {key: value for key, value in facts.items() if value is not None}


def _copies(session: Mapping[str, Any]) -> Iterator[Event]:
    """What is known of copies: how much there was in a step. When within it is not, so each is as long as its step."""
    done = 0
    for step in session.get("steps") or ():
        if step["streamed_bytes"] and step["duration_s"] is not None:
            begin, done = _cut(step, done)
            name = f"{format_bytes(step['streamed_bytes'])} in {_step_name(step)}"
            yield {**_lasting(name, "copy", begin, done, {"bytes": step["streamed_bytes"]}), "tid": _COPIES}


def _moments(session: Mapping[str, Any]) -> Iterator[Event]:
    for change in (session.get("mode") or {}).get("history") or ():
        name = f"{change['from']} → {change['to']}" + (" (failed, undone)" if change["failed"] else "")
        facts = {key: change[key] for key in ("reason", "step", "duration_s") if change.get(key) is not None}
        yield _instant(name, "mode", change["t_s"], {**facts, "place": moments.place(session, change)})
    for note in session.get("notes") or ():
        yield _instant("note", "note", note["t_s"], {"text": note["text"]})
    for step in session.get("steps") or ():
        if step["duration_s"] is None:
            yield _instant(f"{_step_name(step)}, not timed", "step", step["start_s"], _step_facts(step))


def _step_counters(session: Mapping[str, Any]) -> Iterator[Event]:
    """The allocator at the end of each step, for sessions whose instruments did not read it."""
    if any(value is not None for value in (session.get("samples") or {}).get("allocated_bytes", ())):
        return
    for name in ("allocated_bytes", "reserved_bytes"):
        ends = [(step["start_s"] + (step["duration_s"] or 0.0), step[name]) for step in session.get("steps") or ()]
        yield from _counter(name, ends)


def _counters(session: Mapping[str, Any]) -> Iterator[Event]:
    samples = session.get("samples") or {"t_s": []}
    for name, column in samples.items():
        if name != "t_s":
            yield from _counter(name, zip(samples["t_s"], column))


def _counter(name: str, readings: Iterable[tuple[float, float | None]]) -> Iterator[Event]:
    """A counter holds until its next event, so only changes are written. What was not read leaves it as it was."""
    label, before = f"{name} ({unit})" if (unit := unit_of(name)) not in ("", "1") else name, None
    for t_s, value in readings:
        if value is not None and value != before:
            before = value
            yield {"ph": "C", "name": label, "pid": _PROCESS, "ts": _us(t_s), "args": {"value": value}}


def _lasting(name: str, category: str, start: int, end: int, args: Mapping[str, Any] | None = None) -> Event:
    event: Event = {"ph": "X", "name": name, "cat": category, "pid": _PROCESS, "tid": _WORK, "ts": start, "dur": end - start}
    return {**event, "args": dict(args)} if args else event


def _instant(name: str, category: str, t_s: float, args: Mapping[str, Any]) -> Event:
    place = {"pid": _PROCESS, "tid": _WORK, "ts": _us(t_s), "s": "t"}
    return {"ph": "i", "name": name, "cat": category, **place, "args": dict(args)}


def _us(t_s: float) -> int:
    """Microseconds; what was read just before the job counts as its start."""
    return max(round(t_s * 1e6), 0)
