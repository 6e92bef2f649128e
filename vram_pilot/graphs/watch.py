"""Places in Python that a captured forward has read, so that a change there is noticed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from operator import is_
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from torch import nn

from vram_pilot.graphs.trace import Trace

_ABSENT = object()
#: Names that torch asks a module's class for, whether or not traced code mentions them.
_CALLED = frozenset(("forward", "__call__", "__getattr__"))


class Watch:
    """What stands under the names that the traced code refers to: in modules' namespaces, in objects that lie there, and in the
    given classes. By identity, so that a helper is noticed that another extension puts in place of one (`functional.conv2d`,
    `th.cat`, a class's forward)."""

    def __init__(self, trace: Trace, classes: Iterable[type]) -> None:
        places = dict(_places(trace))
        self._spaces = [space for space, _ in places.values()]
        self._names = [name for _, name in places.values()]
        self._values = list(self._read())
        bases = dict.fromkeys(base for kind in classes for base in kind.__mro__[:-1])
        wanted = trace.names() | _CALLED
        members = [(vars(base), name) for base in bases for name in wanted.intersection(vars(base))]
        self._classes = [vars(base) for base in bases]
        self._sizes = list(map(len, self._classes))
        self._owners = [space for space, _ in members]
        self._members = [name for _, name in members]
        self._functions = list(self._read_classes())

    def same(self) -> bool:
        return (
            all(map(is_, self._read(), self._values))
            and all(map(is_, self._read_classes(), self._functions))
            and list(map(len, self._classes)) == self._sizes
        )

    def _read(self) -> Iterable[Any]:
        return map(dict.get, self._spaces, self._names, repeat(_ABSENT))

    def _read_classes(self) -> Iterable[Any]:
        return map(MappingProxyType.get, self._owners, self._members, repeat(_ABSENT))


def _places(trace: Trace) -> Iterable[tuple[tuple[int, str], tuple[dict[str, Any], str]]]:
    """(key, (namespace, name)) for every global name in the code, and for the names that it may ask that global object for. Of
    a module those that are there; of another object also those that would hide one of its class."""
    for code, namespace in trace.codes.items():
        if str(namespace.get("__name__")).startswith("vram_pilot."):
            continue
        for name in namespace.keys() & code.co_names:
            yield (id(namespace), name), (namespace, name)
            value = namespace[name]
            inner: Any = getattr(value, "__dict__", None)
            if isinstance(value, (type, FunctionType, nn.Module)) or type(inner) is not dict:
                continue
            for attribute in code.co_names:
                if attribute in inner or not isinstance(value, ModuleType):
                    yield (id(inner), attribute), (inner, attribute)
