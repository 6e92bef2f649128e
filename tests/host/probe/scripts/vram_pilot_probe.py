"""Looks into the WebUI for the tests, and breaks what they ask to be broken. Never installed anywhere else."""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

from fastapi import Body, FastAPI
from modules import (
    lowvram,
    processing,
    script_callbacks,
    scripts,
    sd_hijack,
    sd_models,
    sd_samplers_common,
    sd_unet,
    sd_vae,
    shared,
)
from vram_pilot_signatures import signature  # the folder of an extension is on the path while its scripts are loaded

#: Lives on over a Reload UI, which runs this file again.
STATE: Any = sys.modules.setdefault("vram_pilot_probe_state", types.ModuleType("vram_pilot_probe_state"))
if not hasattr(STATE, "lock"):
    STATE.lock = threading.Condition()
    STATE.hold_at = None  # the number of the denoiser round, counted over the job, at which it waits
    STATE.held = False
    STATE.rounds = 0
    STATE.fault = None
    STATE.undo = []
    STATE.threads = {}
    STATE.strength = None  # (round, value): the network's strength from that round on


def _round(params: Any) -> None:
    """Counts rounds; holds the sampling thread where it was asked to, and sets the fault that is to come."""
    with STATE.lock:
        number, STATE.rounds = STATE.rounds, STATE.rounds + 1
        if STATE.hold_at is not None and number == STATE.hold_at:
            STATE.held, STATE.hold_at = True, None
            STATE.lock.notify_all()
            STATE.lock.wait_for(lambda: not STATE.held, 60)
    if STATE.strength is not None and number == STATE.strength[0]:
        sys.modules["networks"].loaded_networks[0].unet_multiplier = STATE.strength[1]
        STATE.strength = None
    if STATE.fault is not None and number == STATE.fault[1]:
        kind, STATE.fault = STATE.fault[0], None
        block = shared.sd_model.model.diffusion_model.middle_block

        def fail(_module: Any, _args: Any) -> None:
            handle.remove()
            raise _problem(kind)

        handle = block.register_forward_pre_hook(fail)


def _problem(kind: str) -> BaseException:
    import torch

    if kind == "oom":
        return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (injected)")
    if kind == "oom_text":
        return RuntimeError("CUDA error: out of memory (injected)")
    return ValueError("injected by the test")


class Seeded(scripts.Script):
    """The WebUI encodes an initial picture with noise that it leaves to chance; here it is the same for every job."""

    def title(self) -> str:
        return "VRAM Pilot's probe"

    def show(self, is_img2img: bool) -> Any:
        return scripts.AlwaysVisible

    def process(self, p: Any, *args: Any) -> None:
        import torch

        torch.manual_seed(1)


# ------------------------------------------------------------------------------------------------------------- looking


def _hooks(hooks: dict[int, Any]) -> list[list[Any]]:
    return [[key, getattr(hook, "__module__", None), getattr(hook, "__qualname__", repr(hook))] for key, hook in hooks.items()]


def _model() -> dict[str, Any]:
    """Everything about the loaded model that a mode could leave changed."""
    model = sd_models.model_data.sd_model
    if model is None:
        return {"loaded": False}
    modules = {}
    weights = {}
    for name, module in model.named_modules():
        before, after = _hooks(module._forward_pre_hooks), _hooks(module._forward_hooks)
        if before or after:
            modules[name] = {"before": before, "after": after}
        for kind, registry in (("parameter", module._parameters), ("buffer", module._buffers)):
            for key, tensor in registry.items():
                if tensor is not None:
                    weights[f"{name}.{key}"] = [
                        kind,
                        id(tensor),
                        type(tensor).__name__,
                        str(tensor.device),
                        str(tensor.dtype),
                        list(tensor.shape),
                        list(tensor.stride()),
                        tensor.requires_grad,
                    ]
    vae = model.first_stage_model
    return {
        "loaded": True,
        "checkpoint": model.sd_checkpoint_info.model_name,
        "hooks": modules,
        "weights": weights,
        "vae_attributes": {name: [id(value), value.__qualname__] for name, value in vars(vae).items() if callable(value)},
        "lowvram": model.lowvram,
        "parallel": shared.parallel_processing_allowed,
        "module_in_gpu": None if lowvram.module_in_gpu is None else type(lowvram.module_in_gpu).__name__,
        "training": model.training,
        "instance_forwards": sorted(name for name, module in model.named_modules() if "forward" in vars(module)),
    }


def _checksum() -> dict[str, Any]:
    """One number for each component, from the bytes of its weights."""
    import hashlib

    import torch

    model = sd_models.model_data.sd_model
    sums = {}
    for name in ("cond_stage_model", "model", "first_stage_model"):
        digest = hashlib.sha256()
        for _key, tensor in sorted(getattr(model, name).state_dict().items()):
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else b"0")
        sums[name] = digest.hexdigest()[:16]
    return sums


PATCHED = {
    "process_images_inner": (processing, "process_images_inner"),
    "close": (processing.StableDiffusionProcessing, "close"),
    "launch_sampling": (sd_samplers_common.Sampler, "launch_sampling"),
    "callback_state": (sd_samplers_common.Sampler, "callback_state"),
    "send_model_to_cpu": (sd_models, "send_model_to_cpu"),
    "send_model_to_device": (sd_models, "send_model_to_device"),
    "send_model_to_trash": (sd_models, "send_model_to_trash"),
    "redo_hijack": (sd_hijack.StableDiffusionModelHijack, "redo_hijack"),
    "reload_vae_weights": (sd_vae, "reload_vae_weights"),
    "apply_unet": (sd_unet, "apply_unet"),
}


def _depth(function: Any) -> int:
    """How many wrappers lie over the original."""
    depth = 0
    while hasattr(function, "__wrapped__"):
        function, depth = function.__wrapped__, depth + 1
    return depth


def _extension(app: FastAPI) -> dict[str, Any]:
    """What we have left in the WebUI: callbacks by kind, wrappers, routes, threads, scripts, axes."""
    callbacks = {}
    for category, registered in script_callbacks.callback_map.items():
        ours = [callback.name for callback in registered if "vram_pilot" in f"{callback.callback.__module__}"]
        ours = [name for name in ours if "probe" not in name]
        if ours:
            callbacks[category] = len(ours)
    runners = {"txt2img": scripts.scripts_txt2img, "img2img": scripts.scripts_img2img}
    axes = next(data.module for data in scripts.scripts_data if data.path.endswith("xyz_grid.py")).axis_options
    return {
        "callbacks": callbacks,
        "depths": {name: _depth(getattr(owner, attribute)) for name, (owner, attribute) in PATCHED.items()},
        "routes": sorted(route.path for route in app.router.routes if getattr(route, "path", "").startswith("/vram-pilot/")),
        "threads": sorted(thread.name for thread in threading.enumerate() if "vram" in thread.name),
        "scripts": {name: [s.title() for s in runner.scripts].count("VRAM Pilot") for name, runner in runners.items()},
        "axes": [axis.label for axis in axes if "VRAM Pilot" in axis.label],
        "settings": sorted(key for key in shared.opts.data_labels if key.startswith("vram_pilot")),
        "imported": sorted(
            name for name in sys.modules if name.partition(".")[0] in ("diffusers", "plotly", "pynvml", "psutil")
        ),
    }


# ------------------------------------------------------------------------------------------------------------- breaking


def _break_activation(how: str) -> None:
    """The next entering of a mode fails (or ends the process) when the weights begin to move."""
    from vram_pilot.hosts.a1111 import entry
    from vram_pilot.streaming.bank import WeightBank

    original = WeightBank.swap

    def swap(*args: Any, **kwargs: Any) -> Any:
        WeightBank.swap = original  # type: ignore[method-assign]
        if how == "exit":
            entry.app().store.flush()  # that a session has begun is on the disk by then
            os._exit(9)
        raise RuntimeError("injected: no weight moves")

    WeightBank.swap = swap  # type: ignore[method-assign]


def _break_loading() -> None:
    """The next checkpoint is not loaded: memory runs out before anything has changed, from where the WebUI can go on."""
    original = sd_models.reload_model_weights

    def fails(*_args: Any, **_kwargs: Any) -> Any:
        sd_models.reload_model_weights = original
        raise _problem("oom")

    sd_models.reload_model_weights = fails


def _replace_forward() -> None:
    """As extensions that steer the denoiser do it: a forward of their own that calls its blocks and never the original."""
    import torch
    from ldm.modules.diffusionmodules.util import timestep_embedding

    unet = shared.sd_model.model.diffusion_model

    def steered(x: Any, timesteps: Any = None, context: Any = None, y: Any = None, **_more: Any) -> Any:
        emb = unet.time_embed(timestep_embedding(timesteps, unet.model_channels).to(x.dtype))
        kept = [unet.input_blocks[0](x, emb, context)]
        for block in unet.input_blocks[1:]:
            kept.append(block(kept[-1], emb, context))
        out = unet.middle_block(kept[-1], emb, context) * 1.25
        for block in unet.output_blocks:
            out = block(torch.cat((out, kept.pop()), 1), emb, context)
        return unet.out(out)

    unet.forward = steered


def _wrap_everything() -> None:
    """As another extension would: wraps functions that we wrap too, and never takes it back."""
    original = processing.process_images_inner

    def theirs(*args: Any, **kwargs: Any) -> Any:
        STATE.wrapped_calls = getattr(STATE, "wrapped_calls", 0) + 1
        return original(*args, **kwargs)

    theirs.__wrapped__ = original  # type: ignore[attr-defined]
    processing.process_images_inner = theirs


# ------------------------------------------------------------------------------------------------------------- routes


def _routes(_demo: Any, app: FastAPI) -> None:
    prefix = "/vram-pilot-probe"

    @app.get(f"{prefix}/model")
    def model() -> Any:
        return _model()

    @app.get(f"{prefix}/checksum")
    def checksum() -> Any:
        return _checksum()

    @app.get(f"{prefix}/extension")
    def extension() -> Any:
        return _extension(app)

    @app.get(f"{prefix}/loaded")
    def loaded() -> Any:
        """Waits until the first model is loaded: the API answers before that."""
        return {"name": getattr(getattr(shared.sd_model, "sd_checkpoint_info", None), "model_name", None)}

    @app.get(f"{prefix}/startup")
    def startup() -> Any:
        from modules import timer

        return timer.startup_record

    @app.post(f"{prefix}/signatures")
    def signatures(targets: list[str] = Body(...)) -> Any:  # noqa: B008
        scripts_too = {data.path.rpartition("/")[2].removesuffix(".py"): data.module for data in scripts.scripts_data}
        return {target: signature(target, scripts_too) for target in targets}

    @app.post(f"{prefix}/hold")
    def hold(at: int = Body(..., embed=True)) -> Any:
        with STATE.lock:
            STATE.rounds, STATE.hold_at, STATE.held = 0, at, False
        return {}

    @app.get(f"{prefix}/held")
    def held() -> Any:
        with STATE.lock:
            return {"held": STATE.lock.wait_for(lambda: STATE.held, 60)}

    @app.post(f"{prefix}/release")
    def release(next_at: Any = Body(None, embed=True)) -> Any:  # noqa: B008
        with STATE.lock:
            STATE.held, STATE.hold_at = False, next_at
            STATE.lock.notify_all()
        return {}

    @app.post(f"{prefix}/fault")
    def fault(kind: str = Body(...), at: int = Body(...)) -> Any:
        with STATE.lock:
            STATE.rounds, STATE.fault = 0, (kind, at)
        return {}

    @app.post(f"{prefix}/strength")
    def strength(at: int = Body(...), value: float = Body(...)) -> Any:
        with STATE.lock:
            STATE.rounds, STATE.strength = 0, (at, value)
        return {}

    @app.post(f"{prefix}/steer")
    def steer(on: bool = Body(..., embed=True)) -> Any:
        if on:
            _replace_forward()
        else:
            del shared.sd_model.model.diffusion_model.forward
        return {}

    @app.post(f"{prefix}/break-activation")
    def break_activation(how: str = Body(..., embed=True)) -> Any:
        _break_activation(how)
        return {}

    @app.post(f"{prefix}/break-loading")
    def break_loading() -> Any:
        _break_loading()
        return {}

    @app.post(f"{prefix}/wrap")
    def wrap() -> Any:
        _wrap_everything()
        return {}

    @app.post(f"{prefix}/restart")
    def restart() -> Any:
        shared.state.request_restart()
        return {}


script_callbacks.on_cfg_denoiser(_round)
script_callbacks.on_app_started(_routes)
