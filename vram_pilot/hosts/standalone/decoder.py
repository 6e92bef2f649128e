"""Latents to images, one image at a time, with a second try in fp32 where half precision overflows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from diffusers import AutoencoderKL
from PIL import Image

from vram_pilot.errors import VramPilotError


def decode(vae: AutoencoderKL, latents: torch.Tensor, note: Callable[[str], None]) -> list[Image.Image]:
    """latents: (batch, 4, h, w) in fp32. note: told once when half precision did not do.

    Raises VramPilotError when the VAE gives NaN in fp32 too.
    """
    scaled = latents / vae.config.scaling_factor
    images: list[Image.Image] = []
    exact: AutoencoderKL | None = None
    for one in scaled.split(1):
        pixels = None if exact is not None else _pixels(vae, one)
        if pixels is None and exact is None:
            exact = _in_full_precision(vae, latents.device)
            note("The VAE gave NaN in half precision: decoded again in fp32. A VAE that is made for fp16 avoids this.")
        if pixels is None and exact is not None:
            pixels = _pixels(exact, one)
        if pixels is None:
            raise VramPilotError("The VAE gave numbers that are no image", found="NaN", do="Use another checkpoint or VAE.")
        images.append(Image.fromarray(pixels.numpy()))
    return images


def _pixels(vae: AutoencoderKL, latent: torch.Tensor) -> torch.Tensor | None:
    """(height, width, 3) in uint8 on the CPU, None for NaN. Waits for the device."""
    found: torch.Tensor = vae.decode(latent.to(vae.dtype), return_dict=False)[0][0]
    if not bool(torch.isfinite(found).all()):
        return None
    levels = (found.float() / 2 + 0.5).clamp(0, 1) * 255
    return levels.round().to(torch.uint8).permute(1, 2, 0).cpu()


def _in_full_precision(vae: AutoencoderKL, device: torch.device) -> AutoencoderKL:
    """A second VAE with the same weights in fp32; the first one, which a mode may be looking after, stays as it is.

    Raises VramPilotError when the first one is in fp32 already.
    """
    if vae.dtype == torch.float32:
        raise VramPilotError("The VAE gave numbers that are no image", found="NaN", do="Use another checkpoint or VAE.")
    with torch.device("meta"):
        twin = AutoencoderKL(**{key: value for key, value in vae.config.items() if not key.startswith("_")})
    state = {name: tensor.to(device, torch.float32) for name, tensor in vae.state_dict().items()}
    twin.load_state_dict(state, assign=True)
    return twin.eval().requires_grad_(False)
