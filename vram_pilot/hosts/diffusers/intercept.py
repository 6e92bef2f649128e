"""Runs something of ours around the methods of one object, by giving that object a class of its own. Standard library only.

A forward hook would come too late: torch takes the list of a module's hooks before it calls the first of them, so a hook that
enters another mode, and with it sets and removes hooks, would not reach the call that it was meant for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_vram_pilot_base"


def is_intercepted(target: object) -> bool:
    return hasattr(type(target), _MARK)


def intercept(target: Any, members: dict[str, Any]) -> Callable[[], None]:
    """Gives `target` a class derived from its own, with `members` added; the answer gives the old class back.

    The class keeps its name and module, so that what is saved by name stays the same.
    """
    base = type(target)
    kept = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__, _MARK: base}
    metaclass: Any = type(base)
    made = metaclass(base.__name__, (base,), {**kept, **members})
    object.__setattr__(target, "__class__", made)

    def undo() -> None:
        if type(target) is made:
            object.__setattr__(target, "__class__", base)

    return undo


def before(target: object, name: str, run: Callable[[], None]) -> dict[str, Any]:
    """The member that calls `run` before the method `name`."""
    original = getattr(type(target), name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        run()
        return original(self, *args, **kwargs)

    return {name: method}


def after(target: object, name: str, run: Callable[[], None]) -> dict[str, Any]:
    """The member that calls `run` after the method `name` has returned."""
    original = getattr(type(target), name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        run()
        return answer

    return {name: method}
