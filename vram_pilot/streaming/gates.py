"""One component on the device at a time: whoever is called comes in, whoever is idle goes out. Unchanged weights are dropped,
not copied back."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from vram_pilot.streaming.each import for_each
from vram_pilot.streaming.part import Part


class Gates:
    """Hooks on every module through which a component can be entered. A component that is running is never sent away, even when
    another thread (a live preview) calls for another one: then both are on the device until the next change."""

    def __init__(self, parts: Sequence[Part], alone: nn.Module | None = None) -> None:
        self._alone = alone  # while this one runs, the device belongs to it
        self._parts = list(parts)
        self._busy: dict[tuple[str, int], int] = {}  # calls that are under way, by component and thread
        self._hooks: list[Any] = []
        self._open = False  # a call that was under way when the hooks were removed still reaches them: then they do nothing
        self._lock = threading.RLock()

    def install(self) -> None:
        self._open = True
        for part in self._parts:
            for module in _doors(part):
                self._before(module, functools.partial(self._enter, part))
                self._after(module, functools.partial(self._leave, part))
        if self._alone is not None:
            self._before(self._alone, self._clear_all)

    def remove(self) -> None:
        """Every component ends at home or on the device as a whole; no hook is left."""
        self._open = False
        for handle in reversed(self._hooks):
            handle.remove()
        self._hooks.clear()

    def fetch(self, role: str) -> None:
        """Brings in the first component of this role, before it is called."""
        wanted = next((part for part in self._parts if part.component.role == role), None)
        if wanted is not None:
            self._bring(wanted)

    def settle(self) -> None:
        """Between jobs, whatever became of the last one: this thread is in no component, nor is one that has ended."""
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        with self._lock:
            self._busy = {key: count for key, count in self._busy.items() if key[1] in others}

    def _before(self, module: nn.Module, work: Callable[[], torch.device | None]) -> None:
        """work: answers the device that the inputs have to follow to, if any."""

        @torch.inference_mode(False)  # what is made under it could not be changed in place later
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            device = work() if self._open else None
            return None if device is None else _moved(args, device)

        self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))

    def _after(self, module: nn.Module, work: Callable[[], None]) -> None:
        def hook(_module: nn.Module, _args: Any, _out: Any) -> None:
            work()

        self._hooks.append(module.register_forward_hook(hook, always_call=True))

    def _enter(self, part: Part) -> torch.device | None:
        """The part's device when this call has brought it there: its inputs lie where its weights were seen to lie before."""
        with self._lock:
            key = part.component.name, threading.get_ident()
            self._busy[key] = self._busy.get(key, 0) + 1
            was_there = part.loaded
            self._bring(part)
            return None if was_there else part.device

    def _leave(self, part: Part) -> None:
        with self._lock:
            key = part.component.name, threading.get_ident()
            self._busy[key] = self._busy.get(key, 0) - 1
            if self._busy[key] <= 0:
                del self._busy[key]

    def _bring(self, part: Part) -> None:
        with self._lock:
            if part.loaded:
                return
            self._clear(part)
            part.load()

    def _clear_all(self) -> None:
        self._clear(None)

    def _clear(self, wanted: Part | None) -> None:
        """Sends away what is on the device and idle."""
        with self._lock:
            busy = {name for name, _thread in self._busy}
            idle = [part for part in self._parts if part.loaded and part.component.name not in busy]
            leaving = [part for part in idle if part is not wanted]
            for_each(leaving, Part.unload)
            if leaving:
                torch.clear_autocast_cache()  # casts of their weights would stay on the device


def _moved(values: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in values)


def _doors(part: Part) -> Iterator[nn.Module]:
    """The modules whose call means that the component is needed. A denoiser is entered from its root or its blocks, so that the
    many modules inside keep their speed; the others may be entered anywhere (an embedding table, a VAE's decoder)."""
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
