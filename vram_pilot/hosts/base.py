"""What the rest of the package may know of the program that generates.

A host adapter turns its program's own callbacks into the few events of `HostListener`, and names the model's
components. Everything here runs on the thread that samples unless a method says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from vram_pilot.settings import ModeRequest

if TYPE_CHECKING:
    import torch

#: The phases of a job, in the order in which a plain txt2img passes through them.
PHASES = ("load", "encode", "denoise", "decode", "other")


@dataclass(frozen=True)
class Component:
    """A model part that is moved as a whole.

    name: unique in the model ("text_encoder", "text_encoder_2", "denoiser", "vae", "other:depth_model").
    role: "text_encoder", "denoiser", "vae" or "other".
    module: the live module of the host, never a copy.
    """

    name: str
    role: str
    module: torch.nn.Module


@dataclass(frozen=True)
class ModelInfo:
    """family: "sd1", "sd2", "sdxl", …; name: without folders; digest: the host's short hash, None when it has none."""

    family: str
    name: str
    digest: str | None = None


@dataclass(frozen=True)
class Capabilities:
    """What this host can do. Nothing is offered that is False here."""

    switch_in_job: bool = True
    native_offload: bool = False
    hires: bool = True
    image_to_image: bool = False
    settings: bool = False


@dataclass(frozen=True)
class JobInfo:
    """One generation job, as asked for. Never holds a prompt.

    request: width, height, batch_size, n_iter, steps, sampler, cfg_scale, hires (None or {width, height, steps, scale}).
    mode: what the job itself asks for (X/Y/Z, alwayson_scripts, accordion), None to use the standing mode.
    """

    request: dict[str, object] = field(default_factory=dict)
    mode: ModeRequest | None = None


@dataclass(frozen=True)
class StepInfo:
    """The step that is about to start. index: from 0 within its pass; total: steps of that pass; pass_name: "base" or
    "hires"; image: index of the batch (n_iter) within the job, from 0."""

    index: int
    total: int
    pass_name: str = "base"
    image: int = 0


class HostListener(Protocol):
    """What an adapter tells. Each call must return quickly and must not raise; adapters guard against it all the same."""

    def job_started(self, job: JobInfo) -> None:
        """A job begins; no component of it has run yet. Called again within a job (nested jobs) it is ignored."""

    def phase_started(self, name: str) -> None:
        """One of PHASES begins; the phase before it ends here."""

    def step_started(self, step: StepInfo) -> None:
        """The step boundary: the next denoiser call belongs to this step. Modes are switched here."""

    def call_started(self) -> None:
        """One forward of the denoiser is about to run."""

    def job_finished(self, status: str, error: str | None = None) -> None:
        """status: "ok", "interrupted", "oom" or "error". Always comes, also after an exception."""

    def model_changing(self) -> None:
        """The host is about to move, replace or rewrite weights as a whole: put everything back as it was launched."""

    def model_changed(self) -> None:
        """A model is loaded (or none is): `Host.components` gives the new one."""


class Host(Protocol):
    """The program that generates."""

    name: str
    version: str

    def capabilities(self) -> Capabilities: ...

    def device(self) -> torch.device:
        """Where the host computes."""

    def model(self) -> ModelInfo | None:
        """The loaded model, None when there is none. Never loads one."""

    def components(self) -> tuple[Component, ...]:
        """The loaded model's parts, () when there is none. Never loads one."""

    def obstacle(self) -> str | None:
        """Why no weight may be moved at present (another extension executes the denoiser, say), None when it may."""

    def computation_state(self) -> Hashable:
        """Whatever else the host's denoiser reads besides inputs, weights and torch's own switches (the networks that are
        loaded, say): a captured call is good only for one such state. Called at every denoiser call; raises
        graphs.NotCapturable when there is something that a captured call cannot repeat."""

    def take_over_offload(self, serial_previews: bool) -> None:
        """Disarms the host's own medvram/lowvram, so that it moves no weight; remembers it. Idempotent.

        serial_previews: True when live previews must be decoded on the sampling thread, since components move.
        """

    def give_back_offload(self) -> None:
        """Arms the host's own offload again, exactly as it was found, and moves weights to where it wants them."""

    def subscribe(self, listener: HostListener) -> Callable[[], None]:
        """Starts telling `listener`; the answer ends it. One listener at a time."""

    def run_when_idle(self, work: Callable[[], None]) -> bool:
        """Runs `work` now, on this thread, under the host's own queue; False at once when a job holds the queue."""

    def interrupt(self) -> None:
        """Asks the host to stop the running job at its next step. Any thread."""
