"""Tells benchmarks/a1111.py what only the WebUI's own process knows. Lies in its temporary data folder, nowhere else."""

from __future__ import annotations

from typing import Any

import torch
from fastapi import FastAPI
from modules import devices, launch_utils, script_callbacks, sd_models, shared


def _model() -> dict[str, Any]:
    """Waits until the first model is loaded: the API answers before that."""
    checkpoint = getattr(shared.sd_model, "sd_checkpoint_info", None)
    return {
        "checkpoint": getattr(checkpoint, "model_name", None),
        "parameters": sum(weight.numel() for weight in sd_models.model_data.sd_model.parameters()) if checkpoint else None,
        "device": str(devices.device),
        "webui": str(launch_utils.git_tag()),
        "attention": shared.opts.cross_attention_optimization,
        "torch": torch.__version__,
    }


def _memory() -> dict[str, int | None]:
    """The peaks since the last reset, in bytes; None where torch uses no CUDA device."""
    if devices.device.type != "cuda":
        return {"peak_allocated_bytes": None, "peak_reserved_bytes": None}
    torch.cuda.synchronize(devices.device)
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(devices.device),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(devices.device),
    }


def _reset(empty: bool = False) -> dict[str, int | None]:
    """empty: give back what torch holds unused, as a fresh start would not have it."""
    found = _memory()
    if devices.device.type == "cuda":
        if empty:
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(devices.device)
    return found


def _routes(_page: Any, app: FastAPI) -> None:
    app.get("/vram-pilot-meter/model")(_model)
    app.get("/vram-pilot-meter/memory")(_memory)
    app.post("/vram-pilot-meter/reset")(_reset)


script_callbacks.on_app_started(_routes)
