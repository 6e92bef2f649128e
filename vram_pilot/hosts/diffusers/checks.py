"""Which pipelines cannot be attached, and why. Changes nothing."""

from __future__ import annotations

from typing import Any

from torch import nn

from vram_pilot.errors import RefusedError, UsageError
from vram_pilot.hosts.diffusers.intercept import is_intercepted


def check_kind(pipe: Any) -> None:
    """Raises UsageError unless `pipe` is a pipeline of the Stable Diffusion kind: a UNet, a VAE and a scheduler."""
    unet, vae = getattr(pipe, "unet", None), getattr(pipe, "vae", None)
    if not isinstance(unet, nn.Module) or not isinstance(vae, nn.Module) or getattr(pipe, "scheduler", None) is None:
        raise UsageError(
            "This is no pipeline with a UNet, a VAE and a scheduler",
            found=type(pipe).__name__,
            do="Use an SD1, SD2 or SDXL pipeline.",
        )


def check_free(pipe: Any) -> None:
    """Raises RefusedError when something else moves or replaces the pipeline's weights."""
    parts = models(pipe)
    if any(is_intercepted(part) for part in [pipe, pipe.scheduler, *parts.values()]):
        raise RefusedError("This pipeline, or one that shares its models, is attached already", do="Detach that one first.")
    reason = obstacle(pipe)
    if reason is not None:
        raise RefusedError(f"The pipeline cannot be attached: {reason[0]}", do=reason[1])


def obstacle(pipe: Any) -> tuple[str, str] | None:
    """(what stands in the way, what to do), None when nothing does."""
    if getattr(pipe, "hf_device_map", None) is not None:
        return "its models are spread by a device_map", "Call pipe.reset_device_map() first."
    for name, model in models(pipe).items():
        if type(model).__name__ == "OptimizedModule" or getattr(model, "_compiled_call_impl", None) is not None:
            return f"{name} is compiled", "Attach a pipeline that is not compiled."
        for module in model.modules():
            if hasattr(module, "_hf_hook"):
                return f"accelerate offloads {name}", "Call pipe.remove_all_hooks() first, and move the pipeline to its device."
            hooks = getattr(getattr(module, "_diffusers_hook", None), "hooks", {})
            if any("offload" in key or "casting" in key for key in hooks):
                return (
                    f"diffusers' own hooks move or cast {name}",
                    "Load the pipeline again without them; they have no way back.",
                )
    return None


def models(pipe: Any) -> dict[str, nn.Module]:
    """The pipeline's models by its own names, each once."""
    found: dict[str, nn.Module] = {}
    for name, part in pipe.components.items():
        if isinstance(part, nn.Module) and not any(part is other for other in found.values()):
            found[name] = part
    return found
