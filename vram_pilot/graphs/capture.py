"""One captured call: its graph, its static inputs and its output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from vram_pilot.graphs.signature import map_tensors, tensors_of

#: Held while a capture is under way. Whoever allocates for another thread's sake or empties the allocator's cache waits for it.
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


@contextlib.contextmanager
def no_autocast_cache() -> Iterator[None]:
    """A cast that autocast remembers would be read by every replay, wherever its memory has gone since."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class CapturedCall:
    """pool_bytes: device memory that the graph keeps. Every method on the sampling thread."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        surroundings: Surroundings,
        pool: Any,
        stream: torch.cuda.Stream,
    ) -> None:
        """Captures `function(*args, **kwargs)`; raises what torch raises when that cannot be done, and then nothing is left."""
        self._surroundings = surroundings
        self._inputs = map_tensors((args, kwargs), torch.Tensor.clone)
        device = stream.device
        self._graph = torch.cuda.CUDAGraph()
        before = torch.cuda.memory_reserved(device)
        surroundings.prime()
        stream.wait_stream(torch.cuda.current_stream(device))
        static_args, static_kwargs = self._inputs
        with CAPTURE_LOCK, torch.cuda.stream(stream), no_autocast_cache():
            torch.cuda.current_stream(device).synchronize()
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            whole = False
            try:
                surroundings.begin(captured=True)
                self._output = function(*static_args, **static_kwargs)
                whole = True
            finally:
                try:
                    surroundings.end(whole=whole, captured=True)
                finally:
                    self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.pool_bytes = max(torch.cuda.memory_reserved(device) - before, 0)

    def replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output for these inputs, in memory of its own. Does not wait for the device."""
        self._surroundings.prime()
        for static, given in zip(tensors_of(self._inputs), tensors_of((args, kwargs))):
            static.copy_(given)
        self._graph.replay()
        self._surroundings.replayed()
        return map_tensors(self._output, torch.Tensor.clone)
