"""One generation in the real order of its events. What the sampler does is a text: "r" a round of denoiser calls, "c" the
sampler's report of a step, "!" raises `p.fault`."""

from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from modules import script_callbacks, sd_models, sd_samplers_common, sd_unet, shared


@dataclass
class StableDiffusionProcessing:
    width: int = 64
    height: int = 64
    batch_size: int = 1
    n_iter: int = 1
    steps: int = 2
    sampler_name: str = "Euler"
    cfg_scale: float = 7.0
    extra_generation_params: dict = field(default_factory=dict)
    scripts: list = field(default_factory=list)
    course: str = "rc" * 2
    options: dict = field(default_factory=dict)
    fault: BaseException = None
    loading: object = None
    calls: int = 1

    def __post_init__(self):
        self.comments = {}

    def comment(self, text):
        self.comments[text] = 1

    def close(self):
        pass

    def sample(self):
        _pass(self, self.course, self.steps)


@dataclass
class StableDiffusionProcessingTxt2Img(StableDiffusionProcessing):
    enable_hr: bool = False
    hr_resize_x: int = 0
    hr_resize_y: int = 0
    hr_scale: float = 2.0
    hr_second_pass_steps: int = 0
    is_hr_pass: bool = False
    latent_scale_mode: dict = None

    def sample(self):
        self.is_hr_pass = False
        super().sample()
        if self.enable_hr:
            self.is_hr_pass = True
            _pass(self, self.course, self.hr_second_pass_steps or self.steps)


def _pass(p, course, steps):
    sampler = sd_samplers_common.Sampler(p.sampler_name)
    sampler.config = sd_samplers_common.SamplerData(p.sampler_name, None, [], p.options)
    sampler.p = p
    sampler.launch_sampling(steps, lambda: _steps(p, sampler, course))


def _steps(p, sampler, course):
    for mark in course:
        if mark == "!":
            raise p.fault
        if mark == "c":
            sampler.callback_state({"i": 0})
            continue
        if shared.state.interrupted or shared.state.skipped:
            raise sd_samplers_common.InterruptedException
        denoiser = SimpleNamespace(sampler=sampler)
        script_callbacks.cfg_denoiser_callback(script_callbacks.CFGDenoiserParams(None, None, None, 0, 0, None, None, denoiser))
        for _call in range(p.calls):
            sd_models.model_data.sd_model.model.diffusion_model(torch.zeros(1, 2))


def process_images(p):
    for script in p.scripts:
        with suppress(Exception):  # the WebUI reports what scripts raise, and goes on
            script.before_process(p)
    if p.loading is not None:
        p.loading()
    return process_images_inner(p)


def process_images_inner(p):
    for script in p.scripts:
        script.process(p)
    sd_unet.apply_unet()
    for n in range(p.n_iter):
        shared.state.skipped = False
        if shared.state.interrupted or shared.state.stopping_generation:
            break
        for script in p.scripts:
            script.before_process_batch(p, batch_number=n)
        p.sample()
        for script in p.scripts:
            script.post_sample(p, None)
        for script in p.scripts:
            script.postprocess_batch(p, batch_number=n)
    return p
