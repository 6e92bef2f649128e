"""Small random checkpoints in the original key layout, made from ldm's own UNet, encoder and decoder, so that the file's names
are the true ones and its numbers have a reference to be compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ldm.modules.diffusionmodules.model import Decoder, Encoder
from ldm.modules.diffusionmodules.openaimodel import UNetModel
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

Tensors = dict[str, torch.Tensor]


@dataclass
class Original:
    """The models that a checkpoint was written from. tensors: the file's content."""

    unet: nn.Module
    encoder: nn.Module
    decoder: nn.Module
    post_quant: nn.Module
    texts: list[nn.Module]
    tensors: Tensors

    def save(self, path: Path, metadata: dict[str, str] | None = None) -> Path:
        save_file({key: tensor.contiguous() for key, tensor in self.tensors.items()}, str(path), metadata)
        return path

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant(latents))


def original(family: str, channels: int = 4) -> Original:
    """family: "sd1", "sd2" or "sdxl"; channels: of the UNet's input (9 for inpainting)."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        texts = {"sd1": [_clip(64)], "sd2": [_clip(64, layers=3)], "sdxl": [_clip(64), _clip(128, projection=True)]}[family]
        made = Original(_unet(family, channels), *_vae(), texts, {})
        modules = [made.unet, made.encoder, made.decoder, made.post_quant, *texts]
        for module in modules:
            module.eval().requires_grad_(False)
            for parameter in module.parameters():
                if parameter.ndim > 1:  # ldm starts its last layers at zero, which would hide every fault
                    nn.init.normal_(parameter, 0.0, 0.08)
    made.tensors = {
        **_under("model.diffusion_model.", made.unet.state_dict()),
        **_under("first_stage_model.encoder.", made.encoder.state_dict()),
        **_under("first_stage_model.decoder.", made.decoder.state_dict()),
        **_under("first_stage_model.post_quant_conv.", made.post_quant.state_dict()),
        "first_stage_model.quant_conv.weight": torch.randn(8, 8, 1, 1),
        "first_stage_model.quant_conv.bias": torch.randn(8),
        **_texts(family, texts),
    }
    return made


def _unet(family: str, channels: int) -> nn.Module:
    shared: dict[str, Any] = {
        "image_size": 8, "in_channels": channels, "out_channels": 4, "num_res_blocks": 2, "use_spatial_transformer": True,
        "use_checkpoint": False, "legacy": False,
    }  # fmt: skip
    if family == "sd1":
        more: dict[str, Any] = {
            "model_channels": 32,
            "channel_mult": [1, 2, 2, 2],
            "attention_resolutions": [1, 2, 4],
            "num_heads": 8,
        }
        return UNetModel(**shared, **more, transformer_depth=1, context_dim=64)
    heads = {"num_head_channels": 64, "use_linear_in_transformer": True, "model_channels": 64}
    if family == "sd2":
        return UNetModel(
            **shared, **heads, channel_mult=[1, 1, 1, 1], attention_resolutions=[1, 2, 4], transformer_depth=1, context_dim=64
        )
    unet = UNetModel(
        **shared, **heads, channel_mult=[1, 1, 2], attention_resolutions=[2, 4], transformer_depth=2, context_dim=[192, 192]
    )
    # sgm's conditioning on a vector: the projected text and six sizes of 256 numbers each
    unet.num_classes = "sequential"
    unet.label_emb = nn.Sequential(nn.Sequential(nn.Linear(128 + 6 * 256, 256), nn.SiLU(), nn.Linear(256, 256)))
    return unet


def _vae() -> tuple[nn.Module, nn.Module, nn.Module]:
    shape: dict[str, Any] = {
        "ch": 32, "out_ch": 3, "ch_mult": (1, 1, 2, 2), "num_res_blocks": 2, "attn_resolutions": [], "in_channels": 3,
        "resolution": 64, "z_channels": 4,
    }  # fmt: skip
    return Encoder(**shape, double_z=True), Decoder(**shape), nn.Conv2d(4, 4, 1)


def _clip(width: int, layers: int = 2, projection: bool = False) -> nn.Module:
    config = CLIPTextConfig(
        vocab_size=49408,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        hidden_act="gelu" if projection or layers == 3 else "quick_gelu",
        projection_dim=width,
        bos_token_id=49406,
        eos_token_id=49407,
    )
    return CLIPTextModelWithProjection(config) if projection else CLIPTextModel(config)


def _texts(family: str, texts: list[nn.Module]) -> Tensors:
    if family == "sd1":
        return _under("cond_stage_model.transformer.", texts[0].state_dict())
    if family == "sd2":
        return _under("cond_stage_model.model.", _as_open_clip(texts[0]))
    return {
        **_under("conditioner.embedders.0.transformer.", texts[0].state_dict()),
        **_under("conditioner.embedders.1.model.", _as_open_clip(texts[1])),
    }


def _as_open_clip(text: nn.Module) -> Tensors:
    """transformers' names to open_clip's: query, key and value lie in one matrix there."""
    state = text.state_dict()
    found = {
        "token_embedding.weight": state["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": state["text_model.embeddings.position_embedding.weight"],
        "ln_final.weight": state["text_model.final_layer_norm.weight"],
        "ln_final.bias": state["text_model.final_layer_norm.bias"],
    }
    if "text_projection.weight" in state:
        found["text_projection"] = state["text_projection.weight"].T
    names = {
        "layer_norm1": "ln_1",
        "layer_norm2": "ln_2",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
        "self_attn.out_proj": "attn.out_proj",
    }
    for number in range(text.config.num_hidden_layers):
        theirs, ours = f"transformer.resblocks.{number}.", f"text_model.encoder.layers.{number}."
        for kind in ("weight", "bias"):
            joined = [state[f"{ours}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            found[f"{theirs}attn.in_proj_{kind}"] = torch.cat(joined)
            for here, there in names.items():
                found[f"{theirs}{there}.{kind}"] = state[f"{ours}{here}.{kind}"]
    return found


def _under(prefix: str, state: Tensors) -> Tensors:
    return {prefix + key: tensor for key, tensor in state.items() if not key.endswith("position_ids")}
