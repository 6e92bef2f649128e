"""Host copies are page-locked where that is possible and allowed, counted, and given up with their last user."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vram_pilot.streaming import pinned
from vram_pilot.streaming.pinned import PAGE, HostMemory

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


class Driver:
    """Stands in for the CUDA runtime. code: what it answers to a registration, or the exception that it raises."""

    def __init__(self, code: int | Exception = 0) -> None:
        self.code = code
        self.registered: dict[int, int] = {}
        self.current = torch.device("cuda", 0)
        self.contexts: set[torch.device] = set()  # cards that have been asked for anything

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:
        self.contexts.add(self.current)
        if isinstance(self.code, Exception):
            raise self.code
        assert address % PAGE == size % PAGE == 0, "whole pages only"
        assert not any(start < address + size and address < start + length for start, length in self.registered.items())
        if self.code == 0:
            self.registered[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.contexts.add(self.current)
        del self.registered[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", made.device)
    monkeypatch.setattr(pinned, "total_ram_bytes", lambda: 100 * PAGE)
    return made


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_a_buffer_for_the_cpu_is_counted_in_whole_pages_and_given_up(size: int) -> None:
    memory = HostMemory(0.5)
    buffer = memory.allocate(size, CPU)
    assert (buffer.flat.numel(), buffer.flat.dtype, buffer.pinned) == (size, torch.uint8, False)
    assert size <= memory.pageable_bytes < size + 2 * PAGE
    assert memory.pinned_bytes == 0
    buffer.flat.fill_(7)
    del buffer
    assert memory.pageable_bytes == 0


def test_for_cuda_it_is_registered_as_long_as_it_lives(driver: Driver) -> None:
    memory = HostMemory(0.5)
    buffers = [memory.allocate(size, CUDA) for size in (10, PAGE, 5 * PAGE + 1)]
    assert all(buffer.pinned for buffer in buffers)
    assert memory.pinned_bytes == sum(driver.registered.values()) == 8 * PAGE
    view = buffers[0].flat[:5]
    buffers.clear()
    assert driver.registered == {}
    assert driver.contexts == {CUDA}, "another card was made to hold a context"
    assert (memory.pinned_bytes, memory.pageable_bytes) == (0, 0)
    view.fill_(1)  # what somebody still looks at is ordinary memory now


def test_above_the_share_ordinary_memory_is_used_and_said(driver: Driver) -> None:
    memory = HostMemory(0.05)
    first, second = memory.allocate(4 * PAGE, CUDA), memory.allocate(2 * PAGE, CUDA)
    assert (first.pinned, second.pinned) == (True, False)
    assert (memory.pinned_bytes, memory.pageable_bytes) == (4 * PAGE, 2 * PAGE)
    assert "5%" in (memory.note or "")
    memory.set_share(0.5)
    assert memory.allocate(2 * PAGE, CUDA).pinned


@pytest.mark.parametrize("code", [2, RuntimeError("no CUDA"), AttributeError("cudaHostRegister")], ids=str)
def test_a_driver_that_refuses_costs_only_speed(driver: Driver, code: Any) -> None:
    driver.code = code
    memory = HostMemory(0.5)
    buffer = memory.allocate(PAGE, CUDA)
    assert not buffer.pinned
    assert (memory.pinned_bytes, memory.pageable_bytes) == (0, PAGE)
    assert "refuses to pin" in (memory.note or "")


def test_a_buffer_that_is_collected_while_its_thread_counts_is_no_deadlock() -> None:
    """The collector may run at any allocation, also inside the lock."""
    memory = HostMemory(0.5)

    def collected_inside() -> None:
        ring: list[Any] = [memory.allocate(PAGE, CPU)]
        ring.append(ring)
        with memory._lock:
            del ring
            gc.collect()

    thread = threading.Thread(target=collected_inside, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert memory.pageable_bytes == 0
