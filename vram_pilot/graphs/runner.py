"""Decides for each call of the denoiser whether it runs eagerly, is captured, or is replayed.

A call is captured when an equal one has run before; the first replay in each job is compared with an eager run of the same
call. Whatever does not fit runs eagerly, and the reason is kept for the panel.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import nn

from vram_pilot.graphs.capture import CapturedCall, Graphs, NoSurroundings, Surroundings
from vram_pilot.graphs.comparison import difference_of
from vram_pilot.graphs.device import CudaGraphs
from vram_pilot.graphs.rehearsal import Call, Rehearsal
from vram_pilot.graphs.signature import NotCapturable, signature
from vram_pilot.graphs.structure import Structure
from vram_pilot.graphs.switches import switches
from vram_pilot.graphs.trace import Codes, Trace
from vram_pilot.graphs.weights import WeightState
from vram_pilot.oom import describe, is_out_of_memory

log = logging.getLogger(__name__)

#: Graphs kept at once, and made in one job at most; keys remembered that have not been captured.
MAX_GRAPHS, MAX_KEYS = 8, 64


class _Block(NamedTuple):
    """Why a call is not captured. for_good: also in later jobs, until weights or attributes change."""

    reason: str
    for_good: bool


class GraphRunner:
    """root: the denoiser. state: what the host's forward reads besides inputs and weights; raises NotCapturable for what
    cannot be captured. max_pool_bytes: device memory that graphs may keep together. graphs: made from the device.

    `install` puts `run` in place of the root's forward, `remove` takes it away. On the sampling thread; calls by other threads
    wait for each other.
    """

    def __init__(
        self,
        root: nn.Module,
        device: torch.device,
        state: Callable[[], Hashable] = lambda: None,
        surroundings: Surroundings | None = None,
        max_pool_bytes: int = 2**40,
        graphs: Callable[[torch.device], Graphs] = CudaGraphs,
    ) -> None:
        self.root = root
        self.replays = self.captures = self.mismatches = 0
        self.pool_bytes = 0  # device memory that graphs keep
        self._device = device
        self._state = state
        self._surroundings: Surroundings = surroundings or NoSurroundings()
        self._max_pool_bytes = max_pool_bytes
        self._make = graphs
        self._graphs: Graphs | None = None  # None unless installed
        self._kept: OrderedDict[Hashable, CapturedCall] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._blocked: OrderedDict[Hashable, _Block] = OrderedDict()
        self._checked: set[Hashable] = set()  # keys whose replay has been compared in this job
        self._codes: Codes = {}  # what the captured calls have run
        self._weights: WeightState | None = None  # as at the captures, and so is the next
        self._structure: Structure | None = None
        self._captured_in_job = 0
        self._called_in_job = False
        self._given_up: str | None = None  # why nothing more is captured in this job
        self._reason: str | None = None
        self._lock = threading.RLock()
        self._inside = self._trying = False

    # ------------------------------------------------------------------------------------------------ enter and leave

    def install(self) -> None:
        """Raises NotCapturable when another extension has put a forward of its own on the root."""
        found = vars(self.root).get("forward")
        former = getattr(found, "__self__", None)
        if isinstance(former, GraphRunner) and former._graphs is None:  # put back by somebody who had found it there
            del self.root.forward
        elif found is not None:
            raise NotCapturable(f"the denoiser's forward has been replaced by {_name(found)}")
        self._graphs = self._make(self._device)
        self.root.forward = self.run

    def remove(self) -> None:
        """Leaves a forward that another extension has since put over ours in its place; it then reaches the original through
        ours.
        """
        graphs = self._graphs
        if vars(self.root).get("forward") == self.run:
            del self.root.forward
        try:
            self.drop_graphs()
        finally:
            self._graphs = None
        if graphs is not None and self.captures:
            graphs.give_back()

    def drop_graphs(self) -> None:
        """Frees every graph: the weights or what is computed with them have changed."""
        if self._kept and self._graphs is not None:
            self._graphs.wait()
        self._forget_graphs()
        self._seen.clear()
        self._blocked.clear()

    def _forget_graphs(self) -> None:
        self._kept.clear()
        self._checked.clear()
        self._codes = {}
        self._weights = self._structure = None
        self.pool_bytes = 0

    def job_started(self) -> None:
        """From here on each graph is compared with eager once more before it is trusted."""
        self._checked.clear()
        self._captured_in_job, self._called_in_job, self._given_up = 0, False, None
        for key in [key for key, block in self._blocked.items() if not block.for_good]:
            del self._blocked[key]

    @property
    def reason(self) -> str | None:
        """Why the last call ran eagerly, None when it did not or only had to come first. Any thread."""
        found = vars(self.root).get("forward")
        if self._graphs is not None and found != self.run and not self._called_in_job:
            return f"the denoiser's forward has been replaced by {_name(found)}"
        return self._reason

    # ------------------------------------------------------------------------------------------------ one call

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the root's forward."""
        with self._lock:
            if self._graphs is None or self._inside:  # removed, but held by somebody; or the denoiser inside itself
                return self._original(*args, **kwargs)
            self._inside, self._trying, self._called_in_job = True, False, True
            try:
                return self._answer(self._graphs, (args, kwargs))
            finally:
                self._inside = False

    def _answer(self, graphs: Graphs, call: Call) -> Any:
        """When memory runs out, graphs give way, and the call is run once more."""
        try:
            return self._decide(graphs, call)
        except Exception as error:
            if not (self._kept or self._trying) or not is_out_of_memory(error):
                raise
        # here the frames are gone that held the memory of the first attempt
        log.warning("VRAM Pilot: memory ran out, the denoiser's graphs are given up")
        self.drop_graphs()
        graphs.give_back()
        self._given_up = "memory ran out"
        return self._eager(call, self._given_up)

    def _decide(self, graphs: Graphs, call: Call) -> Any:
        try:
            key = self._key(graphs, call)
        except NotCapturable as why:
            return self._eager(call, str(why))
        graphs.follow()
        kept = self._kept.get(key)
        if kept is not None and key in self._checked and self._weights is not None and self._weights.in_place():
            self._kept.move_to_end(key)
            return self._replay(graphs, key, call)
        if self._changed():
            self.drop_graphs()
        if key in self._blocked:
            return self._eager(call, self._blocked[key].reason)
        if key in self._kept:
            return self._compare(key, call)
        return self._first_calls(graphs, key, call)

    def _key(self, graphs: Graphs, call: Call) -> Hashable:
        """Everything that changes what the call computes, besides what `_changed` looks at. Raises NotCapturable."""
        if graphs.capturing():
            raise NotCapturable("the call is being captured by somebody else")
        inputs = signature(call, graphs.device_type)
        try:
            key = (inputs, self._state(), switches())
            hash(key)
        except NotCapturable:
            raise
        except Exception as error:  # a host that is not as we know it
            raise NotCapturable(f"the host's state cannot be read ({describe(error)})") from error
        return key

    def _replay(self, graphs: Graphs, key: Hashable, call: Call) -> Any:
        """Looks for changes while the device computes; behind one the result counts for nothing."""
        result = self._kept[key].replay(*call)
        if self._changed():
            self.drop_graphs()
            return self._first_calls(graphs, key, call)
        self._reason = None
        self.replays += 1
        return result

    def _changed(self) -> bool:
        """Whether the weights, or what Python does with them, are not as they were at the captures."""
        if self._weights is None or self._structure is None:
            return False
        try:
            return not (self._weights.same() and self._structure.same())
        except Exception:  # an attribute is gone, or has become something that cannot be compared
            return True

    def _eager(self, call: Call, reason: str | None = None) -> Any:
        """reason: why it is not replayed, None when it only has to come first."""
        self._reason = reason
        return self._bracketed(call)

    def _bracketed(self, call: Call) -> Any:
        whole = False
        try:
            self._surroundings.begin()
            result = self._original(*call[0], **call[1])
            whole = True
            return result
        finally:
            self._surroundings.end(whole=whole)

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the root's class, as it is now."""
        kind = type(self.root)
        forward: Any = kind.forward
        bound = forward.__get__(self.root, kind) if hasattr(forward, "__get__") else forward
        return bound(*args, **kwargs)

    # ------------------------------------------------------------------------------------------------ capturing

    def _first_calls(self, graphs: Graphs, key: Hashable, call: Call) -> Any:
        """The first equal call runs as ever, the next one is rehearsed, and captured for those to come."""
        count = self._seen.get(key, 0) + 1
        _remember(self._seen, key, count)
        not_yet = self._surroundings.capturable()
        if self._given_up is not None:
            not_yet = self._given_up
        elif self._captured_in_job >= MAX_GRAPHS:
            not_yet = "the calls of this job are all different"
        elif sys.getprofile() is not None:
            not_yet = "a Python profiler is running"
        if count < 2 or not_yet is not None:
            return self._eager(call, not_yet)
        self._reason, self._trying = None, True
        try:
            rehearsal = Rehearsal(graphs, self.root, call)
        except NotCapturable as why:
            self._block(key, str(why))
            return self._eager(call, str(why))
        result = rehearsal.run(self._bracketed)
        if rehearsal.changed_something() or self._surroundings.capturable() is not None:
            self._seen.pop(key, None)
            self._reason = "weights or attributes of the denoiser change from call to call"
            return result
        try:
            rehearsal.check(result)
            self._capture(graphs, key, rehearsal)
        except NotCapturable as why:
            self._block(key, str(why))
        except Exception as error:  # the gate for whatever a capture can raise; the call itself has been answered already
            # not the error itself: whoever keeps the log's records would keep the frames, and their device memory
            log.warning("VRAM Pilot: this call cannot be captured, it goes on eagerly: %s", describe(error))
            self._block(key, f"the capture failed ({describe(error)})")
        return result

    def _capture(self, graphs: Graphs, key: Hashable, rehearsal: Rehearsal) -> None:
        self._codes.update(rehearsal.trace.codes)
        structure = Structure(self.root, Trace(self._codes))
        self._captured_in_job += 1
        call = CapturedCall(graphs, self._original, rehearsal.inputs, self._surroundings)
        self._weights, self._structure = rehearsal.weights, structure
        self._kept[key] = call
        self.captures += 1
        self.pool_bytes += call.pool_bytes
        if self.pool_bytes > self._max_pool_bytes:
            self._shrink(graphs, key)
        elif len(self._kept) > MAX_GRAPHS:
            graphs.wait()
            self._kept.popitem(last=False)

    def _shrink(self, graphs: Graphs, key: Hashable) -> None:
        """One pool serves all graphs, so its memory comes back only when all are gone. Those that are still called return."""
        alone = len(self._kept) == 1
        graphs.wait()
        self._forget_graphs()
        graphs.give_back()
        if alone:
            self._block(key, "a graph would take more than its share of the device's memory", for_good=True)

    def _compare(self, key: Hashable, call: Call) -> Any:
        """The first replay in a job: beside it the same call runs eagerly, and eagerly it is answered."""
        expected = self._eager(call)
        if self._changed():  # by this very call
            self.drop_graphs()
            return expected
        try:
            difference = difference_of(expected, self._kept[key].replay(*call))
        except Exception as error:  # the call itself has been answered
            difference = f"a captured call could not be repeated ({describe(error)})"
        if difference is None:
            self._checked.add(key)
            return expected
        self.mismatches += 1
        log.warning("VRAM Pilot: %s; it goes on eagerly", difference)
        self._kept.pop(key, None)
        self._block(key, difference, for_good=True)
        return expected

    def _block(self, key: Hashable, reason: str, *, for_good: bool = False) -> None:
        self._reason = reason
        _remember(self._blocked, key, _Block(reason, for_good))


def _remember(known: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > MAX_KEYS:
        known.popitem(last=False)


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
