"""What the WebUI's denoiser reads besides its inputs and weights, for the key of a captured call."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from modules import devices, sd_hijack, sd_unet, shared

from vram_pilot.graphs.signature import NotCapturable

_DEVICES = ("unet_needs_upcast", "dtype_unet", "dtype", "dtype_inference", "force_fp16", "fp8")
_OPTIONS = ("upcast_attn", "lora_functional")
_FLAGS = (
    *("xformers_flash_attention", "sub_quad_q_chunk_size", "sub_quad_kv_chunk_size", "sub_quad_chunk_threshold"),
    "disable_opt_split_attention",
)


def state(model: Any) -> Hashable:
    """Loaded networks with their multipliers, attention, tiling and precision. Raises NotCapturable for what works by Python's
    own state inside the forward."""
    networks = _networks()
    if getattr(shared, "loaded_hypernetworks", None):
        raise NotCapturable("a hypernetwork is loaded")
    if getattr(model, "applied_token_merged_ratio", 0):
        raise NotCapturable("token merging is on")
    if sd_unet.current_unet is not None:
        raise NotCapturable("another SD Unet is chosen")
    if networks and getattr(shared.opts, "lora_functional", False):
        raise NotCapturable("networks are computed beside the weights (setting lora_functional)")
    hijack = sd_hijack.model_hijack
    return (
        networks,
        getattr(hijack, "optimization_method", None),
        getattr(hijack, "circular_enabled", False),
        *[getattr(devices, name, None) for name in _DEVICES],
        *[getattr(shared.opts, name, None) for name in _OPTIONS],
        *[getattr(shared.cmd_opts, name, None) for name in _FLAGS],
    )


def _networks() -> tuple[Hashable, ...]:
    """The built-in Lora extension's loaded networks; () where it is absent."""
    loaded = getattr(sys.modules.get("networks"), "loaded_networks", ())
    return tuple((net.name, net.te_multiplier, net.unet_multiplier, net.dyn_dim) for net in loaded)
