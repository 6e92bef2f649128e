"""Divides a model part into units: groups of weights that are moved together.

A unit is the smallest module whose forward brackets every use of its weights. A module that holds weights of its own beside those
of its children (an attention that multiplies by its child's weight, say) is never divided, unless it is the root. A plain Sequential
always is: blocks call slices of it, or its children one by one, and then its own forward never runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from vram_pilot.streaming.units import Unit, Weight, own_weights, storage_key
from vram_pilot.units import KIB, MIB

#: A module is divided when it is larger than a sixteenth of its part, within these bounds.
SMALLEST_BYTES, LARGEST_BYTES = 1 * MIB, 32 * MIB
#: Pieces of a divided module below this are held: a copy of their own would cost more time than they cost memory.
HELD_BYTES = 128 * KIB

#: torch's own modules that read their children's weights without calling them.
UNDIVIDED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def all_weights(module: nn.Module) -> list[Weight]:
    """Every weight below `module`, each tensor object once."""
    seen, found = set(), []
    for child in module.modules():
        for weight in own_weights(child):
            if id(weight.tensor) not in seen:
                seen.add(id(weight.tensor))
                found.append(weight)
    return found


def size_of(module: nn.Module) -> int:
    return sum(weight.size_bytes for weight in all_weights(module))


def split(root: nn.Module, left_out: frozenset[tuple[int, int]] = frozenset()) -> tuple[list[Unit], list[Unit]]:
    """The units of `root` in the order of definition, and those that must be held during a whole call.

    left_out: storage keys of weights that are looked after elsewhere (shared between parts).
    """
    limit = min(max(size_of(root) // 16, SMALLEST_BYTES), LARGEST_BYTES)
    units: list[Unit] = []
    loose: list[Weight] = []
    for name, module, whole in _pieces("", root, limit, root):
        weights = all_weights(module) if whole else list(own_weights(module))
        weights = [weight for weight in weights if storage_key(weight.tensor) not in left_out]
        if not weights:
            continue
        small = sum(weight.size_bytes for weight in weights) < min(HELD_BYTES, limit // 64)
        if whole and module is not root and not small:
            units.append(Unit(name, module, weights))
        else:
            loose += weights
    units, tied = _without_ties(units)
    loose += tied
    return units, ([Unit("(used throughout)", None, _once(loose))] if loose else [])


def _pieces(name: str, module: nn.Module, limit: int, root: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """(name, module, whole): whole pieces become units; for the others only the module's own weights are meant."""
    children = list(module.named_children())
    container = type(module) in (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # may never be called itself
    must_divide = module is root or container or isinstance(module, (nn.ModuleList, nn.ModuleDict))
    divisible = must_divide or not (any(True for _ in own_weights(module)) or isinstance(module, UNDIVIDED))
    if not children or not divisible or (not must_divide and size_of(module) <= limit):
        yield name, module, True
        return
    if any(True for _ in own_weights(module)):
        yield name, module, False
    for child_name, child in children:
        yield from _pieces(f"{name}.{child_name}" if name else child_name, child, limit, root)


def _without_ties(units: list[Unit]) -> tuple[list[Unit], list[Weight]]:
    """Takes out the weights that lie in more than one unit; they are held."""
    owners: dict[tuple[int, int], int] = {}
    shared = set()
    for number, unit in enumerate(units):
        for weight in unit.weights:
            if owners.setdefault(storage_key(weight.tensor), number) != number:
                shared.add(storage_key(weight.tensor))
    if not shared:
        return units, []
    tied = [weight for unit in units for weight in unit.weights if storage_key(weight.tensor) in shared]
    rest = [
        Unit(unit.name, unit.module, [weight for weight in unit.weights if storage_key(weight.tensor) not in shared])
        for unit in units
    ]
    return [unit for unit in rest if unit.weights], tied


def _once(weights: Iterable[Weight]) -> list[Weight]:
    return list({id(weight.tensor): weight for weight in weights}.values())
