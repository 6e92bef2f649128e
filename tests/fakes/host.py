"""A host without a program behind it: a model, a queue, and a job that runs on the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from vram_pilot.hosts.base import Capabilities, Component, Host, HostListener, JobInfo, ModelInfo, StepInfo
from vram_pilot.settings import ModeRequest


class FakeHost:
    """Computes on the CPU; `components_now` may be exchanged as a host exchanges its model."""

    name, version = "fake", "1"

    def __init__(self, components: tuple[Component, ...]) -> None:
        self.components_now = components
        self.queue = threading.Lock()
        self.taken_over: bool | None = None
        self.listener: HostListener | None = None
        self.interrupted = False
        self.blocked_by: str | None = None

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

    # ---------------------------------------------------------------------------------------------------- generating

    def module(self, role: str) -> torch.nn.Module:
        return next(component.module for component in self.components_now if component.role == role)

    @torch.no_grad()
    def generate(
        self,
        steps: int = 3,
        mode: ModeRequest | None = None,
        at_step: Callable[[int], None] | None = None,
        seed: int = 7,
    ) -> torch.Tensor:
        """One job: encode, `steps` denoiser calls, decode. Answers the image (1, 3, 8, 8)."""
        listener = self.listener
        assert listener is not None
        generator = torch.Generator().manual_seed(seed)
        latent = torch.randn(1, 4, 8, 8, generator=generator)
        with self.queue:
            listener.job_started(JobInfo({"steps": steps, "width": 64, "height": 64}, mode))
            status, error = "ok", None
            try:
                listener.phase_started("encode")
                states = self.module("text_encoder")(torch.arange(8)[None])
                listener.phase_started("denoise")
                for index in range(steps):
                    if self.interrupted:
                        status = "interrupted"
                        break
                    listener.step_started(StepInfo(index, steps))
                    if at_step is not None:
                        at_step(index)
                    listener.call_started()
                    time = torch.tensor([900.0 - 100 * index])
                    latent = latent - 0.1 * self.module("denoiser")(latent, time, states)
                listener.phase_started("decode")
                return self.module("vae").decode(latent)
            except BaseException as problem:
                status = "oom" if "out of memory" in str(problem) else "error"
                error = str(problem)
                raise
            finally:
                self.interrupted = False
                listener.job_finished(status, error)


def as_host(fake: FakeHost) -> Host:
    """For the type checker: the fake meets the protocol."""
    return fake
