"""A loaded model, and models of the true architecture with random weights, made on the spot without any file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from vram_pilot.errors import UsageError
from vram_pilot.hosts.base import Component, ModelInfo
from vram_pilot.hosts.standalone.architectures import BUILT_IN, CONTEXT, Architecture, TextEncoder
from vram_pilot.hosts.standalone.tokens import Tokenizer, any_tokenizer

#: Numbers in the table that random weights are drawn from: odd, so that no two rows of a matrix are alike.
_TABLE = 4_194_301


@dataclass(frozen=True)
class Model:
    """All parts of one model, on the CPU or the device, in evaluation mode, without gradients."""

    info: ModelInfo
    architecture: Architecture
    tokenizer: Tokenizer
    text_encoders: tuple[torch.nn.Module, ...]
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    notes: tuple[str, ...] = ()

    def components(self) -> tuple[Component, ...]:
        """text_encoder (and text_encoder_2), denoiser, vae: in the order in which a job needs them."""
        names = ("text_encoder", "text_encoder_2")
        encoders = [Component(name, "text_encoder", module) for name, module in zip(names, self.text_encoders)]
        return (*encoders, Component("denoiser", "denoiser", self.unet), Component("vae", "vae", self.vae))


def build_random(name: str, dtype: torch.dtype) -> Model:
    """The built-in model `name` on the CPU. Its weights depend on the name alone.

    Raises UsageError for an unknown name.
    """
    if name not in BUILT_IN:
        raise UsageError(
            "There is no such model", found=name, do="Use one of: " + ", ".join(BUILT_IN) + ", or a .safetensors file."
        )
    return random_model(name, BUILT_IN[name], dtype)


def random_model(name: str, architecture: Architecture, dtype: torch.dtype) -> Model:
    """A model of this architecture on the CPU; the same architecture always gets the same weights."""
    modules = empty_modules(architecture, dtype)
    table = torch.randn(_TABLE, generator=torch.Generator().manual_seed(0)).to(dtype)
    start = 0
    for module in modules:
        start = _randomise(module, table, start)
    return assemble(ModelInfo(architecture.family, name), architecture, any_tokenizer(), modules)


def empty_modules(architecture: Architecture, dtype: torch.dtype) -> tuple[torch.nn.Module, ...]:
    """Text encoders, UNet, VAE on the CPU, their weights not set yet."""
    with torch.device("meta"):
        modules = (
            *(_text_encoder(encoder) for encoder in architecture.text_encoders),
            UNet2DConditionModel(**architecture.unet),
            AutoencoderKL(**architecture.vae),
        )
    for module in modules:
        torch.nn.Module.to(module, dtype)  # diffusers' own `to` warns where it need not
        module.to_empty(device="cpu").eval().requires_grad_(False)
        _fill_position_ids(module)
    return modules


def assemble(
    info: ModelInfo,
    architecture: Architecture,
    tokenizer: Tokenizer,
    modules: tuple[torch.nn.Module, ...],
    notes: tuple[str, ...] = (),
) -> Model:
    """A model of the modules that `empty_modules` made."""
    *encoders, unet, vae = modules
    assert isinstance(unet, UNet2DConditionModel) and isinstance(vae, AutoencoderKL)
    return Model(info, architecture, tokenizer, tuple(encoders), unet, vae, notes)


def _text_encoder(encoder: TextEncoder) -> torch.nn.Module:
    config = CLIPTextConfig(**encoder.config)
    module: torch.nn.Module = CLIPTextModelWithProjection(config) if encoder.projected else CLIPTextModel(config)
    return module


def _fill_position_ids(module: torch.nn.Module) -> None:
    """CLIP's only buffer, which is not in any checkpoint."""
    for name, buffer in module.named_buffers():
        if not name.endswith("position_ids"):
            raise AssertionError(f"unknown buffer {name}")
        buffer.copy_(torch.arange(CONTEXT).expand(1, -1))


def _randomise(module: torch.nn.Module, table: torch.Tensor, start: int) -> int:
    """Sets every weight so that activations keep a size of about 1 from layer to layer, in fp16 too. Gives the next `start`."""
    for part in module.modules():
        if isinstance(part, (torch.nn.LayerNorm, torch.nn.GroupNorm)):
            torch.nn.init.ones_(part.weight)
            # a mean of exactly 0 would be divided by where prompts are weighted by their mean
            torch.nn.init.constant_(part.bias, 0.05)
        else:
            for name, parameter in part.named_parameters(recurse=False):
                if name == "bias":
                    torch.nn.init.zeros_(parameter)
                else:
                    start = _draw(parameter, table, start, _scale(part, parameter))
    return start


def _scale(part: torch.nn.Module, parameter: torch.nn.Parameter) -> float:
    """Standard deviation: 1/sqrt(inputs) for layers that sum over inputs, small for embeddings, as CLIP's own are."""
    if isinstance(part, torch.nn.Embedding):
        return 0.02
    inputs = parameter[0].numel()
    return float(inputs**-0.5)


def _draw(parameter: torch.nn.Parameter, table: torch.Tensor, start: int, scale: float) -> int:
    """Fills `parameter` with the table's numbers from `start` on, round and round: copying is faster than drawing anew."""
    flat = parameter.data.view(-1)
    for piece, source in _pieces(flat.numel(), start):
        flat[piece].copy_(table[source])
    flat.mul_(scale)
    return (start + flat.numel()) % _TABLE


def _pieces(count: int, start: int) -> Iterator[tuple[slice, slice]]:
    done = 0
    while done < count:
        take = min(count - done, _TABLE - start)
        yield slice(done, done + take), slice(start, start + take)
        done, start = done + take, 0
