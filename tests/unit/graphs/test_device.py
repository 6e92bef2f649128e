"""What CUDA's side does around a capture, held to a torch.cuda that only writes down what it is asked."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vram_pilot import side_streams
from vram_pilot.graphs.device import CudaGraphs

DEVICE = torch.device("cuda", 0)
#: The capture that lets torch's random generator know that the one before is over.
NOTHING = ["begin (0, 8) thread_local on side", "end"]


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.device_index = log, name, 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.name == self.name

    def __ne__(self, other: object) -> bool:
        """As torch 2.11 has it: nothing is unequal to None."""
        return other is not None and not self == other

    __hash__ = None  # type: ignore[assignment]

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """fails: what capture_end raises; refuses: what capture_begin raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.fails: Exception | None = None
        self.refuses: Exception | None = None
        self.reserved = itertools.count(1000, 300)
        self.pools = itertools.count(7)
        monkeypatch.setattr(side_streams, "_streams", {})
        monkeypatch.setattr(torch, "zeros", lambda *_args, **_kwargs: torch.ones(1))
        self.main, self.side = FakeStream(self.log, "main"), FakeStream(self.log, "side")
        self.current = self.main
        cuda, fake = torch.cuda, self

        class Graph:
            def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
                fake.log.append(f"begin {pool} {capture_error_mode} on {fake.current.name}")
                error, fake.refuses = fake.refuses, None
                if error is not None:
                    raise error

            def capture_end(self) -> None:
                fake.log.append("end")
                error, fake.fails = fake.fails, None
                if error is not None:
                    raise error

        class On:
            def __init__(self, stream: FakeStream) -> None:
                self.stream, self.before = stream, fake.current

            def __enter__(self) -> None:
                fake.current = self.stream

            def __exit__(self, *_: object) -> None:
                fake.current = self.before

        patches = {
            "Stream": lambda _device: self.side,
            "stream": On,
            "current_stream": lambda _device: self.current,
            "CUDAGraph": Graph,
            "graph_pool_handle": lambda: (0, next(self.pools)),
            "synchronize": lambda _device: self.log.append("synchronize"),
            "empty_cache": lambda: self.log.append("empty cache"),
            "memory_reserved": lambda _device: next(self.reserved),
        }
        for name, value in patches.items():
            monkeypatch.setattr(cuda, name, value)
        for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch._C, name, self._call(name), raising=False)

    def _call(self, name: str) -> Any:
        return lambda *args: self.log.append(f"{name.removeprefix('_cuda_')}{args}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    yield FakeCuda(monkeypatch)


def test_a_capture_begins_on_an_idle_device_with_an_empty_cache(cuda: FakeCuda) -> None:
    graph, answer, size = CudaGraphs(DEVICE).record(lambda: cuda.log.append("work") or "answer")
    assert cuda.log == ["synchronize", "empty cache", "begin (0, 7) thread_local on side", "work", "end"]
    assert (answer, size) == ("answer", 300)
    assert hasattr(graph, "capture_end")
    assert cuda.current is cuda.main


def test_a_capture_that_cuda_broke_off_is_ended_for_the_allocator_too(cuda: FakeCuda) -> None:
    cuda.fails = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    graphs = CudaGraphs(DEVICE)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graphs.record(lambda: None)
    assert cuda.log[3:] == ["end", "endAllocateToPool(0, (0, 7))", "releasePool(0, (0, 7))", *NOTHING]
    assert cuda.current is cuda.main
    assert len(graphs._broken) == 1  # the host allocator may still ask it


def test_graphs_share_a_pool_while_one_of_them_lives(cuda: FakeCuda) -> None:
    """A pool is gone with its last graph, and torch refuses a capture in it."""
    graphs = CudaGraphs(DEVICE)
    one, two = graphs.record(lambda: None)[0], graphs.record(lambda: None)[0]
    del one
    three = graphs.record(lambda: None)[0]
    del two, three
    gc.collect()
    four = graphs.record(lambda: None)[0]
    begun = [line.split(" thread")[0] for line in cuda.log if line.startswith("begin")]
    assert begun == ["begin (0, 7)"] * 3 + ["begin (0, 8)"]
    del four


def test_a_pool_in_which_a_capture_broke_off_serves_no_other(cuda: FakeCuda) -> None:
    graphs = CudaGraphs(DEVICE)
    kept = graphs.record(lambda: None)[0]
    cuda.fails = RuntimeError("capture invalidated")
    with pytest.raises(RuntimeError, match="capture invalidated"):
        graphs.record(lambda: None)
    graphs.record(lambda: None)
    assert cuda.log[-2] == "begin (0, 9) thread_local on side"
    del kept


def test_a_capture_that_does_not_begin_is_tidied_up(cuda: FakeCuda) -> None:
    cuda.refuses, cuda.fails = RuntimeError("another capture is under way"), RuntimeError("not capturing")
    with pytest.raises(RuntimeError, match="another capture is under way"):
        CudaGraphs(DEVICE).record(lambda: pytest.fail("nothing may be captured"))
    assert cuda.log[-4:] == ["endAllocateToPool(0, (0, 7))", "releasePool(0, (0, 7))", *NOTHING]


def test_all_modes_of_a_device_capture_on_one_stream(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps a workspace for each stream it has ever computed on."""
    made = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or cuda.side)
    for _ in range(3):
        CudaGraphs(DEVICE).record(lambda: None)
    assert made == [DEVICE]


def test_the_error_of_the_work_is_told_and_not_that_of_the_end(cuda: FakeCuda) -> None:
    cuda.fails = RuntimeError("capture invalidated")

    def work() -> None:
        raise ValueError("the true reason")

    with pytest.raises(ValueError, match="the true reason"):
        CudaGraphs(DEVICE).record(work)
    assert cuda.log[-4:] == ["endAllocateToPool(0, (0, 7))", "releasePool(0, (0, 7))", *NOTHING]


def test_an_error_of_the_work_alone_leaves_the_allocator_to_torch(cuda: FakeCuda) -> None:
    def work() -> None:
        raise ValueError("the true reason")

    with pytest.raises(ValueError, match="the true reason"):
        CudaGraphs(DEVICE).record(work)
    assert cuda.log[-1] == "end"


def test_what_torch_has_ended_is_not_released_twice(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: Any) -> None:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    cuda.fails = RuntimeError("out of memory")
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended)
    with pytest.raises(RuntimeError, match="out of memory"):
        CudaGraphs(DEVICE).record(lambda: None)
    assert "releasePool(0, (0, 7))" not in cuda.log


def test_torch_2_1_ends_the_current_stream_s(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_stream(device: int) -> None:
        cuda.log.append(f"ended on {cuda.current.name} of {device}")

    cuda.fails = RuntimeError("capture invalidated")
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    monkeypatch.setattr(torch._C, "_cuda_endAllocateCurrentStreamToPool", of_stream)
    with pytest.raises(RuntimeError, match="capture invalidated"):
        CudaGraphs(DEVICE).record(lambda: None)
    assert cuda.log[-4:] == ["ended on side of 0", "releasePool(0, (0, 7))", *NOTHING]


def test_work_aside_is_ordered_on_both_sides_also_behind_an_exception(cuda: FakeCuda) -> None:
    graphs = CudaGraphs(DEVICE)
    graphs.aside(lambda: cuda.log.append(f"work on {cuda.current.name}"))
    order = ["side waits for main", "work on side", "main waits for side"]
    assert cuda.log == order
    with pytest.raises(ZeroDivisionError):
        graphs.aside(lambda: 1 / 0)
    assert cuda.log == [*order, "side waits for main", "main waits for side"]


def test_calls_on_another_stream_wait_for_the_last_one(cuda: FakeCuda) -> None:
    graphs, other = CudaGraphs(DEVICE), FakeStream(cuda.log, "other")
    graphs.follow(), graphs.follow()
    assert cuda.log == []
    cuda.current = other
    graphs.follow(), graphs.follow()
    cuda.current = cuda.main
    graphs.follow()
    assert cuda.log == ["other waits for main", "main waits for other"]


def test_the_device_asked_for_a_capture_is_ours(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's current device may be another card, as under `--device-id`."""
    inside: list[torch.device] = []

    @contextlib.contextmanager
    def on(device: torch.device) -> Iterator[None]:
        inside.append(device)
        yield
        inside.clear()

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: inside == [DEVICE])
    assert CudaGraphs(DEVICE).capturing()
