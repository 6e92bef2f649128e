"""Who made a session: host, software, cards, model and settings. No user, path, prompt or secret."""

from __future__ import annotations

import platform
from typing import Any

import torch

from vram_pilot import __version__
from vram_pilot.control import Controller
from vram_pilot.hosts.base import Host
from vram_pilot.units import MIB


def identity(host: Host, controller: Controller) -> dict[str, Any]:
    """The parts of a session that are known at its start, in the shape of docs/session.schema.json. Never raises CUDA into
    life.
    """
    model = host.model()
    return {
        "host": {"name": host.name, "version": host.version},
        "software": {
            "vram_pilot": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "system": platform.system(),
        },
        "gpus": _gpus(host.device()),
        "model": None if model is None else {"family": model.family, "name": model.name, "hash": model.digest},
        "settings": _settings(host, controller),
    }


def _gpus(device: torch.device) -> list[dict[str, Any]]:
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return []
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)  # torch 2.4 and later
    return [
        {
            "uuid": None if uuid is None else f"GPU-{uuid}",
            "name": properties.name,
            "total_bytes": properties.total_memory,
            "cuda_index": torch.cuda.current_device() if device.index is None else device.index,
            "nvml_index": None,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }
    ]


def _settings(host: Host, controller: Controller) -> dict[str, Any]:
    """dtype of the denoiser, attention, accelerate, budget and allocator, as in force."""
    request = controller.effective()
    denoiser = next((part.module for part in host.components() if part.role == "denoiser"), None)
    weight = None if denoiser is None else next(denoiser.parameters(), None)
    return {
        "dtype": None if weight is None else str(weight.dtype).removeprefix("torch."),
        "attention": None,
        "accelerate": request.accelerate,
        "budget_bytes": None if request.budget_mib is None else request.budget_mib * MIB,
        "allocator": torch.cuda.get_allocator_backend() if host.device().type == "cuda" else None,
    }
