"""CUDA's side of a capture: the stream, the memory pool, and the order of streams."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from vram_pilot.graphs.capture import CAPTURE_LOCK, Graph
from vram_pilot.graphs.signature import tensors_of
from vram_pilot.side_streams import side_stream

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class CudaGraphs:
    """Captures on one CUDA device, on a stream of its own. The graphs share a memory pool, since they never run at once."""

    device_type = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = side_stream(device, "capture")
        self._pool: Any = None
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()  # the graphs that keep the pool
        self._last: torch.cuda.Stream | None = None  # the stream that the latest call was on
        self._broken: list[torch.cuda.CUDAGraph] = []  # the allocator may still ask them something
        self._speck = torch.zeros(1, device=device)

    def capturing(self) -> bool:
        with torch.cuda.device(self._device):
            return torch.cuda.is_current_stream_capturing()

    def follow(self) -> None:
        current = torch.cuda.current_stream(self._device)
        last, self._last = self._last, current
        if last is not None and last != current:  # torch answers False to `last != None`
            current.wait_stream(last)

    def aside(self, work: Callable[[], _Answer]) -> _Answer:
        current = torch.cuda.current_stream(self._device)
        with CAPTURE_LOCK:  # another thread could be capturing on the stream
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    answer = work()
            finally:
                current.wait_stream(self._stream)
        for tensor in tensors_of(answer):
            tensor.record_stream(current)
        return answer

    def record(self, work: Callable[[], Any]) -> tuple[Graph, Any, int]:
        self.wait()
        torch.cuda.empty_cache()  # what libraries and `aside` used on the stream that captures
        before = torch.cuda.memory_reserved(self._device)
        if self._pool is None or not self._living:  # a pool dies with its last graph, and no capture may begin in a dead one
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            graph = torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                answer = work()
            except BaseException:
                with contextlib.suppress(Exception):  # it is what ended the capture that is to be known
                    self._end(graph)
                raise
            self._end(graph)
        self._living.add(graph)
        return graph, answer, max(torch.cuda.memory_reserved(self._device) - before, 0)

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except BaseException:
            self._broken.append(graph)
            if _end_allocation(self._stream.device_index, self._pool):
                torch._C._cuda_releasePool(self._stream.device_index, self._pool)
            self._pool = None  # of which the allocators of device and host memory now think differently
            self._capture_nothing()
            raise

    def _capture_nothing(self) -> None:
        """A capture that CUDA broke off leaves torch's random generator in the belief that it goes on: then no random number
        can be drawn on the device any more. One that comes to its end sets that right."""
        try:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
            self._speck.zero_()
            graph.capture_end()
        except Exception:
            log.exception("VRAM Pilot: torch could not be tidied up after a capture that failed")

    def random_state(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), torch.cuda.get_rng_state(self._device)]

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)

    def give_back(self) -> None:
        torch.cuda.empty_cache()


def _end_allocation(device: int, pool: Any) -> bool:
    """A capture that CUDA broke off leaves torch's allocator in the belief that it goes on: then no cache can be emptied any
    more. False when the allocator knows already."""
    of: Any = torch._C
    end = getattr(of, "_cuda_endAllocateToPool", None) or of._cuda_endAllocateCurrentStreamToPool  # since 2.8, before
    with contextlib.suppress(RuntimeError):
        try:
            end(device, pool)
        except TypeError:  # older ones mean the current stream's pool
            end(device)
        return True
    return False
