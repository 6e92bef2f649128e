"""Small models with the real module trees: ldm's own UNet, and a text encoder and VAE in its manner."""

from __future__ import annotations

import torch
from torch import nn

from vram_pilot.hosts.base import Component


def ldm_unet(seed: int = 0) -> nn.Module:
    """ldm's UNetModel with small widths: 2 levels, attention in both, float32, about 2 M parameters."""
    from ldm.modules.diffusionmodules.openaimodel import UNetModel

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        unet = UNetModel(
            image_size=8, in_channels=4, out_channels=4, model_channels=32, attention_resolutions=[1, 2], num_res_blocks=1,
            channel_mult=[1, 2], num_heads=4, use_spatial_transformer=True, transformer_depth=1, context_dim=32,
            use_checkpoint=False, legacy=False,
        )
        for parameter in unet.parameters():  # ldm starts its last layers at zero, which would hide every fault
            nn.init.normal_(parameter, 0.0, 0.05)
    return unet.eval()


class TextEncoder(nn.Module):
    """Token ids (batch, 8) to states (batch, 8, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(64, 32)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.norm = nn.LayerNorm(32)
        self.register_buffer("position_ids", torch.arange(8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(self.token_embedding(ids)))


class Vae(nn.Module):
    """As ldm's AutoencoderKL is used: by `encode` and `decode`, never by `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))
        self.decoder = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))
        self.quant_conv = nn.Conv2d(4, 4, 1)
        self.post_quant_conv = nn.Conv2d(4, 4, 1)

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        return self.quant_conv(self.encoder(image))

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant_conv(latent))


def ldm_components(seed: int = 0) -> tuple[Component, ...]:
    with torch.random.fork_rng():
        torch.manual_seed(seed + 1)
        encoder, vae = TextEncoder().eval(), Vae().eval()
    return (
        Component("text_encoder", "text_encoder", encoder),
        Component("denoiser", "denoiser", ldm_unet(seed)),
        Component("vae", "vae", vae),
    )
