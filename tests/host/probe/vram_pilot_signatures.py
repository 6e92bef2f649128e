"""What stands behind a name: for the table of names that the adapter uses, in the real WebUI and in the fakes of it."""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def signature(target: str, modules: dict[str, Any] | None = None) -> Any:
    """Parameter names of a function, "class" of a class, "attribute" of anything else, None when it is not there.

    target: "package.module:path.to.name"; modules: those that cannot be imported by name.
    """
    name, _, path = target.partition(":")
    found: Any = (modules or {}).get(name) or importlib.import_module(name)
    for part in path.split("."):
        holder = found
        try:
            found = inspect.getattr_static(holder, part) if inspect.isclass(holder) else getattr(holder, part)
        except AttributeError:
            declared = inspect.isclass(holder) and any(part in vars(base).get("__annotations__", {}) for base in holder.__mro__)
            return "attribute" if declared else None
    if isinstance(found, staticmethod):
        found = found.__func__
    if inspect.isclass(found):
        return "class"
    if not inspect.isroutine(found):
        return "attribute"
    return list(inspect.signature(inspect.unwrap(found)).parameters)
