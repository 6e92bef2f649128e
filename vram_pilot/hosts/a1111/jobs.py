"""The WebUI's callbacks as job, phase, step and call events.

A job starts at the script's `before_process` and ends when `process_images_inner` returns or raises, since `postprocess` is not
called after an exception; a job that failed before it got there ends when the WebUI closes it. Exceptions of ours never reach
the WebUI.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from modules import processing, script_callbacks, sd_hijack, sd_models, sd_samplers_common, sd_unet, sd_vae, shared
from modules.call_queue import queue_lock
from modules.hypernetworks import hypernetwork
from modules.textual_inversion import textual_inversion

from vram_pilot.hosts.a1111.patches import Patches
from vram_pilot.hosts.a1111.sampling import StepCounter
from vram_pilot.hosts.a1111.waiting import wait_for_captures
from vram_pilot.hosts.base import HostListener, JobInfo, StepInfo
from vram_pilot.hosts.telling import Teller
from vram_pilot.oom import describe, is_out_of_memory
from vram_pilot.settings import ModeRequest

log = logging.getLogger(__name__)

_GAVE_UP = "the WebUI gave the job up before it began to sample"


class Jobs:
    """Patches of the WebUI are in place between `start` and the call of its answer.

    weights_are_ours: whether a mode of ours moves weights at present, so that nobody else may while a job runs.
    """

    def __init__(self, weights_are_ours: Callable[[], bool]) -> None:
        self._weights_are_ours = weights_are_ours
        self._tell = Teller()
        self._patches = Patches()
        self._end: Callable[[], None] | None = None
        self._open = False  # a job has started and not ended
        self._opener: int | None = None  # the thread that it started on
        self._thread: int | None = None  # the one inside process_images_inner
        self._depth = 0
        self._queued = True  # the running job holds the WebUI's queue
        self._ended = threading.Event()  # no job is running
        self._ended.set()
        self._batch = 0
        self._hires = False
        self._cut_short = False
        self._preview_failed = False  # said once
        self._phase: str | None = None
        self._steps: StepCounter | None = None
        self._counter: Any = None
        self._counted: Any = None

    # ------------------------------------------------------------------------------------------------ start and stop

    def start(self, listener: HostListener) -> Callable[[], None]:
        if self._end is not None:
            raise RuntimeError("this WebUI is listened to already")
        self._end = self._tell.subscribe(listener)
        wrap = self._patches.wrap
        wrap(processing, "process_images_inner", self._around_job)
        wrap(processing.StableDiffusionProcessing, "close", self._around_close)
        wrap(sd_samplers_common.Sampler, "launch_sampling", self._around_sampling)
        wrap(sd_samplers_common.Sampler, "callback_state", self._around_report)
        wrap(sd_samplers_common, "store_latent", self._around_preview)
        for name in ("send_model_to_cpu", "send_model_to_device", "send_model_to_trash"):
            wrap(sd_models, name, self._around_change)
        wrap(sd_hijack.StableDiffusionModelHijack, "redo_hijack", self._around_change)
        wrap(sd_vae, "reload_vae_weights", self._around_vae)
        wrap(sd_unet, "apply_unet", self._around_unet)
        trainers = (textual_inversion, "train_embedding"), (hypernetwork, "train_hypernetwork")
        api = sys.modules.get("modules.api.api")  # binds both by name: since an earlier start, to what does nothing any more
        for module, name in (*trainers, *((api, name) for _, name in trainers if hasattr(api, name))):
            wrap(module, name, self._around_change)
        wait_for_captures(self._patches)
        self.register_callbacks()
        return self.stop

    def register_callbacks(self) -> None:
        """Once, however often it is called: the WebUI forgets all callbacks when it loads its scripts again."""
        self._remove_callbacks()
        if self._end is not None:
            script_callbacks.on_cfg_denoiser(self._on_round, name="vram-pilot")
            script_callbacks.on_model_loaded(self._on_model_loaded, name="vram-pilot")

    def stop(self) -> None:
        """Undoes everything; idempotent."""
        self._forget_counter()
        if self._end is not None:
            self._end()
            self._end = None
        self._patches.undo()
        self._remove_callbacks()

    def _remove_callbacks(self) -> None:
        script_callbacks.remove_callbacks_for_function(self._on_round)
        script_callbacks.remove_callbacks_for_function(self._on_model_loaded)

    # ------------------------------------------------------------------------------------------------ what scripts tell

    def before_process(self, p: Any, mode: ModeRequest | None) -> None:
        if self.running():  # a job within a job (ADetailer): part of the outer one
            return
        self.close_lost()
        self._open, self._opener, self._batch, self._cut_short, self._phase = True, threading.get_ident(), 0, False, None
        self._tell.job_started(JobInfo(_request(p), mode))
        self._enter("load")

    def prepared(self) -> None:
        """The job's own checkpoint and VAE are loaded. What comes next encodes: an initial image, then the prompts."""
        if not self._nested():
            self._enter("encode")

    def before_batch(self, number: int) -> None:
        if not self._nested():
            self._batch = number
            self._enter("encode")

    def after_sampling(self) -> None:
        self._enter("decode")

    def after_batch(self) -> None:
        self._enter("other")

    # ------------------------------------------------------------------------------------------------ state

    def running(self) -> bool:
        """Whether a job is between its start and its end on some thread."""
        return self._depth > 0

    def close_lost(self) -> None:
        """Ends a job that started but never came to sampling, and that the WebUI did not close either."""
        if self._open and not self.running():
            self._finish("error", _GAVE_UP)

    def _nested(self) -> bool:
        return self._depth > 1

    def _enter(self, phase: str) -> None:
        if self._open and phase != self._phase:
            self._phase = phase
            self._tell.phase_started(phase)

    # ------------------------------------------------------------------------------------------------ a job's course

    def _around_job(self, original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
        if self._thread is not None and self._thread != threading.get_ident():
            return original(p, *args, **kwargs)
        self._thread = threading.get_ident()
        if not self.running():
            self._ended.clear()
            self._queued = not _is_free(queue_lock)
        self._depth += 1
        status, error = "ok", None
        try:
            return original(p, *args, **kwargs)
        except BaseException as problem:
            status, error = _failure(problem)
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._thread = None
                cut_short = self._cut_short or shared.state.interrupted or shared.state.stopping_generation
                self._finish("interrupted" if status == "ok" and cut_short else status, error)
                self._ended.set()

    def _around_close(self, original: Callable[..., Any], p: Any, *args: Any, **kwargs: Any) -> Any:
        """The WebUI closes every job, also after an exception, which is then still being handled."""
        result = original(p, *args, **kwargs)
        if self._open and not self.running() and self._opener == threading.get_ident():
            problem = sys.exc_info()[1]
            self._finish(*(("error", _GAVE_UP) if problem is None else _failure(problem)))
        return result

    def _finish(self, status: str, error: str | None) -> None:
        self._forget_counter()
        self._steps = None
        was_open, self._open, self._opener = self._open, False, None
        if was_open:
            self._tell.job_finished(status, error)

    def _around_sampling(self, original: Callable[..., Any], sampler: Any, steps: int, *args: Any, **kwargs: Any) -> Any:
        """One pass of a sampler: base, hires, or one of a job within a job."""
        if not self._here():
            return original(sampler, steps, *args, **kwargs)
        p, config = sampler.p, sampler.config
        self._hires = bool(getattr(p, "is_hr_pass", False))
        self._steps = StepCounter(steps, name=config.name, second_order=bool(config.options.get("second_order", False)))
        self._enter("denoise")
        try:
            result = original(sampler, steps, *args, **kwargs)
        finally:
            self._steps = None
            self._cut_short = self._cut_short or shared.state.skipped or shared.state.interrupted
        latent_upscale = (
            getattr(p, "enable_hr", False) and not self._hires and getattr(p, "latent_scale_mode", None) is not None
        )
        self._enter("other" if latent_upscale else "decode")
        return result

    def _around_report(self, original: Callable[..., Any], sampler: Any, *args: Any, **kwargs: Any) -> Any:
        if self._steps is not None and self._here():
            self._steps.report()
        return original(sampler, *args, **kwargs)

    def _around_preview(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Where components move, previews are decoded on this thread, on which a preview that fails would end the job."""
        if not self._weights_are_ours():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except Exception as problem:
            if not self._preview_failed:
                self._preview_failed = True
                log.warning("VRAM Pilot: a live preview failed (%s); the job goes on", describe(problem))
            return None

    def _on_round(self, params: Any) -> None:
        """Before each round of denoiser calls."""
        if self._steps is None or not self._here():
            return
        self._count_calls()
        if self._steps.round():
            name = "hires" if self._hires else "base"
            self._tell.step_started(StepInfo(self._steps.index, self._steps.total, name, self._batch))

    def _here(self) -> bool:
        """Whether a job of ours runs on this thread."""
        return self._open and self._thread == threading.get_ident()

    def _count_calls(self) -> None:
        """Counts forwards of the denoiser in force; a refiner exchanges it in mid-job."""
        module = sd_models.model_data.sd_model.model.diffusion_model
        if module is not self._counted:
            self._forget_counter()
            self._counted = module
            self._counter = module.register_forward_pre_hook(lambda _module, _args: self._tell.call_started(), prepend=True)

    def _forget_counter(self) -> None:
        if self._counter is not None:
            self._counter.remove()
        self._counter = self._counted = None

    # ------------------------------------------------------------------------------------------------ the model changes

    def _around_change(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The host gets its own weights back before it moves, replaces or trains them."""
        if self._weights_are_ours() and self._thread not in (None, threading.get_ident()):
            if self._queued:
                with queue_lock:  # another thread's unload waits until the running job is done
                    return self._change(original, *args, **kwargs)
            self._ended.wait()  # the queue may be this thread's own
        return self._change(original, *args, **kwargs)

    def _change(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._tell.model_changing()
        try:
            return original(*args, **kwargs)
        finally:
            self._tell.model_changed()

    def _around_vae(self, original: Callable[..., Any], sd_model: Any = None, vae_file: Any = sd_vae.unspecified) -> Any:
        """The WebUI asks at many places, and mostly nothing is to be done."""
        current = sd_model or sd_models.model_data.sd_model
        if current is not None:
            chosen = vae_file is not sd_vae.unspecified
            wanted = vae_file if chosen else sd_vae.resolve_vae(current.sd_checkpoint_info.filename).vae
            if wanted == sd_vae.loaded_vae_file:
                return original(sd_model, vae_file)
        return self._around_change(original, sd_model, vae_file)

    def _around_unet(self, original: Callable[..., Any], option: Any = None) -> Any:
        """Another extension's way to execute the denoiser comes or goes; mostly there is none."""
        if sd_unet.get_unet_option(option) == sd_unet.current_unet_option:
            return original(option)
        return self._around_change(original, option)

    def _on_model_loaded(self, model: Any) -> None:
        self._tell.model_changing()
        self._tell.model_changed()


def _is_free(lock: Any) -> bool:
    """Whether nobody holds it."""
    free = bool(lock.acquire(blocking=False))
    if free:
        lock.release()
    return free


def _failure(problem: BaseException) -> tuple[str, str]:
    """(status, one line) for what ended a job."""
    return "oom" if is_out_of_memory(problem) else "error", describe(problem)


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
