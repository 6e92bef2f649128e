"""Recognises that memory ran out, in every form in which torch and its libraries say so. Standard library only."""

from __future__ import annotations

_CLASSES = ("OutOfMemoryError", "MemoryError")
_TEXTS = (
    "out of memory",  # CUDA, HIP, MPS and XPU, raised as a plain RuntimeError by many builds
    "cudaerrormemoryallocation",
    "hiperroroutofmemory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "device_allocation_failed",  # cuDNN 9
    "hipblas_status_alloc_failed",
    "miopenstatusallocfailed",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "not enough gpu video memory",
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error`, or an error that it was raised from, means that device or host memory ran out."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if any(kind.__name__ in _CLASSES for kind in type(error).__mro__):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe(error: BaseException) -> str:
    """The error in one line of at most 300 characters: its class and the first line of its text."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
