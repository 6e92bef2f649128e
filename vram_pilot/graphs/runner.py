"""Decides for each call of the denoiser whether it runs eagerly, is captured, or is replayed.

A call is captured when an equal one has run before; the first replay in each job is compared with an eager run of the same
call. Whatever does not fit runs eagerly, and the reason is kept for the panel.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from vram_pilot.graphs.capture import CapturedCall, NoSurroundings, Surroundings
from vram_pilot.graphs.known import Structure, is_known, name_of
from vram_pilot.graphs.signature import NotCapturable, signature, tensors_of
from vram_pilot.graphs.weights import WeightState

log = logging.getLogger(__name__)

#: Graphs kept at once, and keys remembered that have not been captured.
MAX_GRAPHS, MAX_SEEN = 8, 64


class GraphRunner:
    """root: the denoiser. state: what the host's forward reads besides inputs and weights; raises NotCapturable for what
    cannot be captured. max_pool_bytes: device memory that graphs may keep together.

    `install` puts `run` in place of the root's forward, `remove` takes it away. On the sampling thread.
    """

    def __init__(
        self,
        root: nn.Module,
        device: torch.device,
        state: Callable[[], Hashable] = lambda: None,
        surroundings: Surroundings | None = None,
        max_pool_bytes: int = 2**40,
    ) -> None:
        self.root = root
        self.replays = self.captures = self.mismatches = 0
        self.reason: str | None = None  # why the last call ran eagerly, None when it did not or only had to come first
        self._device = device
        self._state = state
        self._surroundings: Surroundings = surroundings or NoSurroundings()
        self._max_pool_bytes = max_pool_bytes
        self._structure = Structure(root)
        self._weights: WeightState | None = None
        self._graphs: OrderedDict[Hashable, CapturedCall] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._blocked: dict[Hashable, str] = {}
        self._checked: set[Hashable] = set()  # keys whose replay has been compared in this job
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._forward: Callable[..., Any] | None = None

    # ------------------------------------------------------------------------------------------------ enter and leave

    def install(self) -> None:
        """Raises NotCapturable when another extension has put a forward of its own on the root."""
        if "forward" in vars(self.root):
            raise NotCapturable(f"the denoiser's forward has been replaced by {name_of(vars(self.root)['forward'])}")
        self._forward = self.root.forward
        self.root.forward = self.run
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()

    def remove(self) -> None:
        """Leaves a forward that another extension has since put over ours in its place; it then reaches the original through
        ours.
        """
        self.drop_graphs()
        if vars(self.root).get("forward") == self.run:
            del self.root.forward
        self._stream = self._pool = None

    def drop_graphs(self) -> None:
        """Frees every graph: the weights or what is computed with them have changed."""
        if self._graphs:
            torch.cuda.synchronize(self._device)
        self._graphs.clear()
        self._seen.clear()
        self._checked.clear()
        self._weights = None

    def job_started(self) -> None:
        """From here on each graph is compared with eager once more before it is trusted."""
        self._checked.clear()
        self._blocked.clear()

    @property
    def pool_bytes(self) -> int:
        return sum(graph.pool_bytes for graph in self._graphs.values())

    # ------------------------------------------------------------------------------------------------ one call

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the root's forward."""
        if self._stream is None:  # removed, but somebody still holds this method
            return self._original(*args, **kwargs)
        try:
            key = self._key(args, kwargs)
        except NotCapturable as reason:
            self.reason = str(reason)
            return self._eager(args, kwargs)
        if key in self._blocked:
            self.reason = self._blocked[key]
            return self._eager(args, kwargs)
        self.reason = None
        graph = self._graphs.get(key)
        if graph is None:
            return self._first_calls(key, args, kwargs)
        self._graphs.move_to_end(key)
        if key not in self._checked:
            return self._compare(key, graph, args, kwargs)
        self.replays += 1
        return graph.replay(args, kwargs)

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        assert self._forward is not None
        return self._forward(*args, **kwargs)

    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = False
        self._surroundings.begin()
        try:
            result = self._original(*args, **kwargs)
            whole = True
            return result
        finally:
            self._surroundings.end(whole=whole)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """Everything that changes what the call computes. Raises NotCapturable."""
        if torch.is_grad_enabled():
            raise NotCapturable("gradients are being recorded")
        if not is_known(self._forward):
            raise NotCapturable(f"{name_of(self._forward)} is not known to be repeatable")
        stranger = self._structure.stranger()
        if stranger is not None:
            raise NotCapturable(stranger)
        if self._weights is not None and not self._weights.same():
            self.drop_graphs()
        return (
            signature((args, kwargs)),
            self._state(),
            torch.is_autocast_enabled(),
            torch.get_autocast_gpu_dtype(),
            torch.is_inference_mode_enabled(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            self._structure.patched(),
        )

    def _first_calls(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first equal call runs as ever. The next runs on the capture's stream, so that libraries set up what they need
        there, and is captured for those to come."""
        count = self._seen.pop(key, 0) + 1
        self._seen[key] = count
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        not_yet = self._surroundings.capturable()
        if count < 2 or not_yet is not None:
            self.reason = not_yet
            return self._eager(args, kwargs)
        assert self._stream is not None
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._eager(args, kwargs)
        current.wait_stream(self._stream)
        for tensor in tensors_of(result):
            tensor.record_stream(current)
        self._capture(key, args, kwargs)
        return result

    def _capture(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self._stream is not None
        if self._weights is None:
            self._weights = WeightState(self.root)
        elif not self._weights.same():  # the eager call just now has changed them (a LoRA is patched in the forward)
            self.drop_graphs()
            return
        try:
            graph = CapturedCall(self._original, args, kwargs, self._surroundings, self._pool, self._stream)
        except Exception as error:  # the gate for whatever a capture can raise; the call itself has been answered already
            log.warning("VRAM Pilot: this call cannot be captured, it goes on eagerly: %s", error)
            self._blocked[key] = (
                f"the capture failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
            )
            torch.cuda.synchronize(self._device)
            return
        self.captures += 1
        self._graphs[key] = graph
        while len(self._graphs) > 1 and (len(self._graphs) > MAX_GRAPHS or self.pool_bytes > self._max_pool_bytes):
            torch.cuda.synchronize(self._device)
            self._graphs.popitem(last=False)

    def _compare(self, key: Hashable, graph: CapturedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first replay in a job: beside it the same call runs eagerly, and eagerly it is answered."""
        expected = self._eager(args, kwargs)
        found = graph.replay(args, kwargs)
        if all(torch.equal(one, other) for one, other in zip(tensors_of(expected), tensors_of(found), strict=True)):
            self._checked.add(key)
            return expected
        self.mismatches += 1
        error = max(_relative_error(one, other) for one, other in zip(tensors_of(expected), tensors_of(found)))
        self._blocked[key] = f"the captured call gave another result (largest relative error {error:.1e})"
        log.warning("VRAM Pilot: %s; it goes on eagerly", self._blocked[key])
        self._graphs.pop(key, None)
        return expected


def _relative_error(expected: torch.Tensor, found: torch.Tensor) -> float:
    scale = expected.float().abs().max().item() or 1.0
    return float((expected.float() - found.float()).abs().max().item() / scale)
