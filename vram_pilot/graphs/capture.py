"""One captured call, and what a device does to make it."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch

from vram_pilot.graphs.inputs import StaticInputs
from vram_pilot.graphs.signature import map_tensors

_Answer = TypeVar("_Answer")

#: Held while a capture is under way. Whoever works on the device in another thread meanwhile, or empties the allocator's cache,
#: waits for it: before torch 2.8 `empty_cache` fails in mid-capture, and a synchronised or full device breaks the capture off.
CAPTURE_LOCK = threading.RLock()


class Surroundings(Protocol):
    """What streamed weights need around a captured call. Without them: `NoSurroundings`."""

    def capturable(self) -> str | None:
        """Why a call cannot be captured, None when it can."""

    def prime(self) -> None:
        """Before a capture or a replay: the state that every replay begins with."""

    def begin(self, *, captured: bool = False) -> None: ...

    def end(self, *, whole: bool = False, captured: bool = False) -> None: ...

    def replayed(self) -> None:
        """After a replay: the device is as a captured call leaves it."""

    def settle(self) -> None:
        """After a capture that failed: nothing refers to it any more."""


class NoSurroundings:
    def capturable(self) -> str | None:
        return None

    def prime(self) -> None:
        return None

    def begin(self, *, captured: bool = False) -> None:
        return None

    def end(self, *, whole: bool = False, captured: bool = False) -> None:
        return None

    def replayed(self) -> None:
        return None

    def settle(self) -> None:
        return None


class Graph(Protocol):
    """Work of the device that can be repeated."""

    def replay(self) -> None: ...


class Graphs(Protocol):
    """Makes graphs on one device. Every method on the sampling thread."""

    device_type: str

    def capturing(self) -> bool:
        """Whether somebody else is capturing on this thread's stream."""

    def follow(self) -> None:
        """This thread's stream waits for what another one of this program's streams has been given by us."""

    def aside(self, work: Callable[[], _Answer]) -> _Answer:
        """Runs `work` on the stream that captures, in order with what comes before and after."""

    def record(self, work: Callable[[], Any]) -> tuple[Graph, Any, int]:
        """Captures `work`. (graph, what `work` answered, bytes of device memory taken for it). Raises what torch raises when
        that cannot be done; then nothing is left of it."""

    def random_state(self) -> list[torch.Tensor]:
        """The states of the generators that a forward could draw from."""

    def wait(self) -> None:
        """Until the device has done everything."""

    def give_back(self) -> None:
        """Memory that nobody uses goes back to the driver."""


class CapturedCall:
    """pool_bytes: device memory that the graph keeps. Every method on the sampling thread."""

    def __init__(self, graphs: Graphs, function: Callable[..., Any], inputs: StaticInputs, surroundings: Surroundings) -> None:
        """Captures `function` with these inputs; raises what torch raises when that cannot be done; then nothing is left."""
        self._inputs = inputs
        self._surroundings = surroundings
        args, kwargs = inputs.value
        try:
            surroundings.prime()
            with CAPTURE_LOCK, no_autocast_cache(), _no_collection():
                captured = graphs.record(lambda: _bracketed(surroundings, function, args, kwargs))
        except BaseException:
            surroundings.settle()
            raise
        self._graph, self._output, self.pool_bytes = captured

    def replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output for these inputs, in memory of its own. Does not wait for the device."""
        self._surroundings.prime()
        self._inputs.fill((args, kwargs))
        self._graph.replay()
        self._surroundings.replayed()
        return map_tensors(self._output, torch.Tensor.clone)


def _bracketed(surroundings: Surroundings, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    whole = False
    try:
        surroundings.begin(captured=True)
        output = function(*args, **kwargs)
        whole = True
        return output
    finally:
        surroundings.end(whole=whole, captured=True)


@contextlib.contextmanager
def no_autocast_cache() -> Iterator[None]:
    """A cast that autocast remembers would be read by every replay, wherever its memory has gone since."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """The collector could end other graphs and free device memory, which breaks a capture off."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
