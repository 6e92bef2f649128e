"""Who made a session: host, software, cards, model and settings. No user, path, prompt or secret."""

from __future__ import annotations

import platform
from typing import Any

import torch

from vram_pilot import __version__
from vram_pilot.control import Controller
from vram_pilot.hosts.base import Host
from vram_pilot.telemetry.cards import Match
from vram_pilot.units import MIB


def identity(host: Host, controller: Controller, card: Match | None = None) -> dict[str, Any]:
    """The parts of a session that are known at its start, in the shape of docs/session.schema.json. Starts no CUDA.

    card: which of the driver's cards the host computes on, None while that is not known.
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
        "gpus": _gpus(host.device(), card),
        "model": None if model is None else {"family": model.family, "name": model.name, "hash": model.digest},
        "settings": _settings(host, controller),
    }


def _gpus(device: torch.device, card: Match | None) -> list[dict[str, Any]]:
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return []
    properties = torch.cuda.get_device_properties(device)
    return [
        {
            "uuid": _uuid(properties, card),
            "name": properties.name,
            "total_bytes": properties.total_memory,
            "cuda_index": torch.cuda.current_device() if device.index is None else device.index,
            "nvml_index": None if card is None or card.card is None else card.card.index,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }
    ]


def _uuid(properties: Any, card: Match | None) -> str | None:
    """As the driver names the card, or the slice of it that is used; else as torch does (2.4 and later)."""
    found = None if card is None or card.card is None else (card.instance or card.card).uuid
    uuid = getattr(properties, "uuid", None)
    return found or (None if uuid is None else f"GPU-{uuid}")


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
