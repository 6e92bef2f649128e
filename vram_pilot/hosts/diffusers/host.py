"""A user's own diffusers pipeline as a `Host`.

A job is one call of the pipeline. A step begins with the first call of the UNet after the scheduler's step before; the other
parts tell their phase when they are called.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any

import diffusers
import torch

from vram_pilot.errors import HostError, RefusedError
from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.hosts.base import Capabilities, Component, HostListener, JobInfo, ModelInfo, StepInfo
from vram_pilot.hosts.diffusers.checks import models, obstacle
from vram_pilot.hosts.diffusers.intercept import after, before, intercept
from vram_pilot.hosts.telling import Teller
from vram_pilot.oom import describe, is_out_of_memory

#: Methods that move the pipeline; they would fight with the mode in force.
MOVERS = (
    *("to", "enable_model_cpu_offload", "enable_sequential_cpu_offload", "enable_group_offload", "reset_device_map"),
    *("enable_xformers_cpu_offload",),
)
#: Methods that add, remove or rewrite weights: done while everything is as it was launched.
CHANGERS = (
    *("load_lora_weights", "unload_lora_weights", "fuse_lora", "unfuse_lora", "delete_adapters", "load_textual_inversion"),
    *("unload_textual_inversion", "load_ip_adapter", "unload_ip_adapter"),
)
_ROLES = {"unet": "denoiser", "vae": "vae"}


class DiffusersHost:
    """device: where to compute while a mode of ours is in force; the pipeline's own otherwise."""

    name = "diffusers"
    version = diffusers.__version__

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self._pipe = pipe
        self._device = device
        self._tell = Teller()
        self._queue = threading.Lock()
        self._owner: int | None = None  # the thread whose job holds the queue
        self._stop = threading.Event()
        self._taken_over = False
        self._undo: list[Callable[[], None]] = []
        self._parts: dict[str, Any] = {}
        self._attentions: list[Any] = []
        self._scheduler: Any = None
        self._phase: str | None = None
        self._step = -1
        self._stepped = True

    # ------------------------------------------------------------------------------------------------ as a Host

    def capabilities(self) -> Capabilities:
        return Capabilities(hires=False)

    def device(self) -> torch.device:
        return self._device

    def model(self) -> ModelInfo | None:
        config = self._pipe.unet.config
        xl = getattr(config, "addition_embed_type", None) == "text_time"
        family = "sdxl" if xl else "sd2" if getattr(config, "cross_attention_dim", None) == 1024 else "sd1"
        source = str(getattr(self._pipe.config, "_name_or_path", "") or "").replace("\\", "/").rstrip("/")
        return ModelInfo(family, source.rpartition("/")[2] or type(self._pipe).__name__)

    def components(self) -> tuple[Component, ...]:
        return tuple(_component(name, module) for name, module in self._parts.items())

    def obstacle(self) -> str | None:
        found = obstacle(self._pipe)
        return None if found is None else found[0]

    def computation_state(self) -> Hashable:
        """The attention processors and FreeU's factors, which diffusers keeps as plain attributes."""
        processors = tuple(module.processor for module in self._attentions)
        for processor in processors:
            if not type(processor).__module__.startswith("diffusers.models."):
                raise NotCapturable(f"the attention processor {type(processor).__name__} is not diffusers' own")
        blocks = getattr(self._pipe.unet, "up_blocks", ())
        return processors, tuple(getattr(block, name, None) for block in blocks for name in ("s1", "s2", "b1", "b2"))

    def take_over_offload(self, serial_previews: bool) -> None:
        self._taken_over = True

    def give_back_offload(self) -> None:
        self._taken_over = False

    def subscribe(self, listener: HostListener) -> Callable[[], None]:
        return self._tell.subscribe(listener)

    def run_when_idle(self, work: Callable[[], None]) -> bool:
        if not self._queue.acquire(blocking=False):
            return False
        try:
            work()
        finally:
            self._queue.release()
        return True

    def interrupt(self) -> None:
        """The running call of the pipeline ends at its next step with HostError."""
        self._stop.set()

    # ------------------------------------------------------------------------------------------------ attaching

    def attach(self) -> None:
        """Begins to listen to the pipeline. After an exception nothing is changed."""
        try:
            self._undo.append(intercept(self._pipe, self._pipeline_members()))
            self._listen_to_parts()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._parts, self._attentions, self._scheduler = {}, [], None

    def _listen_to_parts(self) -> None:
        self._parts, self._scheduler = models(self._pipe), self._pipe.scheduler
        self._attentions = [module for module in self._pipe.unet.modules() if hasattr(module, "processor")]
        for name, module in self._parts.items():
            self._undo.append(intercept(module, self._part_members(name, module)))
        self._undo.append(intercept(self._scheduler, after(self._scheduler, "step", self._scheduler_stepped)))

    def _follow_replaced_parts(self) -> None:
        """The user may have put another model or scheduler into the pipeline since the last job."""
        now = models(self._pipe)
        same = list(now.items()) == list(self._parts.items())
        if same and self._pipe.scheduler is self._scheduler:
            return
        if not same:
            self._tell.model_changing()
        while len(self._undo) > 1:
            self._undo.pop()()
        self._listen_to_parts()
        if not same:
            self._tell.model_changed()

    def _part_members(self, name: str, module: Any) -> dict[str, Any]:
        if name == "unet":
            return before(module, "__call__", self._unet_called)
        if name == "vae":
            encode = before(module, "encode", functools.partial(self._enter, "encode"))
            return {**encode, **before(module, "decode", functools.partial(self._enter, "decode"))}
        phase = "encode" if name.startswith("text_encoder") else "other"
        return before(module, "__call__", functools.partial(self._enter, phase, once=phase == "other"))

    def _pipeline_members(self) -> dict[str, Any]:
        base = type(self._pipe)
        members: dict[str, Any] = {"__call__": self._job_method(base.__call__)}
        for name in ("device", "_execution_device"):
            members[name] = property(functools.partial(self._where, getattr(base, name).fget))
        members.update({name: _refusing(base, name) for name in MOVERS if hasattr(base, name)})
        members.update({name: self._changing(getattr(base, name)) for name in CHANGERS if hasattr(base, name)})
        return members

    def _where(self, own: Callable[[Any], torch.device], pipe: Any) -> torch.device:
        """A mode may have sent the part away that the pipeline would ask for its device."""
        return self._device if self._taken_over else own(pipe)

    def _changing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def changing(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            with self._queue:
                self._tell.model_changing()
                try:
                    return method(pipe, *args, **kwargs)
                finally:
                    self._tell.model_changed()

        return changing

    # ------------------------------------------------------------------------------------------------ a job

    def _job_method(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def job(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            if self._owner == threading.get_ident():  # called from a callback of its own job: part of that job
                return call(pipe, *args, **kwargs)
            with self._queue:
                self._owner = threading.get_ident()
                try:
                    return self._run(call, pipe, args, kwargs)
                finally:
                    self._owner = None

        return job

    def _run(self, call: Callable[..., Any], pipe: Any, args: Any, kwargs: Any) -> Any:
        self._follow_replaced_parts()
        self._stop.clear()
        self._phase, self._step, self._stepped = None, -1, True
        self._tell.job_started(JobInfo(job_request(call, pipe, args, kwargs)))
        try:
            answer = call(pipe, *args, **kwargs)
        except BaseException as error:
            stopped = self._stop.is_set() or not isinstance(error, Exception)
            status = "interrupted" if stopped else "oom" if is_out_of_memory(error) else "error"
            self._tell.job_finished(status, describe(error))
            raise
        self._tell.job_finished("interrupted" if getattr(pipe, "_interrupt", False) else "ok")
        return answer

    def _enter(self, phase: str, once: bool = False) -> None:
        """once: not when a phase has begun already; a part in the middle of the denoising (a ControlNet) is no phase."""
        if self._owner != threading.get_ident() or phase == self._phase or (once and self._phase == "denoise"):
            return
        self._phase = phase
        self._tell.phase_started(phase)

    def _unet_called(self) -> None:
        if self._owner != threading.get_ident():
            return
        self._enter("denoise")
        if self._stepped and getattr(self._scheduler, "state_in_first_order", True):
            if self._stop.is_set():
                raise HostError("The generation was stopped")
            self._step += 1
            self._tell.step_started(StepInfo(self._step, self._total_steps()))
        self._stepped = False
        self._tell.call_started()

    def _scheduler_stepped(self) -> None:
        self._stepped = True

    def _total_steps(self) -> int:
        """A scheduler of second order has two entries a step, one in the last."""
        entries = int(getattr(self._pipe, "_num_timesteps", 0) or 0)
        order = int(getattr(self._scheduler, "order", 1))
        return max(-(-entries // order), self._step + 1)


def _component(name: str, module: torch.nn.Module) -> Component:
    if name.startswith("text_encoder"):
        return Component(name, "text_encoder", module)
    role = _ROLES.get(name)
    return Component(f"other:{name}", "other", module) if role is None else Component(role, role, module)


def _refusing(base: type, name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(base, name))
    def refuse(pipe: Any, *args: Any, **kwargs: Any) -> Any:
        raise RefusedError(f"{name} would move models that a mode of VRAM Pilot looks after", do="Detach first.")

    return refuse


def job_request(call: Callable[..., Any], pipe: Any, args: Any, kwargs: Any) -> dict[str, object]:
    """What a call of the pipeline asks for, without prompts. None where it does not say."""
    try:
        bound = inspect.signature(call).bind_partial(pipe, *args, **kwargs)
    except TypeError:  # the pipeline itself will say what is wrong
        return {}
    bound.apply_defaults()
    asked = bound.arguments
    size = None if asked.get("image") is not None else _default_size(pipe)
    prompts = asked.get("prompt") if asked.get("prompt") is not None else asked.get("prompt_embeds")
    count = 1 if isinstance(prompts, str) or prompts is None else len(prompts)
    return {
        "width": asked.get("width") or size,
        "height": asked.get("height") or size,
        "batch_size": count * int(asked.get("num_images_per_prompt") or 1),
        "n_iter": 1,
        "steps": asked.get("num_inference_steps"),
        "sampler": type(pipe.scheduler).__name__,
        "cfg_scale": asked.get("guidance_scale"),
        "hires": None,
    }


def _default_size(pipe: Any) -> int | None:
    samples, scale = getattr(pipe.unet.config, "sample_size", None), getattr(pipe, "vae_scale_factor", None)
    return samples * scale if isinstance(samples, int) and isinstance(scale, int) else None
