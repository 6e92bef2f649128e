"""Work of other threads on the device that must not fall into a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modules import devices, shared_state

from vram_pilot.graphs.capture import CAPTURE_LOCK
from vram_pilot.hosts.a1111.patches import Patches


def wait_for_captures(patches: Patches) -> None:
    """Emptying the cache, and decoding live previews in the thread that asks for them, wait until a capture is done."""
    patches.wrap(devices, "torch_gc", _waiting)
    patches.wrap(shared_state.State, "do_set_current_image", _waiting)


def _waiting(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with CAPTURE_LOCK:
        return original(*args, **kwargs)
