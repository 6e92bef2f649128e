"""What adapters say of a job, in the names and types that are recorded. Pure.

An adapter reads a host that may change under it, so nothing here raises for a wrong type: what does not fit is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from vram_pilot.session.privacy import base_name, redact


def request_json(request: Mapping[str, Any]) -> dict[str, Any]:
    """Only the keys that are recorded, in their own types: whatever else an adapter passes, a prompt above all, stays out."""
    hires = request.get("hires")
    known = {name: _whole(request.get(name)) for name in ("width", "height", "batch_size", "n_iter", "steps")}
    sampler = request.get("sampler")
    return {
        **known,
        "sampler": None if sampler is None else redact(str(sampler)),
        "cfg_scale": _real(request.get("cfg_scale")),
        "hires": _hires_json(hires) if isinstance(hires, Mapping) else None,
    }


def mode_json(mode: object) -> dict[str, Any] | None:
    """A mode in its three fields, None for what is none."""
    if not isinstance(mode, Mapping) or not mode.get("mode"):
        return None
    accelerate = mode.get("accelerate") or "off"
    return {"mode": str(mode["mode"]), "budget_mib": _whole(mode.get("budget_mib")), "accelerate": str(accelerate)}


def _hires_json(hires: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: _whole(hires.get(name)) for name in ("width", "height", "steps")}
    return {**known, "scale": _real(hires.get("scale"))}


def _real(value: object) -> float | None:
    """A finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    """A whole number from 0, None for anything else."""
    number = _real(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


def only(source: object, keys: tuple[str, ...]) -> dict[str, Any]:
    """Exactly `keys`, each with None where `source` has none."""
    values = source if isinstance(source, Mapping) else {}
    return {key: values.get(key) for key in keys}


def texts(source: object) -> dict[str, str | None] | None:
    """A mapping of names to short texts, free of folders; None for anything else."""
    if not isinstance(source, Mapping):
        return None
    return {str(key): None if value is None else redact(str(value)) for key, value in source.items()}


def model_json(source: object) -> dict[str, Any] | None:
    """family, name without folders, hash; None for what is no model."""
    if not isinstance(source, Mapping):
        return None
    model = {key: None if value is None else str(value) for key, value in only(source, ("family", "name", "hash")).items()}
    return {**model, "name": model["name"] and base_name(model["name"])}


def image_count(request: Mapping[str, Any]) -> int | None:
    """How many images a job makes that ends well, None when it is not known."""
    batch_size, n_iter = request.get("batch_size"), request.get("n_iter")
    return batch_size * n_iter if isinstance(batch_size, int) and isinstance(n_iter, int) else None
