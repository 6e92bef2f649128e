"""A host without a program behind it: a model, a queue, and a job that runs on the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.fakes.models import LDM, Family
from vram_pilot.hosts.base import Capabilities, Component, Host, HostListener, JobInfo, ModelInfo, StepInfo
from vram_pilot.oom import is_out_of_memory
from vram_pilot.settings import ModeRequest


class FakeHost:
    """Computes on the CPU; `components_now` may be exchanged as a host exchanges its model.

    faults: what the listener raised. As in every adapter, it goes no further.
    """

    name, version = "fake", "1"

    def __init__(self, components: tuple[Component, ...], family: Family = LDM) -> None:
        self.components_now = components
        self.family = family
        self.queue = threading.Lock()
        self.taken_over: bool | None = None
        self.listener: HostListener | None = None
        self.interrupted = False
        self.interrupts = 0
        self.blocked_by: str | None = None
        self.faults: list[Exception] = []
        self.status: tuple[str, str | None] | None = None  # of the last job

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def device(self) -> torch.device:
        return torch.device("cpu")

    def model(self) -> ModelInfo | None:
        return ModelInfo("sd1", "fake") if self.components_now else None

    def components(self) -> tuple[Component, ...]:
        return self.components_now

    def obstacle(self) -> str | None:
        return self.blocked_by

    def computation_state(self) -> None:
        return None

    def take_over_offload(self, serial_previews: bool) -> None:
        self.taken_over = serial_previews

    def give_back_offload(self) -> None:
        self.taken_over = None

    def subscribe(self, listener: HostListener) -> Callable[[], None]:
        self.listener = listener
        return lambda: setattr(self, "listener", None)

    def run_when_idle(self, work: Callable[[], None]) -> bool:
        if not self.queue.acquire(blocking=False):
            return False
        try:
            work()
        finally:
            self.queue.release()
        return True

    def interrupt(self) -> None:
        self.interrupted = True
        self.interrupts += 1

    # ---------------------------------------------------------------------------------------------------- its models

    def exchange(self, components: tuple[Component, ...]) -> None:
        """Loads another model, or with () unloads, and says so as a host does. Within a job or between jobs."""
        self._tell("model_changing")
        self.components_now = components
        self._tell("model_changed")

    def module(self, role: str) -> torch.nn.Module:
        return next(component.module for component in self.components_now if component.role == role)

    # ---------------------------------------------------------------------------------------------------- generating

    @torch.no_grad()
    def generate(
        self,
        steps: int = 3,
        mode: ModeRequest | None = None,
        at_step: Callable[[int], None] | None = None,
        seed: int = 7,
    ) -> torch.Tensor:
        """One job: encode, `steps` denoiser calls, decode. Answers the image (1, 3, height, width)."""
        family = self.family
        latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
        with self.queue:
            self._tell("job_started", JobInfo({"steps": steps, "width": 64, "height": 64}, mode))
            status, error = "ok", None
            try:
                self._tell("phase_started", "encode")
                states = family.encode(self.module("text_encoder"), torch.arange(8)[None])
                self._tell("phase_started", "denoise")
                for index in range(steps):
                    if self.interrupted:
                        status = "interrupted"
                        break
                    self._tell("step_started", StepInfo(index, steps))
                    if at_step is not None:
                        at_step(index)
                    self._tell("call_started")
                    time = torch.tensor([900.0 - 100 * index])
                    latent = latent - 0.1 * family.denoise(self.module("denoiser"), latent, time, states)
                self._tell("phase_started", "decode")
                return family.decode(self.module("vae"), latent)
            except BaseException as problem:
                status = "oom" if is_out_of_memory(problem) else "error"
                error = str(problem)
                raise
            finally:
                self.interrupted = False
                self.status = status, error
                self._tell("job_finished", status, error)

    def _tell(self, event: str, *args: Any) -> None:
        if self.listener is None:
            return
        try:
            getattr(self.listener, event)(*args)
        except Exception as fault:
            self.faults.append(fault)


def as_host(fake: FakeHost) -> Host:
    """For the type checker: the fake meets the protocol."""
    return fake
