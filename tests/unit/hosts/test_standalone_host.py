"""The standalone host on the tiny model: images, events, interruption, failures. Everything on the CPU."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.fakes.listening import RecordingListener
from vram_pilot.errors import HostError, UsageError
from vram_pilot.hosts.standalone import samplers, tokens
from vram_pilot.hosts.standalone.host import StandaloneHost, check_model_name, choose_device, png_bytes
from vram_pilot.hosts.standalone.models import build_random
from vram_pilot.hosts.standalone.request import SAMPLERS, ImageRequest

pytestmark = pytest.mark.slow  # many cases, each with a model of its own

SMALL: dict[str, Any] = {"prompt": "a red house", "width": 64, "height": 64, "steps": 3, "sampler": "Euler", "seed": 1}


def small(**changes: Any) -> ImageRequest:
    return ImageRequest(**{**SMALL, **changes})


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shared() -> StandaloneHost:
    host = StandaloneHost("cpu")
    host.load("tiny")
    return host


@pytest.fixture
def host(shared: StandaloneHost) -> Iterator[StandaloneHost]:
    """The loaded host without a listener; hooks that a test leaves are its own affair."""
    shared.subscribe(RecordingListener())()
    yield shared
    shared.subscribe(RecordingListener())()


def pixels(host: StandaloneHost, request: ImageRequest) -> list[np.ndarray[Any, Any]]:
    result = host.generate(request)
    assert result.status == "ok" and result.error is None
    return [np.asarray(image) for image in result.images]


# ---------------------------------------------------------------------------------------------------- images


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 4])
def test_every_sampler_gives_an_image_with_contrast(host: StandaloneHost, sampler: str, steps: int) -> None:
    (image,) = pixels(host, small(sampler=sampler, steps=steps))
    assert image.shape == (64, 64, 3)
    assert image.std() > 10


def test_the_list_of_samplers_is_the_one_that_requests_are_checked_against() -> None:
    assert samplers.names() == SAMPLERS


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_largest_number_of_steps_has_a_schedule(sampler: str) -> None:
    from vram_pilot.hosts.standalone.architectures import TINY

    scheduler = samplers.make(sampler, TINY)
    scheduler.set_timesteps(500)
    assert float(scheduler.timesteps.min()) >= 0 and float(scheduler.timesteps.max()) < 1000


def test_a_seed_gives_the_same_file_again_and_another_seed_another_image(host: StandaloneHost) -> None:
    first, again, other = (host.generate(small(seed=seed, sampler="Euler a")) for seed in (1, 1, 2))
    assert png_bytes(first.images[0], first.infotexts[0]) == png_bytes(again.images[0], again.infotexts[0])
    assert not np.array_equal(np.asarray(first.images[0]), np.asarray(other.images[0]))


def test_the_weights_depend_on_the_model_s_name_alone(shared: StandaloneHost) -> None:
    torch.manual_seed(99)
    again = build_random("tiny", torch.float32)
    for ours, theirs in zip(shared.components(), again.components()):
        for (name, one), other in zip(ours.module.state_dict().items(), theirs.module.state_dict().values()):
            assert torch.equal(one, other), name


def test_prompt_negative_prompt_guidance_and_steps_each_change_the_image(host: StandaloneHost) -> None:
    (base,) = pixels(host, small())
    for change in ({"prompt": "a blue cat"}, {"negative_prompt": "fog"}, {"cfg_scale": 3.0}, {"steps": 2}):
        assert not np.array_equal(base, pixels(host, small(**change))[0]), change


def test_images_of_a_batch_are_those_of_single_jobs_up_to_rounding(host: StandaloneHost) -> None:
    """A matrix product over more rows may add in another order, so levels may differ by one; seeds and noise do not."""
    batch = pixels(host, small(batch_size=2, sampler="Euler a"))
    for index, image in enumerate(batch):
        (single,) = pixels(host, small(seed=1 + index, sampler="Euler a"))
        assert np.abs(image.astype(int) - single.astype(int)).max() <= 1


def test_images_of_a_later_batch_are_those_of_its_own_seeds(host: StandaloneHost) -> None:
    two = pixels(host, small(n_iter=2))
    assert np.array_equal(two[1], pixels(host, small(seed=2))[0])


def test_hires_gives_the_larger_size_and_the_infotext_says_so(host: StandaloneHost) -> None:
    result = host.generate(small(hires_scale=1.5))
    assert result.images[0].size == (96, 96)
    assert "Size: 64x64" in result.infotexts[0] and "Hires upscale: 1.5" in result.infotexts[0]


def test_nothing_asks_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    host = StandaloneHost("cpu")
    host.load("tiny")
    assert host.generate(small(steps=1)).status == "ok"


def test_a_png_carries_its_parameters_and_no_time(host: StandaloneHost) -> None:
    image = Image.new("RGB", (8, 8))
    with Image.open(io.BytesIO(png_bytes(image, "a naïve 猫\nSteps: 3"))) as read:
        assert read.info == {"parameters": "a naïve 猫\nSteps: 3"}


# ---------------------------------------------------------------------------------------------------- events


def test_events_come_in_order_for_two_batches(host: StandaloneHost) -> None:
    listener = RecordingListener()
    host.subscribe(listener)
    host.generate(small(steps=2, n_iter=2))
    batches = [
        [("phase", "denoise"), ("step", "base", n, 0, 2), ("call",), ("step", "base", n, 1, 2), ("call",), ("phase", "decode")]
        for n in range(2)
    ]
    assert listener.events[1:] == [("phase", "encode"), *batches[0], *batches[1], ("end", "ok", None)]
    assert listener.events[0][1].request["width"] == 64 and "red house" not in repr(listener.events)


def test_heun_calls_twice_a_step_but_once_in_the_last(host: StandaloneHost) -> None:
    listener = RecordingListener()
    host.subscribe(listener)
    host.generate(small(steps=3, sampler="Heun"))
    assert [event[0] for event in listener.named("step", "call")] == [
        "step",
        "call",
        "call",
        "step",
        "call",
        "call",
        "step",
        "call",
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_hires_pass_counts_its_own_steps(host: StandaloneHost, sampler: str) -> None:
    listener = RecordingListener()
    host.subscribe(listener)
    host.generate(small(steps=3, hires_scale=1.5, sampler=sampler))
    assert [event[1:] for event in listener.named("step")] == [
        *(("base", 0, index, 3) for index in range(3)),
        *(("hires", 0, index, 2) for index in range(2)),
    ]


def test_the_step_is_told_before_the_denoiser_runs(host: StandaloneHost) -> None:
    order: list[str] = []
    host.subscribe(RecordingListener(on=lambda event: order.append(event[0]) if event[0] in ("step", "call") else None))
    handle = host.components()[1].module.register_forward_pre_hook(lambda module, args: order.append("forward"))
    try:
        host.generate(small(steps=2))
    finally:
        handle.remove()
    assert order == ["step", "call", "forward"] * 2


def test_without_guidance_the_denoiser_gets_half_the_rows(host: StandaloneHost) -> None:
    rows: list[int] = []
    handle = host.components()[1].module.register_forward_pre_hook(lambda module, args: rows.append(args[0].shape[0]))
    try:
        pixels(host, small(steps=1, batch_size=2, cfg_scale=1.0))
        pixels(host, small(steps=1, batch_size=2, cfg_scale=2.0))
    finally:
        handle.remove()
    assert rows == [2, 4]


def test_the_first_job_places_the_weights_and_says_so() -> None:
    host, listener = StandaloneHost("cpu"), RecordingListener()
    host.subscribe(listener)
    host.load("tiny")
    host.generate(small(steps=1))
    host.generate(small(steps=1))
    assert listener.events[:2] == [("changing",), ("changed",)]
    assert [event[1] for event in listener.named("phase")].count("load") == 1
    assert listener.events[3] == ("phase", "load")


def test_a_mode_that_took_over_keeps_the_host_from_placing_until_it_gives_back(host: StandaloneHost) -> None:
    listener = RecordingListener()
    host.subscribe(listener)
    host.take_over_offload(True)
    host.generate(small(steps=1))
    assert ("phase", "load") not in listener.events
    host.give_back_offload()
    host.generate(small(steps=1))
    assert listener.named("phase").count(("phase", "load")) == 1


def test_a_mode_left_within_a_job_has_the_weights_placed_at_once(host: StandaloneHost) -> None:
    """The denoiser's call that follows needs them there; `to` is watched, as a CPU has no other place."""
    placed: list[str] = []
    denoiser = host.components()[1].module

    def leave(event: tuple[Any, ...]) -> None:
        if event[0] == "step":
            host.give_back_offload()
            placed.append("after giving back")

    host.subscribe(RecordingListener(on=leave))
    host.take_over_offload(True)
    denoiser.to = lambda device: placed.append("placed")  # type: ignore[assignment]
    try:
        host.generate(small(steps=1))
    finally:
        del denoiser.to
    assert placed == ["placed", "after giving back"]


def test_a_failing_listener_does_not_change_the_image(host: StandaloneHost, caplog: pytest.LogCaptureFixture) -> None:
    expected = pixels(host, small())

    def fail(event: tuple[Any, ...]) -> None:
        raise RuntimeError("listener broke")

    host.subscribe(RecordingListener(on=fail))
    assert np.array_equal(pixels(host, small())[0], expected[0])
    assert sum("the listener failed at step_started" in record.getMessage() for record in caplog.records) == 1, "once per cause"


def test_a_subscription_that_ended_late_does_not_end_the_next_one(host: StandaloneHost) -> None:
    first, second = RecordingListener(), RecordingListener()
    end_first = host.subscribe(first)
    host.subscribe(second)
    end_first()
    host.generate(small(steps=1))
    assert not first.events and second.events[-1] == ("end", "ok", None)


# ---------------------------------------------------------------------------------------------------- stopping and failing


def test_an_interrupt_stops_at_the_next_step_and_the_next_job_runs(host: StandaloneHost) -> None:
    def stop(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 1, 1):
            host.interrupt()

    listener = RecordingListener(on=stop)
    host.subscribe(listener)
    result = host.generate(small(n_iter=3))
    assert result.status == "interrupted" and len(result.images) == 1, "the batch before it is kept"
    assert listener.events[-2:] == [("call",), ("end", "interrupted", None)]
    assert listener.named("step")[-1] == ("step", "base", 1, 1, 3)
    assert host.generate(small(steps=1)).status == "ok"


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom", "leaner mode"),
        (RuntimeError("CUDA error: out of memory"), "oom", "leaner mode"),
        (RuntimeError("HIP out of memory"), "oom", "leaner mode"),
        (RuntimeError("cudaErrorMemoryAllocation"), "oom", "leaner mode"),
        (ValueError("broken pipe of thoughts"), "error", "broken pipe of thoughts"),
    ],
)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_failure_anywhere_ends_the_job_and_keeps_what_was_done(
    host: StandaloneHost, raised: Exception, status: str, said: str, where: int
) -> None:
    """Case A7: every form of "out of memory" counts as one; the next job runs."""
    listener = RecordingListener()
    host.subscribe(listener)
    module = list(host.components()[where].module.modules())[-1]

    def fail(*args: Any) -> None:
        raise raised

    handle = module.register_forward_pre_hook(fail)
    result = host.generate(small(steps=1))
    handle.remove()
    assert (result.status, result.images) == (status, ())
    assert said in str(result.error)
    assert listener.events[-1][:2] == ("end", status)
    assert len(listener.named("end")) == 1
    assert host.generate(small(steps=1)).status == "ok"


def test_images_of_batches_before_a_failure_are_kept(host: StandaloneHost) -> None:
    def fail(event: tuple[Any, ...]) -> None:
        if event[:3] == ("step", "base", 1):
            handles.append(host.components()[1].module.register_forward_pre_hook(broken))

    def broken(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    handles: list[Any] = []
    host.subscribe(RecordingListener(on=fail))
    result = host.generate(small(steps=1, n_iter=2))
    handles[0].remove()
    assert (result.status, len(result.images), len(result.infotexts)) == ("oom", 1, 1)


def test_a_keyboard_interrupt_ends_the_job_and_goes_on_its_way(host: StandaloneHost) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    listener = RecordingListener()
    host.subscribe(listener)
    handle = host.components()[1].module.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        host.generate(small())
    handle.remove()
    assert listener.events[-1] == ("end", "interrupted", None)
    assert host.run_when_idle(lambda: None), "the queue is free again"


def test_the_memory_of_a_failed_job_is_free_when_it_returns(host: StandaloneHost) -> None:
    """Case A1, as far as a CPU shows it: no tensor of the job outlives it."""
    import gc
    import weakref

    seen: list[weakref.ref[torch.Tensor]] = []

    def fail(module: torch.nn.Module, args: Any) -> None:
        seen.append(weakref.ref(args[0]))
        raise torch.OutOfMemoryError("CUDA out of memory")

    handle = host.components()[1].module.register_forward_pre_hook(fail)
    gc.disable()
    try:
        result = host.generate(small())
        assert result.status == "oom" and seen[0]() is None
    finally:
        gc.enable()
        handle.remove()


def test_nan_latents_are_an_error_that_says_so(host: StandaloneHost) -> None:
    handle = host.components()[1].module.register_forward_hook(lambda module, args, out: (out[0] * float("nan"),))
    result = host.generate(small(steps=1))
    handle.remove()
    assert result.status == "error" and "NaN" in str(result.error)


# ---------------------------------------------------------------------------------------------------- half precision VAE


def test_nan_from_a_half_precision_vae_is_decoded_again_in_fp32_and_told() -> None:
    """Case B17."""
    from vram_pilot.hosts.standalone.decoder import decode

    vae = build_random("tiny", torch.bfloat16).vae
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = [np.asarray(image).astype(int) for image in decode(vae, latents, lambda text: pytest.fail(text))]
    overflow = vae.decoder.register_forward_hook(lambda module, args, out: out * float("nan"))
    before = {name: tensor.clone() for name, tensor in vae.state_dict().items()}
    notes: list[str] = []
    again = [np.asarray(image).astype(int) for image in decode(vae, latents, notes.append)]
    overflow.remove()
    assert len(notes) == 1 and "fp32" in notes[0]
    assert np.abs(np.stack(again) - np.stack(plain)).mean() < 3
    assert vae.dtype == torch.bfloat16 and all(torch.equal(before[name], now) for name, now in vae.state_dict().items())


def test_nan_in_full_precision_is_an_error(host: StandaloneHost) -> None:
    overflow = host.components()[2].module.decoder.register_forward_hook(lambda module, args, out: out * float("nan"))
    result = host.generate(small(steps=1))
    overflow.remove()
    assert result.status == "error" and "VAE" in str(result.error)


# ---------------------------------------------------------------------------------------------------- queue, model, device


def test_work_when_idle_is_refused_while_a_job_runs_and_runs_after_it(host: StandaloneHost) -> None:
    answers: list[bool] = []

    def ask(event: tuple[Any, ...]) -> None:
        if event[0] == "step":
            thread = threading.Thread(target=lambda: answers.append(host.run_when_idle(lambda: None)))
            thread.start()
            thread.join()

    host.subscribe(RecordingListener(on=ask))
    host.generate(small(steps=2))
    done: list[int] = []
    assert answers == [False, False]
    assert host.run_when_idle(lambda: done.append(1)) and done == [1]


def test_work_that_raises_leaves_the_queue_free(host: StandaloneHost) -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        host.run_when_idle(fail)
    assert host.run_when_idle(lambda: None)


def test_without_a_model_a_job_is_refused() -> None:
    host = StandaloneHost("cpu")
    assert host.model() is None and host.components() == ()
    with pytest.raises(HostError, match="No model is loaded"):
        host.generate(small())


def test_an_unknown_model_is_refused_before_the_loaded_one_is_touched(host: StandaloneHost) -> None:
    listener = RecordingListener()
    host.subscribe(listener)
    with pytest.raises(UsageError, match="tiny, sd15, sdxl"):
        host.load("no-such-model")
    assert listener.events == [] and host.model() is not None


def test_components_are_named_by_role(host: StandaloneHost) -> None:
    assert [(part.name, part.role) for part in host.components()] == [
        ("text_encoder", "text_encoder"),
        ("denoiser", "denoiser"),
        ("vae", "vae"),
    ]
    total = sum(tensor.numel() * 4 for part in host.components() for tensor in part.module.parameters())
    assert total < 60 * 2**20


@pytest.mark.parametrize("name", ["tpu", "cuda:97", "meta", "cpu:x", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        choose_device(name)


def test_built_in_names_are_models() -> None:
    for name in ("tiny", "sd15", "sdxl"):
        check_model_name(name)


# ---------------------------------------------------------------------------------------------------- tokens


def test_the_vocabulary_is_clip_s() -> None:
    """Known numbers of CLIP's tokenizer."""
    tokenizer = tokens.clip_tokenizer()
    assert tokenizer.tokens("a photo of a cat") == [320, 1125, 539, 320, 2368]
    numbers = tokens.encode(tokenizer, "Hello, world!", 0)
    assert numbers[:6] == [49406, 3306, 267, 1002, 256, 49407] and numbers[6:] == [0] * 71


def test_a_long_prompt_is_cut_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    numbers = tokens.encode(tokens.HashTokenizer(), "word " * 100, 49407)
    assert len(numbers) == 77 and numbers[0] == 49406 and numbers[-1] == 49407
    assert "25 are left out" in caplog.text


def test_without_the_vocabulary_random_models_work_and_real_ones_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda name: None)
    assert tokens.any_tokenizer().tokens("Two words") == tokens.any_tokenizer().tokens("two WORDS")
    with pytest.raises(HostError, match="open_clip_torch"):
        tokens.clip_tokenizer()
