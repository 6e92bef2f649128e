"""Host memory for weights: page-locked where that is possible and within the allowed share of RAM, ordinary memory otherwise.

torch's own pinned allocator rounds each block up to a power of two, which would waste up to half of the RAM that weights
take, so exact buffers are registered with the driver instead (cudaHostRegister). torch takes a tensor for pinned only when
its storage begins in registered memory, and a page can be registered only once: each buffer is a mapping of its own.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import sys
import threading
import weakref

import torch

from vram_pilot.machine import total_ram_bytes

log = logging.getLogger(__name__)

PAGE = 4096


def _pages(size_bytes: int) -> mmap.mmap:
    """Zeroed memory that begins at a page of its own."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to fault in and to lock
    return pages


class HostBuffer:
    """flat: uint8 on the CPU, shape (size,); pinned: page-locked. Whoever drops it has drained every copy from and to it."""

    def __init__(self, flat: torch.Tensor, *, pinned: bool) -> None:
        self.flat = flat
        self.pinned = pinned


class HostMemory:
    """Hands out host buffers and counts them. share: the part of the RAM that may be page-locked, 0 to 1. Any thread."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.pinned_bytes = 0
        self.pageable_bytes = 0
        self.note: str | None = None
        self._lock = threading.RLock()  # a buffer may be collected, and counted off, while its own thread holds the lock
        self._total = total_ram_bytes()

    def set_share(self, share: float) -> None:
        """Holds for what is allocated from now on."""
        self.share = share

    def allocate(self, size_bytes: int, device: torch.device) -> HostBuffer:
        """A buffer of `size_bytes`, page-locked for `device` when that is a CUDA device and the share allows it."""
        room = (max(size_bytes, 1) + PAGE - 1) // PAGE * PAGE
        whole = torch.frombuffer(_pages(room), dtype=torch.uint8)
        pinned = device.type == "cuda" and self._reserve(room) and self._register(whole.data_ptr(), room, device)
        buffer = HostBuffer(whole[:size_bytes], pinned=pinned)
        if pinned:
            weakref.finalize(buffer, self._unregister, whole.data_ptr(), room, device, whole)
        else:
            self._count(0, room)
            weakref.finalize(buffer, self._count, 0, -room)
        return buffer

    def _reserve(self, room: int) -> bool:
        with self._lock:
            if self._total is not None and self.pinned_bytes + room > self._total * self.share:
                self.note = (
                    f"Pinned memory has reached its share of the RAM ({self.share:.0%}): further weights are kept in ordinary "
                    "memory, which copies several times slower."
                )
                return False
            self.pinned_bytes += room
            return True

    def _register(self, address: int, room: int, device: torch.device) -> bool:
        try:
            with torch.cuda.device(device):  # the driver would make a context on whichever card is current
                code = int(torch.cuda.cudart().cudaHostRegister(address, room, 0))
            reason = f"CUDA error {code}"
        except (RuntimeError, AttributeError, TypeError) as error:
            code, reason = -1, str(error)
        if code != 0:
            self._count(-room, 0)
            self.note = (
                f"The system refuses to pin memory ({reason}): weights are kept in ordinary memory, which copies slower."
            )
            return False
        return True

    def _unregister(self, address: int, room: int, device: torch.device, whole: torch.Tensor) -> None:
        """`whole` is a parameter so that the memory outlives its registration."""
        self._count(-room, 0)
        try:
            with torch.cuda.device(device):
                torch.cuda.cudart().cudaHostUnregister(address)
        except (RuntimeError, AttributeError, TypeError):
            log.debug("VRAM Pilot: a pinned buffer could not be released", exc_info=True)

    def _count(self, pinned_bytes: int, pageable_bytes: int) -> None:
        with self._lock:
            self.pinned_bytes += pinned_bytes
            self.pageable_bytes += pageable_bytes
