"""txt2img, step by step. Runs on one thread and tells what it does as it does it.

Latents are kept in fp32 and noise is drawn on the CPU, one generator per image, so that a seed means the same noise on every
device and in every mode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from vram_pilot.errors import VramPilotError
from vram_pilot.hosts.base import StepInfo
from vram_pilot.hosts.standalone import samplers
from vram_pilot.hosts.standalone.decoder import decode
from vram_pilot.hosts.standalone.models import Model
from vram_pilot.hosts.standalone.request import ImageRequest
from vram_pilot.hosts.standalone.tokens import encode
from vram_pilot.hosts.telling import Teller

#: Pixels of a side per latent.
SCALE = 8


class InterruptedJob(Exception):
    """The job was asked to stop; raised at a step boundary."""


@dataclass(frozen=True)
class Conditioning:
    """Row 0 for the prompt and, with guidance, row 1 for the negative prompt. states: (rows, 77, width). pooled: (rows, width)
    with SDXL, else None."""

    states: torch.Tensor
    pooled: torch.Tensor | None

    @property
    def guided(self) -> bool:
        return self.states.shape[0] == 2


@dataclass(frozen=True)
class Run:
    """What a job works with. stopped: whether it was asked to stop. note: takes what the user should know about an image."""

    model: Model
    request: ImageRequest
    device: torch.device
    tell: Teller
    stopped: Callable[[], bool]
    note: Callable[[str], None]


@torch.no_grad()
def txt2img(run: Run) -> Iterator[list[Image.Image]]:
    """The images of one batch after another.

    Raises InterruptedJob at a step boundary once the job is asked to stop, VramPilotError when the numbers are no image.
    """
    run.tell.phase_started("encode")
    conditioning = encode_prompts(run)
    for batch in range(run.request.n_iter):
        generators = [_generator(run.request, batch, index) for index in range(run.request.batch_size)]
        run.tell.phase_started("denoise")
        latents = _base_pass(run, conditioning, batch, generators)
        if run.request.hires_scale is not None:
            latents = _hires_pass(run, conditioning, batch, generators, latents)
        run.tell.phase_started("decode")
        yield decode(run.model.vae, latents, run.note)


def encode_prompts(run: Run) -> Conditioning:
    """Runs the text encoders once for prompt and negative prompt; the latter is left out without guidance."""
    request, model = run.request, run.model
    texts = [request.prompt, request.negative_prompt] if request.cfg_scale > 1 else [request.prompt]
    states, pooled = [], None
    for encoder, shape in zip(model.text_encoders, model.architecture.text_encoders):
        numbers = torch.tensor([encode(model.tokenizer, text, shape.pad_token) for text in texts]).to(run.device)
        found = encoder(input_ids=numbers, output_hidden_states=True)
        states.append(found.hidden_states[-2] if model.info.family == "sdxl" else found.last_hidden_state)
        pooled = found.text_embeds if shape.projected else pooled
    together = torch.cat(states, dim=-1)
    if model.info.family == "sdxl" and len(texts) == 2 and not texts[1].strip():
        # SDXL was trained with zeros for "no prompt", not with the encoding of an empty one
        together[1].zero_()
        assert pooled is not None
        pooled[1].zero_()
    return Conditioning(together, pooled)


def _generator(request: ImageRequest, batch: int, index: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(request.seed_of(batch * request.batch_size + index))


def _noise(generators: list[torch.Generator], size: tuple[int, int], device: torch.device) -> torch.Tensor:
    """(batch, 4, height/8, width/8) in fp32. size: (width, height) in pixels."""
    width, height = size
    return torch.stack([torch.randn(4, height // SCALE, width // SCALE, generator=one) for one in generators]).to(device)


def _base_pass(run: Run, conditioning: Conditioning, batch: int, generators: list[torch.Generator]) -> torch.Tensor:
    scheduler = samplers.make(run.request.sampler, run.model.architecture)
    scheduler.set_timesteps(run.request.steps)
    noise = _noise(generators, run.request.pass_size("base"), run.device)
    return _denoise(run, scheduler, conditioning, noise * float(scheduler.init_noise_sigma), generators, batch, "base", 0)


def _hires_pass(
    run: Run, conditioning: Conditioning, batch: int, generators: list[torch.Generator], latents: torch.Tensor
) -> torch.Tensor:
    """Enlarges the latents, adds the noise of a later step, and repeats the steps from there."""
    size = run.request.pass_size("hires")
    large = torch.nn.functional.interpolate(latents, size=(size[1] // SCALE, size[0] // SCALE), mode="bilinear")
    scheduler = samplers.make(run.request.sampler, run.model.architecture)
    scheduler.set_timesteps(run.request.steps)
    first = run.request.steps - run.request.hires_steps()
    start = scheduler.timesteps[first * scheduler.order].reshape(1)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(first * scheduler.order)
    noised = scheduler.add_noise(large, _noise(generators, size, run.device), start.repeat(len(generators)))
    return _denoise(run, scheduler, conditioning, noised, generators, batch, "hires", first)


def _denoise(
    run: Run,
    scheduler: Any,
    conditioning: Conditioning,
    latents: torch.Tensor,
    generators: list[torch.Generator],
    batch: int,
    pass_name: str,
    first: int,
) -> torch.Tensor:
    """The sampling loop from step `first` on. The step boundary comes before anything that belongs to the step."""
    extra = {"generator": generators} if "generator" in inspect.signature(scheduler.step).parameters else {}
    inputs = _unet_inputs(run, conditioning, len(generators), pass_name)
    timesteps = scheduler.timesteps[first * scheduler.order :]  # on the CPU, so that the scheduler never waits for the device
    on_device = timesteps.to(run.device)
    total, index = run.request.steps - first, 0
    for timestep, device_timestep in zip(timesteps, on_device):
        if getattr(scheduler, "state_in_first_order", True):
            if run.stopped():
                raise InterruptedJob
            run.tell.step_started(StepInfo(index, total, pass_name, batch))
            index += 1
        scaled = scheduler.scale_model_input(latents, timestep)
        predicted = _predict(run, scaled, device_timestep, conditioning.guided, inputs)
        latents = scheduler.step(predicted, timestep, latents, return_dict=False, **extra)[0]
    if not bool(torch.isfinite(latents).all()):
        raise VramPilotError(
            "The denoiser gave numbers that are no image",
            found="NaN or infinity",
            do="Try another sampler or a lower CFG scale.",
        )
    return latents


def _unet_inputs(run: Run, conditioning: Conditioning, batch_size: int, pass_name: str) -> dict[str, Any]:
    """What the UNet gets at every step: states, with SDXL also the pooled vector and six size numbers. Negative rows first."""
    order = [1] * batch_size + [0] * batch_size if conditioning.guided else [0] * batch_size
    dtype = run.model.unet.dtype
    inputs: dict[str, Any] = {"encoder_hidden_states": conditioning.states[order].to(dtype)}
    if conditioning.pooled is not None:
        width, height = run.request.pass_size(pass_name)
        sizes = torch.tensor([[height, width, 0, 0, height, width]] * len(order), dtype=dtype).to(run.device)
        inputs["added_cond_kwargs"] = {"text_embeds": conditioning.pooled[order].to(dtype), "time_ids": sizes}
    return inputs


def _predict(run: Run, latents: torch.Tensor, timestep: torch.Tensor, guided: bool, inputs: dict[str, Any]) -> torch.Tensor:
    """One call of the denoiser, guided or not, in fp32."""
    unet = run.model.unet
    doubled = torch.cat([latents, latents]) if guided else latents
    run.tell.call_started()
    predicted: torch.Tensor = unet(doubled.to(unet.dtype), timestep, return_dict=False, **inputs)[0].float()
    if not guided:
        return predicted
    negative, positive = predicted.chunk(2)
    guided_prediction: torch.Tensor = negative + run.request.cfg_scale * (positive - negative)
    return guided_prediction
