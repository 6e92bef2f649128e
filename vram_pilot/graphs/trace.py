"""Which Python code a call runs. Every function counts, however it got there: a forward, a hook, a patched helper."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from vram_pilot.graphs.known import is_known
from vram_pilot.graphs.signature import NotCapturable

#: Code -> the namespace of the module that it belongs to.
Codes = dict[CodeType, dict[str, Any]]


class Trace:
    """Notes in `codes` what this thread runs between `__enter__` and `__exit__`."""

    def __init__(self, codes: Codes | None = None) -> None:
        self.codes: Codes = {} if codes is None else codes
        self._hook = self._note
        self._collecting = False

    def __enter__(self) -> Trace:
        """Raises NotCapturable when somebody else's profiler runs: there can be one only."""
        if sys.getprofile() is not None:
            raise NotCapturable("a Python profiler is running")
        self._collecting = gc.isenabled()
        gc.disable()  # finalizers of anything at all would run in here
        sys.setprofile(self._hook)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ours = sys.getprofile() is self._hook
        if ours:
            sys.setprofile(None)
        if self._collecting:
            gc.enable()
        if not ours and error is None:
            raise NotCapturable("a Python profiler was started in mid-call")

    def _note(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            self.codes.setdefault(frame.f_code, frame.f_globals)

    def stranger(self) -> str | None:
        """The name of something that is not known to do the same at each call, None when all is."""
        for code, namespace in self.codes.items():
            module = str(namespace.get("__name__", ""))
            if not is_known(module, code.co_name):
                return f"{module or code.co_filename}.{getattr(code, 'co_qualname', code.co_name)}"
        return None

    def names(self) -> frozenset[str]:
        """Every name that the code could ask an object for."""
        return frozenset(name for code in self.codes for name in (*code.co_names, *_strings(code.co_consts)))


def _strings(constants: tuple[Any, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _strings(tuple(constant))
