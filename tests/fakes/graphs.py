"""Graphs for tests without CUDA: the operations of a call are written down with the memory that they use, and done again.

Like a real graph, such a recording knows nothing of Python: it reads the memory that the weights and inputs had, and writes
to the memory that its results had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_Answer = TypeVar("_Answer")

#: What makes the program wait for the device's answer, which a capture does not allow.
_WAITING = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"}


class NoCapture(RuntimeError):
    """As CUDA says it."""


class Recording:
    def __init__(self, owner: RecordedGraphs) -> None:
        self._owner = owner
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        self._owner.events.append("replay")
        if self._owner.replay_error is not None:
            raise self._owner.replay_error
        for function, args, kwargs, outputs in self._operations:
            results = function(*args, **kwargs)
            if not any(value.alias_info for value in function._schema.returns):  # neither in place nor a view
                for output, result in zip(tree_leaves(outputs), tree_leaves(results)):
                    if isinstance(output, torch.Tensor):
                        output.copy_(result)
        if self._owner.spoil is not None:
            self._owner.spoil(self._operations[-1][-1])

    def add(self, function: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        self._operations.append((function, _memory(args), _memory(kwargs), _memory(outputs)))


class RecordedGraphs:
    """A `Graphs` on the CPU. events: what it was asked for, in order.

    error, replay_error: raised by the next captures and replays. spoil: called behind each replay with the last result.
    elsewhere: whether somebody else is capturing.
    """

    device_type = "cpu"

    def __init__(self, _device: torch.device | None = None) -> None:
        self.events: list[str] = []
        self.error: BaseException | None = None
        self.replay_error: Exception | None = None
        self.spoil: Callable[[torch.Tensor], object] | None = None
        self.pool_bytes = 100
        self.elsewhere = False

    def capturing(self) -> bool:
        return self.elsewhere

    def follow(self) -> None:
        return None

    def aside(self, work: Callable[[], _Answer]) -> _Answer:
        self.events.append("aside")
        return work()

    def record(self, work: Callable[[], Any]) -> tuple[Recording, Any, int]:
        self.events.append("capture")
        recording = Recording(self)
        with _Recorder(recording):
            answer = work()
        if self.error is not None:
            raise self.error
        return recording, answer, self.pool_bytes

    def random_state(self) -> list[torch.Tensor]:
        return [torch.get_rng_state()]

    def wait(self) -> None:
        self.events.append("wait")

    def give_back(self) -> None:
        self.events.append("give back")


class _Recorder(TorchDispatchMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _WAITING:
            raise NoCapture("CUDA error: operation not permitted when stream is capturing")
        outputs = func(*args, **(kwargs or {}))
        self._recording.add(func, args, kwargs or {}, outputs)
        return outputs


def _memory(value: Any) -> Any:
    """Tensors as they lie in memory now, whatever becomes of the objects."""
    return tree_map(lambda item: item.detach() if isinstance(item, torch.Tensor) else item, value)
