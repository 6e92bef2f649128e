"""Every form in which torch and its libraries say that memory ran out, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vram_pilot.oom import describe, is_out_of_memory


class NumpysMemoryError(MemoryError):
    """numpy raises a subclass of its own."""


class HostsOutOfMemory(torch.cuda.OutOfMemoryError):
    """And a host may, too."""


TEXTS = [
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.79 GiB of which 3.94 MiB is free.",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "CUDA runtime error: cudaErrorMemoryAllocation",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "HIP out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.98 GiB total capacity)",
    "HIP error: out of memory",
    "hipErrorOutOfMemory",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "miopenStatusAllocFailed",
    "MPS backend out of memory (MPS allocated: 17.54 GB, other allocations: 384.00 KB, max allowed: 18.13 GB).",
    "XPU out of memory. Tried to allocate 1.00 GiB",
    "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.",
    "DefaultCPUAllocator: not enough memory: you tried to allocate 67108864 bytes.",
    "Could not allocate tensor with 134217728 bytes. There is not enough GPU video memory available!",
]


@pytest.mark.parametrize("text", TEXTS)
def test_case_a7_texts_of_plain_runtime_errors(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert is_out_of_memory(RuntimeError(f"while sampling: {text}"))


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        torch.cuda.OutOfMemoryError(""),
        MemoryError(),
        NumpysMemoryError("Unable to allocate 1. TiB"),
        HostsOutOfMemory("too large"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_case_a7_classes(error: BaseException) -> None:
    assert is_out_of_memory(error)


def raised(work: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as info:
        work()
    return info.value


def test_case_a7_an_error_raised_from_one() -> None:
    def wraps() -> None:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        except RuntimeError as error:
            raise ValueError("the sampler failed") from error

    assert is_out_of_memory(raised(wraps))


def test_case_a2_a_monitor_that_fails_meanwhile_does_not_hide_it() -> None:
    """The host's own monitor asks for the free memory while the error is handled, and fails itself."""

    def hides() -> None:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        except RuntimeError:
            raise RuntimeError("cudaMemGetInfo failed")  # noqa: B904 -- as it happens by itself

    assert is_out_of_memory(raised(hides))


@pytest.mark.parametrize(
    "error",
    [
        None,
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("Expected all tensors to be on the same device"),
        ValueError("out of memory"),  # of somebody's own, not an allocator's
        KeyError("out of memory"),
        KeyboardInterrupt(),
        OSError(28, "No space left on device"),
    ],
    ids=str,
)
def test_what_is_something_else(error: BaseException | None) -> None:
    assert not is_out_of_memory(error)


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert not is_out_of_memory(one)


def test_the_description_is_one_line() -> None:
    assert (
        describe(RuntimeError("CUDA error: out of memory\nCUDA kernel errors\nmore"))
        == "RuntimeError: CUDA error: out of memory"
    )
    assert describe(MemoryError()) == "MemoryError"
    assert describe(RuntimeError("\n\n  ")) == "RuntimeError"
    long = describe(RuntimeError("x" * 5000))
    assert len(long) == 300
    assert long.endswith("...")
