"""The WebUI's callbacks as job, phase, step and call events.

A job starts at the script's `before_process` and ends when `process_images_inner` returns or raises: `postprocess` is not called after
an exception. Exceptions of ours never reach the WebUI.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

from modules import processing, script_callbacks, sd_models, sd_vae, shared

from vram_pilot.hosts.base import HostListener, JobInfo, StepInfo
from vram_pilot.oom import describe, is_out_of_memory
from vram_pilot.settings import ModeRequest

log = logging.getLogger(__name__)


class Jobs:
    """Patches of the WebUI are in place between `start` and the call of its answer."""

    def __init__(self) -> None:
        self._listener: HostListener | None = None
        self._patches: list[tuple[Any, str, Any, Any]] = []
        self._open = False  # a job has started and not ended
        self._thread: int | None = None  # the one inside process_images_inner
        self._depth = 0
        self._batch = 0
        self._hires = False
        self._last: tuple[Any, ...] | None = None
        self._counter: Any = None
        self._counted: Any = None

    # ------------------------------------------------------------------------------------------------ start and stop

    def start(self, listener: HostListener) -> Callable[[], None]:
        if self._listener is not None:
            raise RuntimeError("this WebUI is listened to already")
        self._listener = listener
        self._patch(processing, "process_images_inner", self._around_job)
        for name in ("send_model_to_cpu", "send_model_to_device", "send_model_to_trash"):
            self._patch(sd_models, name, self._around_move)
        self._patch(sd_vae, "reload_vae_weights", self._around_vae)
        script_callbacks.on_cfg_denoiser(self._on_call, name="vram-pilot")
        script_callbacks.on_model_loaded(self._on_model_loaded, name="vram-pilot")
        return self.stop

    def stop(self) -> None:
        """Undoes the patches that are still ours on top; one that another extension has wrapped is left, and does nothing."""
        self._forget_counter()
        self._listener = None
        for owner, name, ours, original in reversed(self._patches):
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
        self._patches.clear()
        script_callbacks.remove_callbacks_for_function(self._on_call)
        script_callbacks.remove_callbacks_for_function(self._on_model_loaded)

    def _patch(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, ours)
        self._patches.append((owner, name, ours, original))

    # ------------------------------------------------------------------------------------------------ what scripts tell

    def before_process(self, p: Any, mode: ModeRequest | None) -> None:
        if self.running():  # a job within a job (ADetailer): part of the outer one
            return
        self.close_lost()
        self._open, self._batch, self._hires, self._last = True, 0, False, None
        self._tell("job_started", JobInfo(_request(p), mode))
        self._tell("phase_started", "load")

    def before_batch(self, number: int) -> None:
        if self._nested():
            return
        self._batch, self._hires = number, False
        self._tell("phase_started", "encode")

    def before_sampling(self, p: Any) -> None:
        self._hires = bool(getattr(p, "is_hr_pass", False))
        self._last = None
        self._tell("phase_started", "denoise")

    def before_hires(self) -> None:
        self._tell("phase_started", "other")

    def after_sampling(self) -> None:
        self._tell("phase_started", "decode")

    def after_batch(self) -> None:
        self._tell("phase_started", "other")

    # ------------------------------------------------------------------------------------------------ state

    def running(self) -> bool:
        """Whether a job is between its start and its end on some thread."""
        return self._depth > 0

    def close_lost(self) -> None:
        """Ends a job that started but never came to sampling, because the WebUI failed before (loading a checkpoint, say)."""
        if self._open and not self.running():
            self._finish("error", "the WebUI gave the job up before it began to sample")

    def _nested(self) -> bool:
        return self._depth > 1

    # ------------------------------------------------------------------------------------------------ callbacks and patches

    def _around_job(self, original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
        if self._listener is None or (self._thread is not None and self._thread != threading.get_ident()):
            return original(p, *args, **kwargs)
        self._thread = threading.get_ident()
        self._depth += 1
        status, error = "ok", None
        try:
            return original(p, *args, **kwargs)
        except BaseException as problem:
            status = "oom" if is_out_of_memory(problem) else "error"
            error = describe(problem)
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._thread = None
                if status == "ok" and (shared.state.interrupted or shared.state.stopping_generation):
                    status = "interrupted"
                self._finish(status, error)

    def _finish(self, status: str, error: str | None) -> None:
        self._forget_counter()
        was_open, self._open = self._open, False
        if was_open:
            self._tell("job_finished", status, error)

    def _around_move(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if model is not None and model is sd_models.model_data.sd_model:
            self._tell("model_changing")
        result = original(model, *args, **kwargs)
        self._tell("model_changed")
        return result

    def _around_vae(self, original: Callable[..., Any], model: Any = None, *args: Any, **kwargs: Any) -> Any:
        model = model or sd_models.model_data.sd_model
        chosen = [*args, *kwargs.values()]
        wanted = chosen[0] if chosen else sd_vae.resolve_vae(model.sd_checkpoint_info.filename).vae
        if wanted == sd_vae.loaded_vae_file:  # the WebUI asks at many places, and mostly nothing is to be done
            return original(model, *args, **kwargs)
        self._tell("model_changing")
        result = original(model, *args, **kwargs)
        self._tell("model_changed")
        return result

    def _on_model_loaded(self, model: Any) -> None:
        self._tell("model_changing")
        self._tell("model_changed")

    def _on_call(self, params: Any) -> None:
        """Before each round of denoiser calls. A second-order sampler makes two rounds a step."""
        if not self._open:
            return
        self._count_calls()
        denoiser = params.denoiser
        config = getattr(denoiser.sampler, "config", None)
        rounds = 2 if config is not None and config.options.get("second_order", False) else 1
        here = (id(denoiser), self._batch, self._hires, denoiser.step // rounds)
        if here != self._last:
            self._last = here
            total = (denoiser.total_steps or 0) // rounds
            self._tell("step_started", StepInfo(here[-1], total, "hires" if self._hires else "base", self._batch))

    def _count_calls(self) -> None:
        """Counts forwards of the denoiser in force; a refiner exchanges it in mid-job."""
        module = sd_models.model_data.sd_model.model.diffusion_model
        if module is not self._counted:
            self._forget_counter()
            self._counted = module
            self._counter = module.register_forward_pre_hook(lambda _module, _args: self._tell("call_started"), prepend=True)

    def _forget_counter(self) -> None:
        if self._counter is not None:
            self._counter.remove()
        self._counter = self._counted = None

    def _tell(self, event: str, *args: Any) -> None:
        """Passes an event on. This is the gate: a fault of ours is logged and goes no further."""
        listener = self._listener
        if listener is None:
            return
        try:
            getattr(listener, event)(*args)
        except Exception:
            log.exception("VRAM Pilot: %s failed", event)


def _request(p: Any) -> dict[str, Any]:
    """The job's parameters for the record. Never the prompt."""
    hires = None
    if getattr(p, "enable_hr", False):
        hires = {
            "width": getattr(p, "hr_resize_x", 0) or None,
            "height": getattr(p, "hr_resize_y", 0) or None,
            "scale": getattr(p, "hr_scale", None),
            "steps": getattr(p, "hr_second_pass_steps", 0) or p.steps,
        }
    return {
        "width": p.width,
        "height": p.height,
        "batch_size": p.batch_size,
        "n_iter": p.n_iter,
        "steps": p.steps,
        "sampler": p.sampler_name,
        "cfg_scale": p.cfg_scale,
        "hires": hires,
    }
