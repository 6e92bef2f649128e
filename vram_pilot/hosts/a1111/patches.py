"""Functions of the WebUI that are replaced while we listen, and put back afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class _Patch:
    """original: what `owner` held under `name`; own: whether it lay in the owner itself, not in a base class."""

    owner: Any
    name: str
    original: Any
    own: bool
    ours: Any = None
    live: bool = True


class Patches:
    """Each of ours calls `around(original, *args, **kwargs)` while it lives, and `original` alone afterwards: another extension
    may have wrapped it, and would go on calling it for ever."""

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        patch = _Patch(owner, name, getattr(owner, name), name in vars(owner))

        @functools.wraps(patch.original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if not patch.live:
                return patch.original(*args, **kwargs)
            return around(patch.original, *args, **kwargs)

        patch.ours = ours
        setattr(owner, name, ours)
        self._applied.append(patch)

    def undo(self) -> None:
        """Puts back what is still on top; what has been wrapped by others stays in its place and does nothing any more."""
        for patch in reversed(self._applied):
            patch.live = False
            if vars(patch.owner).get(patch.name) is not patch.ours:
                continue
            if patch.own:
                setattr(patch.owner, patch.name, patch.original)
            else:
                delattr(patch.owner, patch.name)
        self._applied.clear()

    def __len__(self) -> int:
        return len(self._applied)
