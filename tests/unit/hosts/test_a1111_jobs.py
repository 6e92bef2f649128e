"""What the WebUI's callbacks become: events in their order, also when things go wrong."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import Any

import pytest
import torch

from tests.unit.hosts.jobs_world import Script, World, model, world

__all__ = ["world"]  # the fixture

PLAIN = ["job", "load", "encode", "denoise", "decode", "other", "end"]

# ------------------------------------------------------------------------------------------------ a job's course


def test_a_job(world: World) -> None:
    world.run(steps=2, course="rcrc")
    assert world.short() == PLAIN
    assert world.steps() == [("base", 0, 0, 2), ("base", 0, 1, 2)]
    order = [event[0] for event in world.heard.events if event[0] in ("step", "call")]
    assert order == ["step", "call", "step", "call"], "a step begins before its first call"
    assert world.heard.events[-1] == ("end", "ok", None)
    job = world.heard.events[0][1]
    assert job.request == {
        **{"width": 64, "height": 64, "batch_size": 1, "n_iter": 1, "steps": 2, "sampler": "Euler", "cfg_scale": 7.0},
        "hires": None,
    }
    assert job.mode is None


def test_batches(world: World) -> None:
    world.run(n_iter=3, steps=1, course="rc")
    assert world.short() == ["job", "load", *["encode", "denoise", "decode", "other"] * 3, "end"]
    assert world.steps() == [("base", image, 0, 1) for image in range(3)]


@pytest.mark.parametrize(("latent", "between"), [(None, "decode"), ({"mode": "bilinear"}, "other")])
def test_hires(world: World, latent: Any, between: str) -> None:
    """What comes between the passes is the decoder's work, or not."""
    world.run(enable_hr=True, hr_second_pass_steps=1, steps=2, course="rcrc", latent_scale_mode=latent)
    assert world.short() == ["job", "load", "encode", "denoise", between, "denoise", "decode", "other", "end"]
    assert world.steps() == [("base", 0, 0, 2), ("base", 0, 1, 2), ("hires", 0, 0, 1), ("hires", 0, 1, 1)]
    assert world.heard.events[0][1].request["hires"] == {"width": None, "height": None, "scale": 2.0, "steps": 1}


def test_a_sampler_of_the_second_order(world: World) -> None:
    world.run(steps=2, course="rcrrc", options={"second_order": True})
    assert [step[2] for step in world.steps()] == [0, 1]
    assert len(world.heard.named("call")) == 3


def test_plms_and_unipc(world: World) -> None:
    world.run(steps=3, course="rrcrcrc", sampler_name="PLMS")
    world.run(steps=3, course="rrcrcc", sampler_name="UniPC")
    assert [step[2] for step in world.steps()] == [0, 1, 2, 0, 1, 2]


def test_calls_of_one_round(world: World) -> None:
    """Unequal prompts split a round into two calls."""
    world.run(steps=2, course="rcrc", calls=2)
    assert len(world.heard.named("step")) == 2 and len(world.heard.named("call")) == 4


def test_the_denoiser_is_exchanged_in_mid_job(world: World) -> None:
    """By a refiner: calls of the new one are counted, and no hook stays on either."""
    first = world.webui.sd_models.model_data.sd_model
    other = model()

    def exchange(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 0, 0):
            world.webui.sd_models.model_data.sd_model = other

    world.heard._on = exchange
    world.run(steps=3, course="rcrcrc")
    assert len(world.heard.named("call")) >= 2
    for denoiser in (first.model.diffusion_model, other.model.diffusion_model):
        assert not denoiser._forward_pre_hooks


def test_no_hook_stays_after_a_job(world: World) -> None:
    world.run()
    assert not world.webui.sd_models.model_data.sd_model.model.diffusion_model._forward_pre_hooks


# ------------------------------------------------------------------------------------------------ ends


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ValueError("a bad thing"), "error"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("HIP out of memory. Tried to allocate"), "oom"),
        (MemoryError(), "oom"),
        (KeyboardInterrupt(), "error"),
    ],
)
def test_an_exception_in_the_sampler(world: World, fault: BaseException, status: str) -> None:
    """A7: every way to say it; the exception goes on to the WebUI, and the job ends once."""
    with pytest.raises(type(fault)):
        world.run(steps=3, course="rcr!", fault=fault)
    assert world.short() == ["job", "load", "encode", "denoise", "end"]
    ends = world.heard.named("end")
    assert len(ends) == 1 and ends[0][1] == status and type(fault).__name__ in ends[0][2]
    assert not world.jobs.running()
    assert not world.webui.sd_models.model_data.sd_model.model.diffusion_model._forward_pre_hooks
    world.heard.events.clear()
    world.run()
    assert world.short() == PLAIN and world.heard.events[-1][1] == "ok"


def fails(problem: BaseException) -> Any:
    def loading() -> None:
        raise problem

    return loading


def test_a_job_that_fails_while_its_checkpoint_is_loaded(world: World) -> None:
    with pytest.raises(RuntimeError):
        world.run(loading=fails(RuntimeError("CUDA error: out of memory")))
    assert world.short() == ["job", "load", "end"]
    assert world.heard.events[-1] == ("end", "oom", "RuntimeError: CUDA error: out of memory")


def test_a_job_that_nobody_closes(world: World) -> None:
    """It ends when the next one begins, or when the host is idle and is looked at."""
    for _number in range(2):
        with suppress(ValueError):
            world.webui.processing.process_images(world.job(loading=fails(ValueError("lost"))))
    assert world.short() == ["job", "load", "end", "job", "load"]
    world.jobs.close_lost()
    world.jobs.close_lost()
    assert world.short() == ["job", "load", "end", "job", "load", "end"]
    assert all(end[1] == "error" and "gave the job up" in end[2] for end in world.heard.named("end"))


def test_closing_another_job_ends_nothing(world: World) -> None:
    """A script closes a request of its own while the outer one runs; another thread closes one of its own."""
    inner = world.webui.processing.StableDiffusionProcessing()

    def close(event: tuple[Any, ...]) -> None:
        if event[0] == "step":
            inner.close()
            thread = threading.Thread(target=inner.close)
            thread.start()
            thread.join()

    world.heard._on = close
    world.run()
    assert world.short() == PLAIN


def test_closing_a_job_that_has_not_begun_on_another_thread_ends_nothing(world: World) -> None:
    world.jobs.before_process(world.job(), None)
    thread = threading.Thread(target=world.job().close)
    thread.start()
    thread.join()
    assert not world.heard.named("end")


@pytest.mark.parametrize("flag", ["interrupted", "stopping_generation", "skipped"])
def test_a_job_that_is_stopped(world: World, flag: str) -> None:
    def stop(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 0, 0):
            setattr(world.webui.shared.state, flag, True)

    world.heard._on = stop
    world.run(steps=3, course="rcrcrc", n_iter=1)
    assert world.heard.events[-1] == ("end", "interrupted", None)


def test_a_skipped_picture_in_the_middle(world: World) -> None:
    """The WebUI forgets the skip at the next batch; the job was cut short all the same."""

    def skip(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 1, 0):
            world.webui.shared.state.skipped = True

    world.heard._on = skip
    world.run(steps=2, course="rcrc", n_iter=3)
    assert [step[1:3] for step in world.steps()] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert world.heard.events[-1] == ("end", "interrupted", None)
    world.heard.events.clear()
    world.heard._on = lambda event: None
    world.run()
    assert world.heard.events[-1] == ("end", "ok", None), "the next job is not taken for a stopped one"


def test_a_job_within_a_job(world: World) -> None:
    """Part of the outer one: one start, one end, also when the inner one fails."""

    class Detailer(Script):
        def post_sample(self, p: Any, ps: Any) -> None:
            super().post_sample(p, ps)
            with suppress(ValueError):
                inner = world.job(course="r!", fault=ValueError("inside"))
                with closing(inner):
                    world.webui.processing.process_images(inner)

    p = world.job()
    p.scripts = [Detailer(world.jobs)]
    with closing(p):
        world.webui.processing.process_images(p)
    assert len(world.heard.named("job")) == len(world.heard.named("end")) == 1
    assert world.heard.events[-1] == ("end", "ok", None)
    assert len(world.steps()) == 3


def test_a_generation_without_scripts_is_not_told_of(world: World) -> None:
    """A training's preview: our script is not asked, so the mode in force is left alone."""
    p = world.webui.processing.StableDiffusionProcessing()
    world.webui.processing.process_images(p)
    assert not world.heard.events


def test_a_generation_on_another_thread_at_the_same_time(world: World) -> None:
    """A script's own, beside the queue: it passes through without counting."""
    other = world.webui.processing.StableDiffusionProcessing()

    def beside(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 0, 0):
            thread = threading.Thread(target=world.webui.processing.process_images, args=(other,))
            thread.start()
            thread.join()

    world.heard._on = beside
    world.run(steps=2, course="rcrc")
    assert world.short() == PLAIN and len(world.steps()) == 2


def test_a_listener_that_fails_fails_alone(world: World) -> None:
    def fail(event: tuple[Any, ...]) -> None:
        raise RuntimeError("ours")

    world.heard._on = fail
    world.run()
    assert world.short() == PLAIN
    assert world.webui.sd_models.send_model_to_cpu(None) is None


# ------------------------------------------------------------------------------------------------ start and stop


def snapshot(webui: Any) -> dict[str, Any]:
    from modules.hypernetworks import hypernetwork
    from modules.textual_inversion import textual_inversion

    owners = [
        *(
            webui.processing,
            webui.processing.StableDiffusionProcessing,
            webui.sd_samplers_common,
            webui.sd_samplers_common.Sampler,
        ),
        *(webui.sd_models, webui.sd_hijack.StableDiffusionModelHijack, webui.sd_vae, webui.sd_unet, webui.devices),
        *(webui.shared_state.State, textual_inversion, hypernetwork),
    ]
    return {f"{owner} {name}": value for owner in owners for name, value in vars(owner).items() if callable(value)}


def test_stop_puts_everything_back(world: World) -> None:
    world.stop()
    before = snapshot(world.webui)
    callbacks = {name: list(found) for name, found in world.webui.script_callbacks.registered.items()}
    for _number in range(3):
        stop = world.jobs.start(world.heard)
        assert snapshot(world.webui) != before
        with pytest.raises(RuntimeError):
            world.jobs.start(world.heard)
        stop()
        stop()
        assert snapshot(world.webui) == before
        assert world.webui.script_callbacks.registered == callbacks
    world.heard.events.clear()
    world.run()
    assert not world.heard.events


def test_callbacks_come_again_after_the_webui_forgot_them(world: World) -> None:
    """Reload UI in mid-job: Jobs could not be stopped, and the WebUI cleared all callbacks."""
    world.webui.script_callbacks.clear_callbacks()
    for _number in range(3):
        world.jobs.register_callbacks()
    found = world.webui.script_callbacks.registered
    assert len(found["cfg_denoiser"]) == len(found["model_loaded"]) == 1
    world.run()
    assert len(world.steps()) == 2
    world.stop()
    world.jobs.register_callbacks()
    assert not found["cfg_denoiser"]
