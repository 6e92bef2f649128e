"""Small diffusers pipelines with random weights."""

from __future__ import annotations

from typing import Any

import diffusers
import torch

from vram_pilot.hosts.standalone.architectures import TINY, Architecture, TextEncoder, autoencoder, clip, unet
from vram_pilot.hosts.standalone.models import Model, random_model
from vram_pilot.hosts.standalone.tokens import ClipTokenizer, clip_tokenizer

TINY_XL = Architecture(
    family="sdxl",
    text_encoders=(
        TextEncoder(clip(64, 2, 2, "quick_gelu")),
        TextEncoder(clip(32, 2, 2, "gelu", projection_dim=32), projected=True, pad_token=0),
    ),
    unet=unet(
        (32, 64, 64),
        (0, 1, 2),
        96,
        (2, 4, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=32 + 6 * 8,
    ),
    vae=autoencoder((32, 32, 64, 64), 0.13025),
)


def sd_pipeline(kind: str = "StableDiffusionPipeline", dtype: torch.dtype = torch.float32, scheduler: Any = None) -> Any:
    """kind: the name of one of diffusers' SD1 pipelines."""
    model = _model("tiny", TINY, dtype)
    return _finish(
        getattr(diffusers, kind)(
            vae=model.vae,
            text_encoder=model.text_encoders[0],
            tokenizer=_tokenizer(),
            unet=model.unet,
            scheduler=scheduler or _scheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def xl_pipeline(kind: str = "StableDiffusionXLPipeline", dtype: torch.dtype = torch.float32) -> Any:
    model = _model("tiny-xl", TINY_XL, dtype)
    return _finish(
        getattr(diffusers, kind)(
            vae=model.vae,
            text_encoder=model.text_encoders[0],
            text_encoder_2=model.text_encoders[1],
            tokenizer=_tokenizer(),
            tokenizer_2=_tokenizer(),
            unet=model.unet,
            scheduler=_scheduler(),
            add_watermarker=False,
        )
    )


def _model(name: str, architecture: Architecture, dtype: torch.dtype) -> Model:
    model = random_model(name, architecture, dtype)
    model.unet.register_to_config(sample_size=8)  # pipelines compute with it
    return model


def _scheduler() -> Any:
    return diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)


def _tokenizer() -> Any:
    ours = clip_tokenizer()
    assert isinstance(ours, ClipTokenizer)
    ours._clip.model_max_length = 77
    return ours._clip


def _finish(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe
