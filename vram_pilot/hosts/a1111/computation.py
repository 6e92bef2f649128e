"""What the WebUI's denoiser reads besides its inputs and weights, for the key of a captured call."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from modules import devices, sd_hijack, shared

from vram_pilot.graphs.signature import NotCapturable


def state(model: Any) -> Hashable:
    """Loaded networks with their multipliers, attention, tiling and precision. Raises NotCapturable for what works by Python's
    own state inside the forward: hypernetworks, token merging."""
    if getattr(shared, "loaded_hypernetworks", None):
        raise NotCapturable("a hypernetwork is loaded")
    if getattr(model, "applied_token_merged_ratio", 0):
        raise NotCapturable("token merging is on")
    hijack = sd_hijack.model_hijack
    return (
        _networks(),
        getattr(hijack, "optimization_method", None),
        getattr(hijack, "circular_enabled", False),
        devices.unet_needs_upcast,
        devices.dtype_unet,
        devices.dtype,
        getattr(devices, "fp8", False),
    )


def _networks() -> Hashable:
    """The built-in Lora extension's loaded networks; () where it is absent."""
    loaded = getattr(sys.modules.get("networks"), "loaded_networks", ())
    return tuple((net.name, net.te_multiplier, net.unet_multiplier, net.dyn_dim) for net in loaded)
