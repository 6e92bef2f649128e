"""One component on the device at a time: whoever is called comes in, whoever is idle goes out. Unchanged weights are dropped, not
copied back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from vram_pilot.streaming.part import Part


class Gates:
    """Hooks on every module through which a component can be entered. A component that is running is never sent away, even when
    another thread (a live preview) calls for another one: then both are on the device until the next change."""

    def __init__(self, parts: Sequence[Part], alone: nn.Module | None = None) -> None:
        self._alone = alone  # while this one runs, the device belongs to it
        self._parts = list(parts)
        self._busy: dict[str, int] = {}
        self._hooks: list[Any] = []
        self._lock = threading.RLock()

    def install(self) -> None:
        for part in self._parts:
            for module in _doors(part):
                self._hook(module, part)
        if self._alone is not None:
            self._hooks.append(self._alone.register_forward_pre_hook(lambda _module, _args: self._clear(None), prepend=True))

    def remove(self) -> None:
        """Every component ends at home or on the device as a whole; no hook is left."""
        for handle in reversed(self._hooks):
            handle.remove()
        self._hooks.clear()

    def fetch(self, role: str) -> None:
        """Brings in the first component of this role, before it is called."""
        wanted = next((part for part in self._parts if part.component.role == role), None)
        if wanted is not None:
            self._bring(wanted)

    def settle(self) -> None:
        self._busy.clear()

    def _hook(self, module: nn.Module, part: Part) -> None:
        name = part.component.name

        def enter(_module: nn.Module, _args: Any) -> None:
            with self._lock:
                self._bring(part)
                self._busy[name] = self._busy.get(name, 0) + 1

        def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
            with self._lock:
                self._busy[name] = max(self._busy.get(name, 1) - 1, 0)

        self._hooks.append(module.register_forward_pre_hook(enter, prepend=True))
        self._hooks.append(module.register_forward_hook(leave, always_call=True))

    def _bring(self, part: Part) -> None:
        with self._lock:
            if part.loaded:
                return
            self._clear(part)
            part.load()

    def _clear(self, wanted: Part | None) -> None:
        """Sends away what is on the device and idle."""
        with self._lock:
            for part in self._parts:
                if part is not wanted and part.loaded and not self._busy.get(part.component.name):
                    part.unload()


def _doors(part: Part) -> Iterator[nn.Module]:
    """The modules whose call means that the component is needed. A denoiser is entered from its root or its blocks, so that the many
    modules inside keep their speed; the others may be entered anywhere (an embedding table, a VAE's decoder)."""
    root = part.component.module
    if part.component.role != "denoiser":
        yield from (module for module in root.modules() if not isinstance(module, (nn.ModuleList, nn.ModuleDict)))
        return
    yield root
    waiting = list(root.children())
    while waiting:
        module = waiting.pop()
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            waiting += list(module.children())
        else:
            yield module
