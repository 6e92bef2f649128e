"""WebUI sampler names to diffusers schedulers, with Stable Diffusion's noise schedule."""

from __future__ import annotations

from typing import Any

from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
)

from vram_pilot.hosts.standalone.architectures import Architecture

_SCHEDULE = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
_SPACED = {"timestep_spacing": "leading", "steps_offset": 1}
_CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Euler": (EulerDiscreteScheduler, {}),
    "Euler a": (EulerAncestralDiscreteScheduler, {}),
    "DPM++ 2M": (DPMSolverMultistepScheduler, {"algorithm_type": "dpmsolver++", "solver_order": 2}),
    "Heun": (HeunDiscreteScheduler, {}),
    "DDIM": (DDIMScheduler, {"clip_sample": False, "set_alpha_to_one": False}),
}
#: Names whose class can bring the last step's signal to zero, as some v-prediction models want.
_ZERO_SNR = ("Euler", "Euler a", "DPM++ 2M", "DDIM")


def names() -> tuple[str, ...]:
    return tuple(_CLASSES)


def make(name: str, architecture: Architecture) -> Any:
    """A scheduler of its own for one pass. Two model calls a step where its `order` is 2."""
    scheduler, more = _CLASSES[name]
    config = {**_SCHEDULE, **_SPACED, **more, "prediction_type": architecture.prediction}
    if architecture.zero_snr and name in _ZERO_SNR:
        config.update(rescale_betas_zero_snr=True, timestep_spacing="trailing")
    return scheduler(**config)
