"""Where things happened in a job: its passes, the switches of its mode, its axis of time. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: More marks than these hide what they mark, so then there are none.
MAX_MARKS = 30


@dataclass(frozen=True)
class Run:
    """Steps of one pass of one image. first, last: places among the job's steps, from 0; text: what tells it from others."""

    first: int
    last: int
    text: str


@dataclass(frozen=True)
class TimeScale:
    """The unit in which an axis of time reads well. unit_s: seconds of one."""

    unit_s: float
    name: str
    short: str


def time_scale(session: Mapping[str, Any]) -> TimeScale:
    """Seconds, minutes or hours, by how long the job was."""
    length_s = duration(session)
    if length_s < 300:
        return TimeScale(1.0, "seconds", "s")
    return TimeScale(60.0, "minutes", "min") if length_s < 3 * 3600 else TimeScale(3600.0, "hours", "h")


def duration(session: Mapping[str, Any]) -> float:
    """Seconds from the job's start to the last thing that is known of it."""
    ends = [(session.get("summary") or {}).get("duration_s") or 0.0]
    for key in ("steps", "phases"):
        ends += [entry["start_s"] + (entry["duration_s"] or 0.0) for entry in (session.get(key) or [])[-1:]]
    ends += (session.get("samples") or {}).get("t_s", [])[-1:]
    return float(max(ends))


def runs(steps: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The passes, and the images where there are several; none for a job of one pass of one image."""
    found: list[tuple[tuple[Any, Any], int, int]] = []
    for number, step in enumerate(steps):
        key = (step["image"], step["pass"])
        if found and found[-1][0] == key:
            found[-1] = (key, found[-1][1], number)
        else:
            found.append((key, number, number))
    if len(found) < 2:
        return []
    several = len({key[0] for key, _, _ in found}) > 1
    hires = len({key[1] for key, _, _ in found}) > 1
    return [
        Run(first, last, ", ".join([f"batch {image + 1}"] * several + [str(pass_name)] * hires))
        for (image, pass_name), first, last in found
    ]


def switches(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The changes of the mode that were carried out, in order."""
    return [change for change in (session.get("mode") or {}).get("history") or () if not change["failed"]]


def marked(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The switches as far as a chart can show them: all, or none when they are very many."""
    found = switches(session)
    return found if len(found) <= MAX_MARKS else []


def step_number(session: Mapping[str, Any], change: Mapping[str, Any]) -> int | None:
    """The step that a switch belongs to, counted from 1 through the whole job; None when it was made outside of all."""
    if change["step"] is None:
        return None
    return bisect_right(session.get("steps") or [], change["t_s"], key=lambda step: step["start_s"]) or None


def place(session: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Where in the job a switch was made: 'step 9', 'step 5 of hires, batch 2'."""
    number = step_number(session, change)
    if number is None:
        return "between steps" if change["step"] is None else f"step {change['step'] + 1}"
    return step_name(session["steps"], number - 1)


def step_name(steps: Sequence[Mapping[str, Any]], number: int) -> str:
    """The step at place `number`: 'step 9', 'step 5 of hires, batch 2'."""
    step = steps[number]
    batch = f", batch {step['image'] + 1}" if steps[-1]["image"] else ""
    return f"step {step['index'] + 1}{'' if step['pass'] == 'base' else ' of ' + str(step['pass'])}{batch}"
