"""A real SD1, SD2 or SDXL checkpoint from one .safetensors file, converted by diffusers' own functions. No hub is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers.loaders.single_file_utils import (
    convert_ldm_clip_checkpoint,
    convert_ldm_unet_checkpoint,
    convert_ldm_vae_checkpoint,
    convert_open_clip_checkpoint,
)
from safetensors import SafetensorError, safe_open

from vram_pilot.errors import UsageError
from vram_pilot.hosts.base import ModelInfo
from vram_pilot.hosts.standalone.layout import TEXT, UNET, VAE, Layout, recognise
from vram_pilot.hosts.standalone.models import Model, assemble, empty_modules
from vram_pilot.hosts.standalone.tokens import clip_tokenizer

#: Suffixes of files that are read by executing what they contain.
PICKLES = (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".pickle")
Tensors = dict[str, torch.Tensor]


def inspect(path: Path) -> Layout:
    """What the file is, from its header alone. Raises UsageError for anything that cannot be loaded."""
    with _opened(path) as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in _names(file)}
        return recognise(shapes, file.metadata() or {})


def load(path: Path, dtype: torch.dtype) -> Model:
    """The model on the CPU, its weights in `dtype`.

    Raises UsageError for a file that cannot be loaded, HostError when the CLIP vocabulary is not installed.
    """
    layout = inspect(path)
    tokenizer = clip_tokenizer()
    family = layout.architecture.family
    modules = empty_modules(layout.architecture, dtype)
    with _opened(path) as file:
        for module, (prefix, is_open_clip) in zip(modules, TEXT[family]):
            tensors = _tensors(file, prefix)
            _fill(module, _open_clip(module, tensors, prefix, family) if is_open_clip else _clip(tensors, prefix))
        _fill(modules[-2], convert_ldm_unet_checkpoint(_tensors(file, UNET), layout.architecture.unet))
        _fill(modules[-1], convert_ldm_vae_checkpoint(_tensors(file, VAE), layout.architecture.vae))
    return assemble(ModelInfo(family, path.stem, short_hash(path)), layout.architecture, tokenizer, modules, layout.notes)


def short_hash(path: Path) -> str:
    """The first ten digits of the file's SHA-256, as WebUIs show it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()[:10]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        _check_name(path)
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise UsageError(
            "This is no whole .safetensors file", found=f"{path.name}: {error}", do="Get the file again; it may be cut off."
        ) from error
    except OSError as error:
        raise UsageError("The checkpoint cannot be read", found=f"{path.name[:60]}: {error.strerror or error}") from error


def _check_name(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise UsageError(
            "Pickle files can run code and are not loaded",
            found=path.name,
            do="Convert it to .safetensors, or get that version.",
        )
    if path.is_dir():
        raise UsageError("The model is a folder", found=path.name or str(path), do="Give one .safetensors file.")
    if not path.is_file():
        raise UsageError(
            "There is no such model or file", found=str(path), do="Use tiny, sd15, sdxl or the path of a .safetensors file."
        )
    if path.suffix.lower() != ".safetensors":
        raise UsageError("This file type is not loaded", found=path.name, do="Give a .safetensors file.")


def _names(file: Any) -> list[str]:
    return list(file.keys())


def _tensors(file: Any, prefix: str) -> Tensors:
    """The file's tensors below `prefix`, under their full names. They are read from the disk when they are used."""
    return {key: file.get_tensor(key) for key in _names(file) if key.startswith(prefix)}


def _clip(tensors: Tensors, prefix: str) -> Tensors:
    converted = convert_ldm_clip_checkpoint(tensors, remove_prefix=prefix)
    return {key if key.startswith("text_model.") else "text_model." + key: tensor for key, tensor in converted.items()}


def _open_clip(module: torch.nn.Module, tensors: Tensors, prefix: str, family: str) -> Tensors:
    if family == "sd2":
        last = sum(key.endswith(".mlp.c_fc.weight") for key in tensors) - 1
        tensors = {key: tensor for key, tensor in tensors.items() if f".resblocks.{last}." not in key}
    return dict(convert_open_clip_checkpoint(module, tensors, prefix=prefix))


def _fill(module: torch.nn.Module, state: Tensors) -> None:
    """Copies the weights in, in the module's own dtype. Raises UsageError when one is missing or has another shape."""
    try:
        missing = module.load_state_dict(state, strict=False).missing_keys
    except RuntimeError as error:
        raise UsageError("The checkpoint does not fit its architecture", found=str(error).splitlines()[-1].strip()) from error
    missing = [key for key in missing if not key.endswith("position_ids")]
    if missing:
        raise UsageError("The checkpoint is not complete", found=f"no {missing[0]}", do="Get the whole file again.")
