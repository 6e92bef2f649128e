"""Which parts the WebUI's model has."""

from __future__ import annotations

from typing import Any

from vram_pilot.hosts.base import Component, ModelInfo

#: Attributes of a model beside the three main parts, in SD2's depth and unCLIP variants.
OTHERS = ("depth_model", "embedder")


def components(model: Any) -> tuple[Component, ...]:
    """The parts of an SD1, SD2, SDXL or SD3 model, in the order in which a job needs them."""
    encoder = getattr(model, "conditioner", None)
    encoder = encoder if encoder is not None else getattr(model, "cond_stage_model", None)
    found = []
    if encoder is not None:
        found.append(Component("text_encoder", "text_encoder", encoder))
    found.append(Component("denoiser", "denoiser", model.model.diffusion_model))
    found.append(Component("vae", "vae", model.first_stage_model))
    for name in OTHERS:
        module = getattr(model, name, None)
        if module is not None:
            found.append(Component(f"other:{name}", "other", module))
    return tuple(found)


def describe(model: Any) -> ModelInfo:
    """Family, name without folders, and the WebUI's short hash."""
    family = next((name for name in ("sd3", "ssd", "sdxl", "sd2", "sd1") if getattr(model, f"is_{name}", False)), "unknown")
    checkpoint = getattr(model, "sd_checkpoint_info", None)
    name = getattr(checkpoint, "model_name", None) or "unknown"
    return ModelInfo(family, str(name).replace("\\", "/").rsplit("/", 1)[-1], getattr(model, "sd_model_hash", None))
