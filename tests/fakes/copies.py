"""A copy engine that is as late, and as early, as a real one may be: what lacks a wait, or reuses a place too soon, gives a
wrong image or is written down."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vram_pilot.streaming.copies import PlainCopies

POISON = 0xFF  # as a float of any width: not a number


@dataclass(eq=False)
class Mark:
    """A point in the computation (copy None), or the end of a copy."""

    time: int
    copy: _Copy | None = None


@dataclass(eq=False)
class _Copy:
    target: torch.Tensor
    source: torch.Tensor
    before: torch.Tensor  # the source when the copy was asked for


class DelayedCopies(PlainCopies):
    """Copies are done when they are waited for, in order, and not before; until then the target holds poison. A source that has
    changed in between gives poison, too: a real copy would have taken a bit of each state.

    hazards: what would be a race on a device. alive: whether the host copy that a tensor lies in still exists.
    """

    def __init__(self, alive: Callable[[torch.Tensor], bool] = lambda tensor: True) -> None:
        super().__init__(torch.device("cpu"))
        self.hazards: list[str] = []
        self.uploads = 0
        self.time = 0
        self._alive = alive
        self._pending: deque[_Copy] = deque()
        self._uses: list[tuple[int, int, int]] = []  # time, first and last address

    # ---------------------------------------------------------------------------------------------------- as a CopyEngine

    def upload(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> Mark:
        self.uploads += 1
        target = target[: source.numel()]
        start, end = target.data_ptr(), target.data_ptr() + target.numel()
        since = -1 if after is None else after.time
        if any(time > since and first < end and last > start for time, first, last in self._uses):
            self.hazards.append("a place is copied to that is used behind the mark which frees it")
        self._uses = [use for use in self._uses if use[0] > since - 1000]
        target.fill_(POISON)
        copy = _Copy(target, source, source.clone())
        self._pending.append(copy)
        return Mark(self._now(), copy)

    def mark(self) -> Mark:
        return Mark(self._now())

    def wait(self, mark: Any) -> None:
        if mark is not None and mark.copy is not None and mark.copy in self._pending:
            while self._pending[0] is not mark.copy:
                self._do(self._pending.popleft())
            self._do(self._pending.popleft())

    def join(self) -> None:
        self.drain()

    def drain(self) -> None:
        while self._pending:
            self._do(self._pending.popleft())

    # ---------------------------------------------------------------------------------------------------- for tests

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def watch(self, module: nn.Module) -> None:
        """Takes down from now on which memory every layer below `module` reads, and when."""
        for child in module.modules():
            if child._parameters:
                child.register_forward_hook(self._used)

    def _used(self, module: nn.Module, _args: Any, _out: Any) -> None:
        for tensor in module._parameters.values():
            if tensor is not None:
                self._uses.append((self._now(), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))

    def _do(self, copy: _Copy) -> None:
        if not self._alive(copy.source):
            self.hazards.append("a host copy is given up while it is being read")
        if torch.equal(copy.source, copy.before):
            copy.target.copy_(copy.source)

    def _now(self) -> int:
        self.time += 1
        return self.time
