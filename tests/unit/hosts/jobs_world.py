"""A WebUI under our Jobs, for the tests of what they tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.a1111 import installed
from tests.fakes.listening import RecordingListener


class Denoiser(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def model() -> Any:
    info = SimpleNamespace(filename="model.safetensors", model_name="model")
    return SimpleNamespace(sd_checkpoint_info=info, model=SimpleNamespace(diffusion_model=Denoiser()), lowvram=False)


class Script:
    """The part of our script that tells jobs."""

    def __init__(self, jobs: Any) -> None:
        self.jobs = jobs

    def before_process(self, p: Any) -> None:
        self.jobs.before_process(p, None)

    def process(self, p: Any) -> None:
        self.jobs.prepared()

    def before_process_batch(self, p: Any, batch_number: int) -> None:
        self.jobs.before_batch(batch_number)

    def post_sample(self, p: Any, ps: Any) -> None:
        self.jobs.after_sampling()

    def postprocess_batch(self, p: Any, batch_number: int) -> None:
        self.jobs.after_batch()


class World:
    """A WebUI with a model, our Jobs in it, and a listener that writes down."""

    def __init__(self, webui: Any) -> None:
        from vram_pilot.hosts.a1111.jobs import Jobs

        self.webui = webui
        self.ours = False
        self.jobs = Jobs(lambda: self.ours)
        self.heard = RecordingListener()
        webui.sd_models.model_data.sd_model = model()
        self.stop = self.jobs.start(self.heard)

    def job(self, **more: Any) -> Any:
        return self.webui.processing.StableDiffusionProcessingTxt2Img(scripts=[Script(self.jobs)], **more)

    def run(self, **more: Any) -> None:
        """As the API does it: the job is closed whatever happens."""
        with closing(self.job(**more)) as p:
            self.webui.processing.process_images(p)

    def short(self) -> list[Any]:
        """Events without their details, calls and steps counted where they follow one another."""
        names = [event[1] if event[0] == "phase" else event[0] for event in self.heard.events]
        return [name for name in names if name not in ("step", "call")]

    def steps(self) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.heard.named("step")]


@pytest.fixture
def world() -> Iterator[World]:
    with installed() as webui:
        yield World(webui)
