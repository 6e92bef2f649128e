"""Divides a model part into units: groups of weights that are moved together.

A unit is the smallest module whose forward brackets every use of its weights. A module that holds weights of its own beside
those of its children (an attention that multiplies by its child's weight, say) is never divided, unless it is the root. A plain
Sequential always is: blocks call slices of it, or its children one by one, and then its own forward never runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from vram_pilot.streaming.units import Unit
from vram_pilot.streaming.weights import StorageKey, Weight, all_weights, own_weights, size_of, storage_key
from vram_pilot.units import KIB, MIB

#: A module is divided when it is larger than a sixteenth of its part, within these bounds.
SMALLEST_BYTES, LARGEST_BYTES = 1 * MIB, 72 * MIB
#: Pieces of a divided module below this are held: a copy of their own would cost more time than they cost memory.
HELD_BYTES = 128 * KIB

#: torch's own modules that read their children's weights without calling them.
UNDIVIDED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def split(root: nn.Module, left_out: frozenset[StorageKey] = frozenset()) -> tuple[list[Unit], list[Unit]]:
    """The units of `root` in the order of definition, and those that must be held during a whole call.

    left_out: storage keys of weights that are looked after elsewhere (shared between parts).
    """
    limit = min(max(size_of(root) // 16, SMALLEST_BYTES), LARGEST_BYTES)
    small = min(HELD_BYTES, limit // 64)
    whole: list[tuple[str, nn.Module, list[Weight]]] = []
    loose: list[Weight] = []
    for name, module, bracketed in _pieces("", root, limit, root):
        weights = all_weights(module) if bracketed else list(own_weights(module))
        weights = [weight for weight in weights if storage_key(weight.tensor) not in left_out]
        if bracketed and sum(weight.size_bytes for weight in weights) >= small:
            whole.append((name, module, weights))
        else:
            loose += weights
    tied = _ties([*(weights for _, _, weights in whole), loose])
    loose += [weight for _, _, weights in whole for weight in weights if storage_key(weight.tensor) in tied]
    units = []
    for name, module, weights in whole:
        rest = [weight for weight in weights if storage_key(weight.tensor) not in tied]
        if rest:
            units.append(Unit(name, module, rest))
    held = list({weight.name: weight for weight in loose}.values())
    return units, ([Unit("(used throughout)", None, held)] if held else [])


def _pieces(name: str, module: nn.Module, limit: int, root: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """(name, module, bracketed): the forward of a bracketed piece brackets the use of all weights below it; for the others only
    the module's own weights are meant."""
    children = list(module.named_children())
    divide = children and _divisible(module) and size_of(module) > limit
    if module is not root and _is_called(module) and not divide:
        yield name, module, True
        return
    yield name, module, False
    for child_name, child in children:
        yield from _pieces(f"{name}.{child_name}" if name else child_name, child, limit, root)


def _divisible(module: nn.Module) -> bool:
    return not (any(True for _ in own_weights(module)) or isinstance(module, UNDIVIDED))


def _is_called(module: nn.Module) -> bool:
    """Whether its own forward can be relied on to run: lists of modules or parameters have none, and of a plain Sequential the
    children may be called instead."""
    return type(module) is not nn.Sequential and (type(module).forward is not nn.Module.forward or "forward" in vars(module))


def _ties(groups: Iterable[Iterable[Weight]]) -> set[StorageKey]:
    """The memory that is used in more than one group: it is held."""
    owners: dict[StorageKey, int] = {}
    shared = set()
    for number, group in enumerate(groups):
        for weight in group:
            if owners.setdefault(storage_key(weight.tensor), number) != number:
                shared.add(storage_key(weight.tensor))
    return shared
