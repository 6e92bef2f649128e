"""What one txt2img job may ask for, checked before anything is loaded. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vram_pilot.errors import UsageError

#: The samplers by the names that WebUIs use.
SAMPLERS = ("Euler", "Euler a", "DPM++ 2M", "Heun", "DDIM")
MIN_SIDE = 64
MAX_SIDE = 8192
MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class ImageRequest:
    """One job. width, height: pixels, multiples of 8. steps: sampler iterations of the base pass. seed: of the first image,
    each further one takes the next number. hires_scale: None for no second pass; hires_strength: share of the steps that it
    repeats."""

    prompt: str = ""
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    steps: int = 20
    sampler: str = "Euler a"
    cfg_scale: float = 7.0
    batch_size: int = 1
    n_iter: int = 1
    seed: int = 0
    hires_scale: float | None = None
    hires_strength: float = 0.7

    def __post_init__(self) -> None:
        """Raises UsageError that names the field, what was found and what is allowed."""
        for side in ("width", "height"):
            _whole(side, getattr(self, side), MIN_SIDE, MAX_SIDE)
            if getattr(self, side) % 8:
                raise UsageError(
                    f"The {side} is not a multiple of 8", found=getattr(self, side), do=_multiples(getattr(self, side))
                )
        _text("prompt", self.prompt)
        _text("negative prompt", self.negative_prompt)
        _whole("number of steps", self.steps, 1, 500)
        _whole("batch size", self.batch_size, 1, 64)
        _whole("batch count", self.n_iter, 1, 1000)
        _whole("seed", self.seed, 0, MAX_SEED)
        _number("cfg scale", self.cfg_scale, 1.0, 100.0)
        if self.sampler not in SAMPLERS:
            raise UsageError("There is no such sampler", found=self.sampler, do="Use one of: " + ", ".join(SAMPLERS) + ".")
        if self.hires_scale is not None:
            self._check_hires(self.hires_scale)

    def _check_hires(self, scale: float) -> None:
        if not _is_number(scale) or not 1.0 < scale <= 4.0:
            raise UsageError("The hires scale is not allowed", found=scale, do="Use a number above 1, up to 4.")
        _number("hires strength", self.hires_strength, 0.01, 1.0)
        if max(self.pass_size("hires")) > MAX_SIDE:
            raise UsageError(
                "The hires size is too large",
                found="{}x{}".format(*self.pass_size("hires")),
                do=f"Stay below {MAX_SIDE} a side.",
            )

    def pass_size(self, pass_name: str) -> tuple[int, int]:
        """(width, height) in pixels of the "base" or the "hires" pass."""
        if pass_name == "base" or self.hires_scale is None:
            return self.width, self.height
        return int(self.width * self.hires_scale) // 8 * 8, int(self.height * self.hires_scale) // 8 * 8

    def hires_steps(self) -> int:
        """Steps that the hires pass runs: the last ones of a schedule as long as the base pass's."""
        return max(1, math.floor(self.steps * self.hires_strength))

    def seed_of(self, index: int) -> int:
        """The seed of image `index` of the job, counted through all batches."""
        return (self.seed + index) % (MAX_SEED + 1)

    def to_job(self) -> dict[str, object]:
        """As `JobInfo.request`: everything but prompts and seed."""
        width, height = self.pass_size("hires")
        hires = {"width": width, "height": height, "steps": self.hires_steps(), "scale": self.hires_scale}
        return {
            "width": self.width,
            "height": self.height,
            "batch_size": self.batch_size,
            "n_iter": self.n_iter,
            "steps": self.steps,
            "sampler": self.sampler,
            "cfg_scale": self.cfg_scale,
            "hires": hires if self.hires_scale is not None else None,
        }


def parse_size(text: str) -> tuple[int, int]:
    """(width, height) of "512x768". Raises UsageError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", text)
    if match is None:
        raise UsageError("A size is two whole numbers with an x between them", found=text, do="Write for example 512x768.")
    return int(match[1]), int(match[2])


def parse_sampler(text: str) -> str:
    """The sampler's proper name, however it is capitalised. Raises UsageError for an unknown one."""
    for name in SAMPLERS:
        if name.lower() == text.strip().lower():
            return name
    raise UsageError("There is no such sampler", found=text, do="Use one of: " + ", ".join(SAMPLERS) + ".")


def infotext(request: ImageRequest, index: int, model: str, digest: str | None, extra: Mapping[str, str]) -> str:
    """The generation parameters of image `index` as WebUIs write them into a PNG, prompt included."""
    fields: dict[str, object] = {
        "Steps": request.steps,
        "Sampler": request.sampler,
        "CFG scale": f"{request.cfg_scale:g}",
        "Seed": request.seed_of(index),
        "Size": f"{request.width}x{request.height}",
    }
    if digest is not None:
        fields["Model hash"] = digest
    fields["Model"] = model
    if request.hires_scale is not None:
        fields["Denoising strength"] = f"{request.hires_strength:g}"
        fields["Hires upscale"] = f"{request.hires_scale:g}"
        fields["Hires upscaler"] = "Latent"
    lines = [request.prompt]
    if request.negative_prompt:
        lines.append(f"Negative prompt: {request.negative_prompt}")
    lines.append(", ".join(f"{key}: {_quoted(str(value))}" for key, value in {**fields, **extra}.items()))
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if any(mark in text for mark in ",\n:") else text


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(name: str, value: object, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:  # type: ignore[operator]
        raise UsageError(f"The {name} is not allowed", found=value, do=f"Use a number from {low:g} to {high:g}.")


def _text(name: str, value: object) -> None:
    """Halves of surrogate pairs, which stand for bytes that are no UTF-8 as well, cannot be written into an image."""
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(f"The {name} is no text that can be written as UTF-8", found=value, do="Type it again.")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"The {name} is not allowed", found=value, do=f"Use a whole number from {low} to {high}.")


def _multiples(value: int) -> str:
    low = max(MIN_SIDE, value // 8 * 8)
    return f"Use {low} or {low + 8}."
