"""A session in long form, one figure a line: for spreadsheets and data frames. RFC 4180, UTF-8. Standard library only."""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vram_pilot.reports.files import write_whole
from vram_pilot.session.metrics import STEP_METRICS, unit_of

COLUMNS = ("t_s", "metric", "value", "unit", "gpu_uuid", "step", "phase", "pass", "image")
_FACTS = ("id", "status", "started_at")
#: What the names of metrics begin with that are of the process or the machine.
_NOT_THE_CARDS = ("process_", "host_", "pinned_")
#: A spreadsheet takes a cell that begins with one of these for a formula; the last four are the full-width forms.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


class CsvReporter:
    format = "csv"
    media_type = "text/csv; charset=utf-8"

    def write(self, session: Mapping[str, Any], path: Path) -> None:
        write_whole(path, (piece.encode() for piece in pieces(session)))


def render(session: Mapping[str, Any]) -> str:
    return "".join(pieces(session))


def pieces(session: Mapping[str, Any]) -> Iterator[str]:
    """The file, a line at a time. What was not measured has none. Text that a spreadsheet would run as a formula is led by an
    apostrophe."""
    yield _row(COLUMNS)
    for line in lines(session):
        if line["value"] is not None:
            yield _row([_cell(line.get(column)) for column in COLUMNS])


def _row(cells: Sequence[object]) -> str:
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\r\n").writerow(cells)
    return stream.getvalue()


def lines(session: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every figure of the session, in the order: facts, summary, phases, modes, steps, samples."""
    for name in _FACTS:
        yield {"metric": name, "value": session.get(name)}
    for group in ("model", "request"):
        for name, value in (session.get(group) or {}).items():
            if not isinstance(value, (dict, list)):
                yield {"metric": f"{group}_{name}", "value": value}
    for name, value in (session.get("summary") or {}).items():
        yield {"metric": f"summary_{name}", "value": value, "unit": unit_of(name)}
    for phase in session.get("phases") or ():
        yield {**_figure("phase_duration_s", phase["duration_s"], phase["start_s"]), "phase": phase["name"]}
    for change in (session.get("mode") or {}).get("history") or ():
        if not change["failed"]:
            yield {"t_s": change["t_s"], "metric": "mode", "value": change["to"], "step": change["step"]}
    yield from _steps(session)
    yield from _samples(session)


def _steps(session: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for step in session.get("steps") or ():
        place = {"step": step["index"], "phase": "denoise", "pass": step["pass"], "image": step["image"]}
        for metric in STEP_METRICS:
            yield {**_figure(f"step_{metric.name}", step[metric.name], step["start_s"]), **place}


def _samples(session: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Readings with the phase that they fall into; what belongs to the process or the machine has no card."""
    samples = session.get("samples") or {"t_s": []}
    gpus = list(session.get("gpus") or [])
    uuid = gpus[0].get("uuid") if len(gpus) == 1 else None
    phases = _phases_at(session.get("phases") or [], samples["t_s"])
    for name, column in samples.items():
        if name != "t_s":
            card = None if name.startswith(_NOT_THE_CARDS) else uuid
            for t_s, value, phase in zip(samples["t_s"], column, phases):
                if value is not None:
                    yield {**_figure(name, value, t_s), "gpu_uuid": card, "phase": phase}


def _phases_at(phases: Sequence[Mapping[str, Any]], times_s: Sequence[float]) -> list[str | None]:
    starts = [phase["start_s"] for phase in phases]
    places = [bisect_right(starts, t_s) - 1 for t_s in times_s]
    return [phases[place]["name"] if place >= 0 else None for place in places]


def _figure(name: str, value: Any, t_s: float) -> dict[str, Any]:
    return {"t_s": t_s, "metric": name, "value": value, "unit": unit_of(name)}


def _cell(value: object) -> object:
    """A number as it is; text so that no spreadsheet runs it, without the NUL that RFC 4180 has no place for."""
    if not isinstance(value, str):
        return value
    text = value.replace("\0", "")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text
