"""An eager call that is looked at before its like is captured: what it runs, and whether it leaves things as it found them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vram_pilot.graphs.capture import Graphs
from vram_pilot.graphs.inputs import StaticInputs
from vram_pilot.graphs.signature import NotCapturable, signature, tensors_of
from vram_pilot.graphs.structure import Structure
from vram_pilot.graphs.trace import Trace
from vram_pilot.graphs.weights import WeightState

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Rehearsal:
    """inputs: the call's, in memory that a graph may read. weights: as they are. trace: what has run.

    Raises NotCapturable, before anything has run, when inputs, weights or attributes are of a kind that cannot be followed.
    """

    def __init__(self, graphs: Graphs, root: nn.Module, call: Call) -> None:
        self.inputs = StaticInputs(call)
        self.weights = WeightState(root)
        self.trace = Trace()
        self._graphs = graphs
        self._call = call
        self._attributes = Structure(root)
        self._random = graphs.random_state()

    def run(self, eagerly: Callable[[Call], Any]) -> Any:
        """The call's result. On the stream that captures, so that libraries set up what they need there."""

        def traced() -> Any:
            with self.trace:
                return eagerly(self._call)

        return self._graphs.aside(traced)

    def changed_something(self) -> bool:
        """Whether the call itself changed weights, hooks or attributes: a LoRA is written by the first call that needs it."""
        try:
            return not (self.weights.same() and self._attributes.same())
        except Exception:  # an attribute is gone, or has become something that cannot be compared
            return True

    def check(self, result: Any) -> None:
        """Raises NotCapturable when a graph would not do all that the call has done."""
        stranger = self.trace.stranger()
        if stranger is not None:
            raise NotCapturable(f"{stranger} is not known to be repeatable")
        signature(result, self._graphs.device_type, "an output")
        if next(tensors_of(result), None) is None:
            raise NotCapturable("the denoiser answers no tensor")
        if not self.inputs.holds(self._call):
            raise NotCapturable("the denoiser writes to its inputs")
        if not all(map(torch.equal, self._random, self._graphs.random_state())):
            raise NotCapturable("the denoiser draws random numbers")
