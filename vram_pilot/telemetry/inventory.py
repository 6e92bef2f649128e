"""The cards that the driver lists, and their slices where they are in MIG mode."""

from __future__ import annotations

from typing import Any

from vram_pilot.telemetry.cards import Card, Instance, Match
from vram_pilot.telemetry.nvml import Fault, Nvml, text


def list_cards(nvml: Nvml) -> tuple[Card, ...]:
    """Every card that answers: one that is lost hides only itself. Raises Fault when the driver cannot even count them."""
    cards = []
    for index in range(int(nvml.call("nvmlDeviceGetCount"))):
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex", args=(index,))
        except Fault:
            continue
        cards.append(Card(index, _text(nvml, "nvmlDeviceGetUUID", handle), _bus_id(nvml, handle), _instances(nvml, handle)))
    return tuple(cards)


def handles(nvml: Nvml, match: Match) -> tuple[Any, Any]:
    """(what is used, the card that it is of): one and the same, unless it is a slice. Raises Fault."""
    assert match.card is not None
    whole = nvml.call("nvmlDeviceGetHandleByIndex", args=(match.card.index,))
    if match.instance is None:
        return whole, whole
    return nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", args=(whole, match.instance.position)), whole


def _instances(nvml: Nvml, handle: Any) -> tuple[Instance, ...]:
    try:
        if int(nvml.call("nvmlDeviceGetMigMode", args=(handle,))[0]) != 1:
            return ()
        places = range(int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", args=(handle,))))
    except (Fault, TypeError, ValueError, LookupError):
        return ()
    found = (_instance(nvml, handle, place) for place in places)
    return tuple(each for each in found if each is not None)


def _instance(nvml: Nvml, handle: Any, place: int) -> Instance | None:
    try:
        slice_ = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", args=(handle, place))
    except Fault:  # an empty place
        return None
    ids = (_whole(nvml, f"nvmlDeviceGet{kind}InstanceId", slice_) for kind in ("Gpu", "Compute"))
    return Instance(_text(nvml, "nvmlDeviceGetUUID", slice_), place, *ids)


def _bus_id(nvml: Nvml, handle: Any) -> str | None:
    try:
        return text(nvml.call("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3", args=(handle,)).busId)
    except (Fault, AttributeError):
        return None


def _text(nvml: Nvml, function: str, handle: Any) -> str | None:
    try:
        return text(nvml.call(function, args=(handle,)))
    except Fault:
        return None


def _whole(nvml: Nvml, function: str, handle: Any) -> int | None:
    try:
        return int(nvml.call(function, args=(handle,)))
    except (Fault, TypeError, ValueError):
        return None
