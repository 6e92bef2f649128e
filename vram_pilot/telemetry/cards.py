"""Which of the cards that the driver lists is the one that torch computes on: by UUID, by PCI bus, never by index. Pure.

CUDA counts the cards that CUDA_VISIBLE_DEVICES leaves, in the order of CUDA_DEVICE_ORDER; the driver counts all of them, in the
order of their buses. So an index says nothing, and before CUDA has started there may be no answer yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: One entry of CUDA_VISIBLE_DEVICES: a number by CUDA's count, or (the beginning of) a UUID.
Visible = int | str


@dataclass(frozen=True)
class Instance:
    """A slice of a card in MIG mode. uuid: "MIG-…"; position: its place among the card's slices, as the driver counts."""

    uuid: str | None
    position: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True)
class Card:
    """A card as the driver lists it. index: the driver's; uuid: "GPU-…"; pci_bus_id: "00000000:01:00.0"."""

    index: int
    uuid: str | None
    pci_bus_id: str | None
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class CudaDevice:
    """What CUDA says of the card that torch uses. ordinal: CUDA's index; uuid: with or without a prefix."""

    ordinal: int
    uuid: str | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class Match:
    """card: None when there is none, or none can be told yet, and then reason says why. by: "uuid", "bus" or "environment"."""

    card: Card | None
    instance: Instance | None = None
    by: str | None = None
    reason: str | None = None


_Slot = tuple[Card, Instance | None]


def match(cards: Sequence[Card], device: CudaDevice, environ: Mapping[str, str]) -> Match:
    """The card of `device`. What CUDA itself says decides; only without it is the environment asked."""
    if not cards:
        return Match(None, reason="the driver lists no NVIDIA card")
    if device.uuid is None and device.pci_bus_id is None:
        return _by_environment(cards, device.ordinal, environ)
    found = _by_uuid(cards, device.uuid) or _by_bus(cards, device.pci_bus_id)
    if found is None:
        return Match(None, reason=f"the driver does not list the card that torch uses ({device.uuid or device.pci_bus_id})")
    if found.instance is None and found.card is not None and found.card.instances:
        return Match(found.card, _likely_instance(found.card, device.ordinal, environ), found.by)
    return found


def parse_visible(text: str | None) -> tuple[Visible, ...] | None:
    """CUDA_VISIBLE_DEVICES as CUDA reads it; None when it is not set. The list ends at the first entry that is none (or is of
    another kind than the first); an entry that comes twice makes it empty. Never raises."""
    if text is None:
        return None
    entries: list[Visible] = []
    for part in text.split(","):
        entry = _entry(part.strip())
        if entry is None or (entries and type(entry) is not type(entries[0])):
            break
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def same_uuid(one: str | None, other: str | None) -> bool:
    """Whether two spellings ("GPU-ab…", "ab…", in any case) name one card or slice. Unknown is never the same."""
    return one is not None and other is not None and _bare(one) == _bare(other)


def bus_key(text: str | None) -> tuple[int, int, int] | None:
    """(domain, bus, device) of "00000000:01:00.0", "0000:01:00.0" or "01:00.0"; None for anything else."""
    found = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-9a-f])?", (text or "").strip().lower())
    if found is None:
        return None
    domain, bus, device = found.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


# -------------------------------------------------------------------------------------------------- by what CUDA says


def _by_uuid(cards: Sequence[Card], uuid: str | None) -> Match | None:
    for card in cards:
        for instance in card.instances:
            if same_uuid(instance.uuid, uuid):
                return Match(card, instance, "uuid")
        if same_uuid(card.uuid, uuid):
            return Match(card, None, "uuid")
    return None


def _by_bus(cards: Sequence[Card], bus_id: str | None) -> Match | None:
    wanted = bus_key(bus_id)
    found = [card for card in cards if wanted is not None and bus_key(card.pci_bus_id) == wanted]
    return Match(found[0], None, "bus") if len(found) == 1 else None


def _likely_instance(card: Card, ordinal: int, environ: Mapping[str, str]) -> Instance | None:
    """The slice that CUDA uses of a card that is in MIG mode: the one named, else the only one."""
    slots = _named([card], parse_visible(environ.get("CUDA_VISIBLE_DEVICES")) or ())
    if slots and ordinal < len(slots):
        return slots[ordinal][1]
    return card.instances[0] if len(card.instances) == 1 else None


# ------------------------------------------------------------------------------------------------- by the environment


def _by_environment(cards: Sequence[Card], ordinal: int, environ: Mapping[str, str]) -> Match:
    visible = parse_visible(environ.get("CUDA_VISIBLE_DEVICES"))
    if visible == ():
        return Match(None, reason="CUDA_VISIBLE_DEVICES hides every card")
    if visible is not None and isinstance(visible[0], str):
        slots = _named(cards, visible)
    else:
        counted = _counted(cards, environ)
        if counted is None:
            return Match(None, reason="CUDA has not started yet, and of several cards the fastest comes first")
        slots = _numbered(counted, visible)
    if ordinal < 0 or ordinal >= len(slots):
        return Match(
            None, reason=f"CUDA_VISIBLE_DEVICES leaves {len(slots)} of {len(cards)} cards, and number {ordinal} is wanted"
        )
    return Match(*slots[ordinal], "environment")


def _counted(cards: Sequence[Card], environ: Mapping[str, str]) -> list[_Slot] | None:
    """The cards in CUDA's order, None where only CUDA knows it: by default the fastest comes first."""
    sliced = any(card.instances for card in cards)
    by_bus = environ.get("CUDA_DEVICE_ORDER", "").strip().upper() == "PCI_BUS_ID"
    if len(cards) > 1 and (sliced or not by_bus or any(bus_key(card.pci_bus_id) is None for card in cards)):
        return None
    ordered = sorted(cards, key=lambda card: bus_key(card.pci_bus_id) or (0, 0, card.index))
    return [(card, _first(card)) for card in ordered]


def _numbered(counted: list[_Slot], visible: tuple[Visible, ...] | None) -> list[_Slot]:
    slots: list[_Slot] = []
    for number in range(len(counted)) if visible is None else visible:
        if not isinstance(number, int) or number >= len(counted):
            break
        slots.append(counted[number])
    return slots


def _named(cards: Sequence[Card], visible: Sequence[Visible]) -> list[_Slot]:
    """The list ends at the first name that fits no card or several; two names of one card make it empty."""
    slots: list[_Slot] = []
    for name in visible:
        found = [] if isinstance(name, int) else _fitting(cards, name)
        if len(found) != 1:
            break
        if found[0] in slots:
            return []
        slots.append(found[0])
    return slots


def _fitting(cards: Sequence[Card], name: str) -> list[_Slot]:
    if name.upper().startswith("MIG-"):
        return [(card, each) for card in cards for each in card.instances if _is_instance(card, each, name)]
    return [(card, _first(card)) for card in cards if card.uuid is not None and _bare(card.uuid).startswith(_bare(name))]


def _is_instance(card: Card, instance: Instance, name: str) -> bool:
    """ "MIG-<uuid>", or the older "MIG-GPU-<uuid of the card>/<GPU instance>/<compute instance>"."""
    old = re.fullmatch(r"mig-gpu-([0-9a-f-]+)/(\d+)/(\d+)", name.lower())
    if old is not None:
        place = (int(old[2]), int(old[3]))
        return same_uuid(card.uuid, old[1]) and (instance.gpu_instance, instance.compute_instance) == place
    return instance.uuid is not None and _bare(instance.uuid).startswith(_bare(name))


def _first(card: Card) -> Instance | None:
    """CUDA enumerates one slice of a card in MIG mode, the first unless one is named."""
    return card.instances[0] if card.instances else None


def _entry(text: str) -> Visible | None:
    if text.upper().startswith(("GPU-", "MIG-")):
        return text if len(text) > 4 else None
    number = re.match(r"\+?([0-9]{1,9})(?![0-9])", text)  # as strtoul: what follows the digits is ignored
    return None if number is None else int(number[1])


def _bare(uuid: str) -> str:
    return re.sub(r"^(gpu|mig)-", "", uuid.strip().lower())
