"""The architectures that are made on the spot, as constructor arguments of diffusers and transformers classes. Pure data.

`sd15` and `sdxl` have the true shapes. `tiny` has SD1.5's block structure with small widths: seconds on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Of the CLIP vocabulary: number of tokens, start of text, end of text.
VOCABULARY = 49408
START_TOKEN = 49406
END_TOKEN = 49407
#: Tokens of a prompt, the two marks included.
CONTEXT = 77


@dataclass(frozen=True)
class TextEncoder:
    """config: for transformers.CLIPTextConfig. projected: it also gives a pooled, projected vector. pad_token: fills up a
    short prompt."""

    config: Mapping[str, Any]
    projected: bool = False
    pad_token: int = END_TOKEN


@dataclass(frozen=True)
class Architecture:
    """family: "sd1", "sd2" or "sdxl". unet, vae: for UNet2DConditionModel and AutoencoderKL. prediction: "epsilon" or
    "v_prediction". zero_snr: the noise schedule ends without any signal."""

    family: str
    text_encoders: tuple[TextEncoder, ...]
    unet: Mapping[str, Any]
    vae: Mapping[str, Any]
    prediction: str = "epsilon"
    zero_snr: bool = False


def clip(width: int, layers: int, heads: int, activation: str, **more: Any) -> dict[str, Any]:
    """A CLIP text model. width: of its states; the feed-forward is four times as wide."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": width * 4,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": activation,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": START_TOKEN,
        "eos_token_id": END_TOKEN,
        "pad_token_id": 1,
        **more,
    }


def autoencoder(widths: tuple[int, ...], scaling_factor: float) -> dict[str, Any]:
    """A VAE with one level per width; each level but the last halves the size."""
    return {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 4,
        "block_out_channels": widths,
        "layers_per_block": 2,
        "down_block_types": ("DownEncoderBlock2D",) * len(widths),
        "up_block_types": ("UpDecoderBlock2D",) * len(widths),
        "scaling_factor": scaling_factor,
    }


def unet(
    widths: tuple[int, ...], depths: tuple[int, ...], context: int, heads: int | tuple[int, ...], **more: Any
) -> dict[str, Any]:
    """A UNet with one level per width. depths: transformer blocks per attention of each level, 0 for a level without attention.
    context: width of the text states. heads: attention heads per level."""
    down = tuple("CrossAttnDownBlock2D" if depth else "DownBlock2D" for depth in depths)
    up = tuple("CrossAttnUpBlock2D" if depth else "UpBlock2D" for depth in reversed(depths))
    return {
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": widths,
        "layers_per_block": 2,
        "down_block_types": down,
        "up_block_types": up,
        "transformer_layers_per_block": tuple(max(depth, 1) for depth in depths),
        "cross_attention_dim": context,
        "attention_head_dim": heads,
        **more,
    }


TINY = Architecture(
    family="sd1",
    text_encoders=(TextEncoder(clip(64, 2, 2, "quick_gelu")),),
    unet=unet((32, 64, 96, 96), (1, 1, 1, 0), 64, 4),
    vae=autoencoder((32, 32, 64, 64), 0.18215),
)
SD15 = Architecture(
    family="sd1",
    text_encoders=(TextEncoder(clip(768, 12, 12, "quick_gelu")),),
    unet=unet((320, 640, 1280, 1280), (1, 1, 1, 0), 768, 8),
    vae=autoencoder((128, 256, 512, 512), 0.18215),
)
SDXL = Architecture(
    family="sdxl",
    text_encoders=(
        TextEncoder(clip(768, 12, 12, "quick_gelu")),
        TextEncoder(clip(1280, 32, 20, "gelu", projection_dim=1280), projected=True, pad_token=0),
    ),
    unet=unet(
        (320, 640, 1280),
        (0, 2, 10),
        2048,
        (5, 10, 20),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    ),
    vae=autoencoder((128, 256, 512, 512), 0.13025),
)
#: What `--model` takes beside a path.
BUILT_IN: Mapping[str, Architecture] = {"tiny": TINY, "sd15": SD15, "sdxl": SDXL}
