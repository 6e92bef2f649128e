"""What a checkpoint in the original (ldm, sgm) key layout is, told from the names and shapes of its tensors. Pure.

Nothing is assumed about widths: the architecture follows from the shapes, so that no configuration has to be fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vram_pilot.errors import UsageError
from vram_pilot.hosts.standalone.architectures import VOCABULARY, Architecture, TextEncoder, autoencoder, clip, unet

Shapes = Mapping[str, tuple[int, ...]]

UNET = "model.diffusion_model."
VAE = "first_stage_model."
#: Where each family keeps its text encoders, in order: (prefix, whether it is in open_clip's layout).
TEXT = {
    "sd1": (("cond_stage_model.transformer.", False),),
    "sd2": (("cond_stage_model.model.", True),),
    "sdxl": (("conditioner.embedders.0.transformer.", False), ("conditioner.embedders.1.model.", True)),
}
_KINDS = {
    5: "a depth-to-image model",
    8: "an instruct-pix2pix model",
    9: "an inpainting model",
}
_USE = "Use an SD1, SD2 or SDXL base checkpoint for txt2img."


@dataclass(frozen=True)
class Layout:
    """notes: what could not be told for sure, for the user."""

    architecture: Architecture
    notes: tuple[str, ...] = ()


def recognise(shapes: Shapes, metadata: Mapping[str, str]) -> Layout:
    """Raises UsageError that says what the file is instead, or what it lacks."""
    family = _family(shapes)
    denoiser = _unet(shapes, family)
    prediction, notes = _prediction(shapes, metadata, family)
    architecture = Architecture(
        family, _text_encoders(shapes, family), denoiser, _vae(shapes, family), prediction, zero_snr="ztsnr" in shapes
    )
    return Layout(architecture, notes)


def _family(shapes: Shapes) -> str:
    if not any(key.startswith(UNET) for key in shapes):
        raise UsageError("This is no checkpoint of Stable Diffusion's original layout", found=_kind(shapes), do=_USE)
    if UNET + "input_blocks.0.0.weight" not in shapes:
        raise UsageError("This model's denoiser is not a UNet", found=_sample(shapes), do=_USE)
    if "edm_mean" in shapes:
        raise UsageError("Playground's noise schedule is not supported", found="edm_mean", do=_USE)
    for family, encoders in reversed(TEXT.items()):
        if all(any(key.startswith(prefix) for key in shapes) for prefix, _ in encoders):
            if not any(key.startswith(VAE) for key in shapes):
                raise UsageError(
                    "This checkpoint has no VAE", found=f"{family} without {VAE}", do="Use a file with the VAE in it."
                )
            return family
    if any(key.startswith("conditioner.embedders.0.model.") for key in shapes):
        raise UsageError("This is an SDXL refiner", found="conditioner.embedders.0.model", do=_USE)
    raise UsageError("This checkpoint has no text encoder that is known", found=_sample(shapes), do="Use a full checkpoint.")


def _kind(shapes: Shapes) -> str:
    if any("lora_" in key for key in shapes):
        return "a LoRA"
    if any(key.startswith(("encoder.down", "decoder.up", VAE)) for key in shapes):
        return "a VAE"
    if any(key.startswith(("down_blocks.", "unet.down_blocks.")) for key in shapes):
        return "a file in the diffusers layout"
    return _sample(shapes)


def _sample(shapes: Shapes) -> str:
    return f"{len(shapes)} tensors, first {min(shapes, default='none')}"


def _unet(shapes: Shapes, family: str) -> dict[str, Any]:
    channels = _shape(shapes, UNET + "input_blocks.0.0.weight")[1]
    if channels != 4:
        kind = _KINDS.get(channels, "another kind of model")
        raise UsageError(f"This is {kind}, which needs more than a prompt", found=f"{channels} input channels", do=_USE)
    widths, depths, linear, context = _levels(shapes)
    heads: int | tuple[int, ...] = 8 if family == "sd1" else tuple(width // 64 for width in widths)
    more: dict[str, Any] = {"use_linear_projection": linear}
    if family == "sdxl":
        vector = _shape(shapes, UNET + "label_emb.0.0.weight")[1]
        more.update(addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=vector)
    return unet(widths, depths, context, heads, **more)


def _levels(shapes: Shapes) -> tuple[tuple[int, ...], tuple[int, ...], bool, int]:
    """(widths, transformer blocks per attention, linear projection, width of the text states) of the UNet's down path."""
    widths, depths = [0], [0]
    linear, context = False, 0
    for number in range(1, 100):
        block = f"{UNET}input_blocks.{number}."
        if block + "0.op.weight" in shapes:
            widths, depths = [*widths, 0], [*depths, 0]
            continue
        if block + "0.out_layers.3.weight" not in shapes:
            break
        widths[-1] = _shape(shapes, block + "0.out_layers.3.weight")[0]
        while f"{block}1.transformer_blocks.{depths[-1]}.attn2.to_k.weight" in shapes:
            context = _shape(shapes, f"{block}1.transformer_blocks.{depths[-1]}.attn2.to_k.weight")[1]
            linear = len(_shape(shapes, block + "1.proj_in.weight")) == 2
            depths[-1] += 1
    return tuple(widths), tuple(depths), linear, context


def _vae(shapes: Shapes, family: str) -> dict[str, Any]:
    widths: list[int] = []
    while f"{VAE}encoder.down.{len(widths)}.block.0.conv1.weight" in shapes:
        widths.append(_shape(shapes, f"{VAE}encoder.down.{len(widths)}.block.0.conv1.weight")[0])
    latents = _shape(shapes, VAE + "post_quant_conv.weight")[0]
    if latents != 4 or len(widths) != 4:
        raise UsageError("This checkpoint's VAE is not known", found=f"{len(widths)} levels, {latents} channels", do=_USE)
    return autoencoder(tuple(widths), 0.13025 if family == "sdxl" else 0.18215)


def _text_encoders(shapes: Shapes, family: str) -> tuple[TextEncoder, ...]:
    return tuple(
        _open_clip(shapes, prefix, family) if is_open_clip else _clip(shapes, prefix) for prefix, is_open_clip in TEXT[family]
    )


def _clip(shapes: Shapes, prefix: str) -> TextEncoder:
    inner = prefix + ("text_model." if any(key.startswith(prefix + "text_model.") for key in shapes) else "")
    width = _width(shapes, inner + "embeddings.token_embedding.weight")
    layers = _count(shapes, inner + "encoder.layers.{}.mlp.fc1.weight")
    feed_forward = _shape(shapes, inner + "encoder.layers.0.mlp.fc1.weight")[0]
    return TextEncoder(clip(width, layers, max(width // 64, 1), "quick_gelu", intermediate_size=feed_forward))


def _open_clip(shapes: Shapes, prefix: str, family: str) -> TextEncoder:
    """SD2 was trained on the states before the last layer, so that layer is left out."""
    width = _width(shapes, prefix + "token_embedding.weight")
    layers = _count(shapes, prefix + "transformer.resblocks.{}.mlp.c_fc.weight")
    heads = max(width // 64, 1)
    feed_forward = _shape(shapes, prefix + "transformer.resblocks.0.mlp.c_fc.weight")[0]
    if family == "sd2":
        return TextEncoder(clip(width, layers - 1, heads, "gelu", intermediate_size=feed_forward), pad_token=0)
    projection = _shape(shapes, prefix + "text_projection")[1]
    config = clip(width, layers, heads, "gelu", intermediate_size=feed_forward, projection_dim=projection)
    return TextEncoder(config, projected=True, pad_token=0)


def _width(shapes: Shapes, key: str) -> int:
    rows, width = _shape(shapes, key)
    if rows != VOCABULARY:
        raise UsageError("This checkpoint's vocabulary is not CLIP's", found=f"{rows} tokens", do=_USE)
    return width


def _count(shapes: Shapes, pattern: str) -> int:
    number = 0
    while pattern.format(number) in shapes:
        number += 1
    return number


def _shape(shapes: Shapes, key: str) -> tuple[int, ...]:
    if key not in shapes:
        raise UsageError("The checkpoint is not complete", found=f"no {key}", do="Get the whole file again.")
    return shapes[key]


def _prediction(shapes: Shapes, metadata: Mapping[str, str], family: str) -> tuple[str, tuple[str, ...]]:
    stated = metadata.get("modelspec.prediction_type", "").lower()
    if stated.startswith("v") or "v_pred" in shapes:
        return "v_prediction", ()
    if stated.startswith("eps") or family != "sd2":
        return "epsilon", ()
    note = (
        "SD2 files do not say whether they predict v or noise; this one is taken for a v model (768 pixels). "
        "With a 512-pixel base model the image will be wrong."
    )
    return "v_prediction", (note,)
