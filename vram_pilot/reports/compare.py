"""Two sessions side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vram_pilot.session.metrics import SUMMARY_METRICS
from vram_pilot.session.rows import mode_text


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """{"a", "b": id, started_at, status; "rows": name, label, unit, a, b, delta, ratio, better}.

    Facts come first, then figures. delta: b - a, ratio: b ÷ a, both None where either side is no number or unknown; better:
    "a" or "b" where one is, else None.
    """
    facts = [_row(name, label, "", _at(a, path), _at(b, path)) for name, label, path in _FACTS]
    facts.insert(0, _row("mode", "Mode", "", _mode(a), _mode(b)))
    figures = [
        _row(
            metric.name,
            metric.label,
            metric.unit,
            _at(a, ("summary", metric.name)),
            _at(b, ("summary", metric.name)),
            metric.better,
        )
        for metric in SUMMARY_METRICS
    ]
    return {"a": _head(a), "b": _head(b), "rows": facts + figures}


_FACTS = (
    ("model", "Model", ("model", "name")),
    ("width", "Width", ("request", "width")),
    ("height", "Height", ("request", "height")),
    ("batch_size", "Batch size", ("request", "batch_size")),
    ("n_iter", "Batch count", ("request", "n_iter")),
    ("steps", "Steps asked for", ("request", "steps")),
    ("sampler", "Sampler", ("request", "sampler")),
    ("dtype", "Data type", ("settings", "dtype")),
    ("attention", "Attention", ("settings", "attention")),
    ("torch", "torch", ("software", "torch")),
    ("host", "Host", ("host", "name")),
)


def _head(session: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": session["id"], "started_at": session["started_at"], "status": session["status"]}


def _row(name: str, label: str, unit: str, a: Any, b: Any, better: str | None = None) -> dict[str, Any]:
    numbers = unit != "" and _is_number(a) and _is_number(b)
    return {
        "name": name,
        "label": label,
        "unit": unit,
        "a": a,
        "b": b,
        "delta": b - a if numbers else None,
        "ratio": b / a if numbers and a else None,
        "better": None if not numbers or better is None or a == b else ("b" if (b > a) == (better == "high") else "a"),
    }


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mode(session: Mapping[str, Any]) -> str | None:
    return mode_text((session.get("mode") or {}).get("effective"))


def _at(session: Mapping[str, Any], path: tuple[str, str]) -> Any:
    return (session.get(path[0]) or {}).get(path[1])
