"""The one gate to the driver's library, NVML, through the module pynvml (package nvidia-ml-py).

It is loaded and started at the first need. Names of functions differ between versions of the binding and the driver, text comes
as bytes or str, and what is not available as an error or a sentinel: behind this gate there are numbers and faults.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

#: NVML's codes for "not on this card, driver or binding, or not for this user": asking again soon is of no use.
_UNSUPPORTED = {
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    13: "no such function",
    22: "not on a virtual card",
}
_UNSUPPORTED |= {25: "another version of the structure", 26: "no longer offered"}
#: The card, or the driver below it, is gone: every handle is worth nothing.
_LOST = {1: "the library was shut down", 9: "the driver is not loaded", 15: "the card is lost", 16: "the card needs a reset"}
_LOST |= {18: "the driver was updated and needs a restart"}
_NO_SUCH_FUNCTION = 13

#: A timestamped value's type, by NVML's number: which member of the union holds it, and its bits.
_MEMBERS = {0: ("dVal", 64), 1: ("uiVal", 32), 2: ("ulVal", 8 * ctypes.sizeof(ctypes.c_ulong)), 3: ("ullVal", 64)}
_MEMBERS |= {4: ("sllVal", 64), 5: ("siVal", 32), 6: ("usVal", 16)}


#: A field by its number, or by its number and scope (a link, say).
FieldId = int | tuple[int, int]


@dataclass(frozen=True)
class FieldValue:
    """bits: the width of the driver's counter, at whose end it begins again; time_s: when the driver read it, by its own clock,
    None when it does not say."""

    value: float
    bits: int
    time_s: float | None = None


class Fault(Exception):
    """A reading that did not come. kind: "absent" (no binding, library or driver), "unsupported", "lost" (the card is gone) or
    "failed" (this time); code: NVML's own number, None where there is none."""

    def __init__(self, kind: str, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code


def _load() -> Any:
    return importlib.import_module("pynvml")


class Nvml:
    """All calls belong to one thread. load: gives the binding; every error of it is turned into a Fault."""

    def __init__(self, load: Callable[[], ModuleType | Any] = _load) -> None:
        self._load = load
        self._module: Any = None
        self._chosen: dict[tuple[str, ...], str] = {}

    @property
    def is_open(self) -> bool:
        return self._module is not None

    def open(self) -> None:
        """Starts the library; nothing when it is started. Raises Fault of the kind "absent"."""
        if self._module is not None:
            return
        try:
            module = self._load()
        except ImportError as error:
            raise Fault("absent", "the package nvidia-ml-py is not installed") from error
        except Exception as error:  # a binding that breaks while it is imported, as under ZLUDA
            raise Fault("absent", f"the package nvidia-ml-py does not load ({type(error).__name__})") from error
        try:
            module.nvmlInit()
        except Exception as error:
            raise Fault("absent", f"no NVIDIA driver answers ({_words(error)})") from error
        self._module = module

    def close(self) -> None:
        """Gives the library back; others in this process, such as torch, have their own hold. Idempotent; never raises."""
        module, self._module = self._module, None
        self._chosen = {}
        if module is not None:
            try:
                module.nvmlShutdown()
            except Exception:  # the driver is gone: there is nothing to give back
                return

    def call(self, *names: str, args: tuple[Any, ...] = (), **kwargs: Any) -> Any:
        """What the first of `names` gives that this binding and driver have; that one is asked at once from then on. Raises
        Fault."""
        fault = Fault("unsupported", "no such function")
        for name in (self._chosen[names],) if names in self._chosen else names:
            function = getattr(self._module, name, None)
            if function is None:
                continue
            try:
                answer = function(*args, **kwargs)
            except Exception as error:  # the gate: a binding may raise what it likes
                fault = _fault(error)
                if fault.code != _NO_SUCH_FUNCTION:
                    self._chosen[names] = name
                    break
            else:
                self._chosen[names] = name
                return answer
        raise fault

    def constant(self, name: str, otherwise: int) -> int:
        """A number of the binding's; `otherwise` where an older one does not name it."""
        value = getattr(self._module, name, otherwise)
        return value if isinstance(value, int) else otherwise

    def values(self, handle: Any, ids: Sequence[FieldId]) -> list[FieldValue | Fault]:
        """The values of these fields, in one call where that works: one that is not available spoils no other.

        Raises Fault when the card is lost.
        """
        try:
            return [_value(answer) for answer in self.call("nvmlDeviceGetFieldValues", args=(handle, list(ids)))]
        except Fault as fault:
            if fault.kind == "lost":
                raise
            return [fault] if len(ids) == 1 else [each for one in ids for each in self.values(handle, [one])]


def number(raw: Any) -> float | None:
    """`raw` as a number; None for what stands for "not available": -1 of any width, numbers near 2^63, DCGM's blanks."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return None
    if not math.isfinite(raw) or raw < 0 or raw == 0xFFFFFFFF or raw >= 2**63 - 64:
        return None
    blank = 0x7FFFFFF0 <= raw <= 0x7FFFFFFF or 140737488355328 <= raw <= 140737488355331
    return None if blank else raw


def text(raw: Any) -> str | None:
    """`raw`, bytes or str, as text without what follows a zero; None when nothing is left."""
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8", "replace")
    if not isinstance(raw, str):
        return None
    return raw.partition("\0")[0].strip() or None


def _value(answer: Any) -> FieldValue | Fault:
    if answer.nvmlReturn != 0:
        return _by_code(int(answer.nvmlReturn), f"NVML error {answer.nvmlReturn}")
    member, bits = _MEMBERS.get(int(answer.valueType), ("ullVal", 64))
    value = number(getattr(answer.value, member))
    return Fault("unsupported", "not available") if value is None else FieldValue(value, bits, answer.timestamp * 1e-6 or None)


def _fault(error: Exception) -> Fault:
    if type(error).__name__ == "NVMLLibraryMismatchError":  # the binding's own word for a function that the driver lacks
        return Fault("unsupported", "no such function", _NO_SUCH_FUNCTION)
    code = getattr(error, "value", None)
    return _by_code(code if isinstance(code, int) else None, _words(error))


def _by_code(code: int | None, otherwise: str) -> Fault:
    if code in _UNSUPPORTED:
        return Fault("unsupported", _UNSUPPORTED[code], code)
    if code in _LOST:
        return Fault("lost", _LOST[code], code)
    return Fault("failed", otherwise, code)


def _words(error: Exception) -> str:
    """An error in a few words: its own, which may fail to come when the library is gone."""
    try:
        return str(error).strip()[:120] or type(error).__name__
    except Exception:
        return type(error).__name__
