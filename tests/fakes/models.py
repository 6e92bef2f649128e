"""Small models with the real module trees: ldm's own UNet with a text encoder and VAE in its manner, and diffusers' classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from vram_pilot.hosts.base import Component


@dataclass(frozen=True)
class Family:
    """How a host calls its model. make: components from a seed. encode: ids (1, 8) to states; denoise: latent (1, 4, 8, 8),
    time (1,) and states to noise; decode: latent to an image."""

    name: str
    make: Callable[[int], tuple[Component, ...]]
    encode: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    denoise: Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    decode: Callable[[nn.Module, torch.Tensor], torch.Tensor]


# ---------------------------------------------------------------------------------------------------------------- ldm


def ldm_unet(seed: int = 0) -> nn.Module:
    """ldm's UNetModel with small widths: 2 levels, attention in both, float32, about 1 M parameters."""
    from ldm.modules.diffusionmodules.openaimodel import UNetModel

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        unet = UNetModel(
            image_size=8,
            in_channels=4,
            out_channels=4,
            model_channels=32,
            attention_resolutions=[1, 2],
            num_res_blocks=1,
            channel_mult=[1, 2],
            num_heads=4,
            use_spatial_transformer=True,
            transformer_depth=1,
            context_dim=32,
            use_checkpoint=False,
            legacy=False,
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


LDM = Family(
    "ldm",
    ldm_components,
    lambda encoder, ids: encoder(ids),
    lambda denoiser, latent, time, states: denoiser(latent, time, states),
    lambda vae, latent: vae.decode(latent),
)

# ---------------------------------------------------------------------------------------------------------------- diffusers


def diffusers_components(seed: int = 0) -> tuple[Component, ...]:
    """The classes of a Stable Diffusion pipeline with small widths, random weights."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "projection_dim": 32}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = CLIPTextModel(CLIPTextConfig(vocab_size=64, num_hidden_layers=2, num_attention_heads=4, **sizes))
        denoiser = UNet2DConditionModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            block_out_channels=(32, 64),
            layers_per_block=1,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=32,
            attention_head_dim=8,
            norm_num_groups=8,
        )
        vae = AutoencoderKL(
            block_out_channels=(16, 16),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=8,
        )
    return (
        Component("text_encoder", "text_encoder", encoder.eval()),
        Component("denoiser", "denoiser", denoiser.eval()),
        Component("vae", "vae", vae.eval()),
    )


DIFFUSERS = Family(
    "diffusers",
    diffusers_components,
    lambda encoder, ids: encoder(ids)[0],
    lambda denoiser, latent, time, states: denoiser(latent, time, encoder_hidden_states=states, return_dict=False)[0],
    lambda vae, latent: vae.decode(latent, return_dict=False)[0],
)
