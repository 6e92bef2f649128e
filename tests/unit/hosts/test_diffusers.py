"""attach() on real diffusers pipelines with small random models: images equal in every mode, exact events, nothing left."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from tests.fakes.listening import RecordingListener
from tests.fakes.pipelines import sd_pipeline, xl_pipeline
from vram_pilot.errors import HostError, RefusedError, UsageError
from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.hosts.diffusers import Attachment, attach
from vram_pilot.hosts.diffusers.checks import models
from vram_pilot.hosts.diffusers.host import DiffusersHost

pytestmark = pytest.mark.slow  # many cases, each with a model of its own

MODES = ("full", "medvram", "lowvram", "as-launched")
#: (constructor, further arguments of a call)
PIPELINES = {
    "sd": (sd_pipeline, {"height": 64, "width": 64}),
    "sd img2img": (
        lambda: sd_pipeline("StableDiffusionImg2ImgPipeline"),
        {"image": torch.full((1, 3, 64, 64), 0.5), "strength": 0.8},
    ),
    "sd inpaint": (
        lambda: sd_pipeline("StableDiffusionInpaintPipeline"),
        {"image": torch.full((1, 3, 64, 64), 0.5), "mask_image": torch.ones(1, 1, 64, 64), "height": 64, "width": 64},
    ),
    "xl": (xl_pipeline, {"height": 64, "width": 64}),
    "xl img2img": (
        lambda: xl_pipeline("StableDiffusionXLImg2ImgPipeline"),
        {"image": torch.full((1, 3, 64, 64), 0.5), "strength": 0.8},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pipe() -> Any:
    return sd_pipeline()


def image(pipe: Any, **more: Any) -> np.ndarray[Any, Any]:
    call = {"prompt": "a red house", "num_inference_steps": 3, "height": 64, "width": 64, **more}
    return np.asarray(pipe(**call, generator=torch.Generator().manual_seed(1)).images[0])


def snapshot(pipe: Any) -> dict[str, Any]:
    """Everything that attaching could leave behind, by name."""
    found: dict[str, Any] = {"class": type(pipe), "attributes": dict(vars(pipe)), "config": dict(pipe.config)}
    found["scheduler"] = (type(pipe.scheduler), sorted(vars(pipe.scheduler)))
    for name, model in models(pipe).items():
        for path, module in model.named_modules():
            hooks = {key: dict(value) for key, value in vars(module).items() if "hook" in key and isinstance(value, dict)}
            found[f"{name}.{path}"] = (type(module), sorted(vars(module)), hooks)
        for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
            found[f"{name}.{path} tensor"] = (id(tensor), tensor.device, tensor.dtype, tensor.stride(), tensor.requires_grad)
    return found


def attached(pipe: Any, folder: Path, **more: Any) -> Attachment:
    return attach(pipe, state_dir=folder, **more)


# ---------------------------------------------------------------------------------------------------- images and the way back


@pytest.mark.parametrize("kind", PIPELINES)
def test_every_mode_gives_the_image_and_nothing_stays_behind(kind: str, tmp_path: Path) -> None:
    make, call = PIPELINES[kind]
    pipe = make()
    more = {"num_inference_steps": 3, "prompt": "a red house", "output_type": "np", **call}

    def draw() -> Any:
        return pipe(**more, generator=torch.Generator().manual_seed(1)).images

    expected, before = draw(), snapshot(pipe)
    assert expected.std() > 0.05
    weights = {name: {k: v.clone() for k, v in model.state_dict().items()} for name, model in models(pipe).items()}
    pilot = attached(pipe, tmp_path)
    for mode in MODES:
        answer = pilot.request(mode)
        assert answer.applies == "now"
        assert np.array_equal(draw(), expected), mode
    pilot.request("lowvram")
    pilot.detach()
    assert snapshot(pipe) == before
    for name, model in models(pipe).items():
        assert all(torch.equal(weights[name][key], tensor) for key, tensor in model.state_dict().items())
    assert np.array_equal(draw(), expected)


def test_a_mode_changed_at_a_step_from_the_pipeline_s_own_callback_gives_the_same_image(pipe: Any, tmp_path: Path) -> None:
    expected = image(pipe, num_inference_steps=5)
    with attached(pipe, tmp_path, mode="full") as pilot:
        in_force: list[str] = []

        def switch(own: Any, step: int, timestep: Any, tensors: Any) -> Any:
            in_force.append(pilot.app.controller.effective().mode)
            if step < 4:
                assert pilot.request(("medvram", "lowvram", "as-launched", "full")[step]).applies == "next_step"
            return tensors

        assert np.array_equal(image(pipe, num_inference_steps=5, callback_on_step_end=switch), expected)
        session = pilot.last_session()
    assert in_force == ["full", "medvram", "lowvram", "as-launched", "full"]
    assert session is not None
    assert [(change["to"], change["step"]) for change in session["mode"]["history"]] == [
        ("medvram", 1),
        ("lowvram", 2),
        ("as-launched", 3),
        ("full", 4),
    ]


@pytest.mark.parametrize("mode", ["medvram", "lowvram"])
def test_a_half_precision_sdxl_vae_that_the_pipeline_casts_to_fp32_and_back_is_followed(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """StableDiffusionXLPipeline casts the VAE in place before and after each decoding."""
    pipe = xl_pipeline(dtype=torch.float16)
    expected = image(pipe)
    with attached(pipe, tmp_path, mode=mode) as pilot:
        assert np.array_equal(image(pipe), expected)
        assert np.array_equal(image(pipe), expected)
        assert pilot.app.controller.effective().mode == mode
    assert "the listener failed" not in caplog.text
    assert pipe.vae.dtype == torch.float16
    assert np.array_equal(image(pipe), expected)


def test_an_exception_in_the_pipeline_reaches_the_user_and_the_next_job_runs(pipe: Any, tmp_path: Path) -> None:
    expected, before = image(pipe), snapshot(pipe)

    def fail(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with attached(pipe, tmp_path, mode="lowvram") as pilot:
        handle = pipe.unet.mid_block.register_forward_pre_hook(fail)
        with pytest.raises(torch.OutOfMemoryError):
            image(pipe)
        handle.remove()
        session = pilot.last_session()
        assert session is not None and session["status"] == "oom"
        assert np.array_equal(image(pipe), expected)
    assert snapshot(pipe) == before


def test_leaving_the_block_by_an_exception_detaches(pipe: Any, tmp_path: Path) -> None:
    before = snapshot(pipe)
    with pytest.raises(ZeroDivisionError), attached(pipe, tmp_path, mode="medvram"):
        raise ZeroDivisionError
    assert snapshot(pipe) == before


def test_detaching_twice_is_once_and_a_detached_pilot_says_so(pipe: Any, tmp_path: Path) -> None:
    pilot = attached(pipe, tmp_path)
    pilot.detach()
    pilot.detach()
    with pytest.raises(RefusedError, match="detached"):
        pilot.request("full")


def test_a_detached_pipeline_is_not_kept_alive(tmp_path: Path) -> None:
    pipe = sd_pipeline()
    pilot = attached(pipe, tmp_path, mode="full")
    image(pipe)
    pilot.detach()
    seen = weakref.ref(pipe.unet)
    del pipe, pilot
    gc.collect()
    assert seen() is None


# ---------------------------------------------------------------------------------------------------- events


def listened(pipe: Any) -> tuple[DiffusersHost, RecordingListener]:
    host, listener = DiffusersHost(pipe, pipe.device), RecordingListener()
    host.subscribe(listener)
    host.attach()
    return host, listener


def test_events_come_in_order(pipe: Any) -> None:
    host, listener = listened(pipe)
    image(pipe, num_inference_steps=2, num_images_per_prompt=2)
    host.detach()
    assert listener.events[0][1].request == {
        "width": 64,
        "height": 64,
        "batch_size": 2,
        "n_iter": 1,
        "steps": 2,
        "sampler": "EulerDiscreteScheduler",
        "cfg_scale": 7.5,
        "hires": None,
    }
    assert listener.events[1:] == [
        ("phase", "encode"),
        ("phase", "denoise"),
        ("step", "base", 0, 0, 2),
        ("call",),
        ("step", "base", 0, 1, 2),
        ("call",),
        ("phase", "decode"),
        ("end", "ok", None),
    ]
    assert "red house" not in repr(listener.events)


def test_a_scheduler_of_second_order_has_two_calls_a_step(pipe: Any) -> None:
    pipe.scheduler = diffusers.HeunDiscreteScheduler.from_config(pipe.scheduler.config)
    host, listener = listened(pipe)
    image(pipe, num_inference_steps=2)
    host.detach()
    assert listener.named("step", "call") == [
        ("step", "base", 0, 0, 2),
        ("call",),
        ("call",),
        ("step", "base", 0, 1, 2),
        ("call",),
    ]


def test_the_step_is_told_before_the_hooks_of_the_denoiser_are_looked_up(pipe: Any) -> None:
    """A mode that is entered at the boundary sets hooks on the denoiser; they must hold in this very call."""
    ran: list[str] = []
    handles: list[Any] = []

    def set_hook(event: tuple[Any, ...]) -> None:
        if event[0] == "step" and not handles:
            handles.append(pipe.unet.register_forward_pre_hook(lambda module, args: ran.append("hook")))

    host = DiffusersHost(pipe, pipe.device)
    host.subscribe(RecordingListener(on=set_hook))
    host.attach()
    image(pipe, num_inference_steps=1)
    host.detach()
    handles[0].remove()
    assert ran == ["hook"]


def test_the_pipeline_computes_where_the_host_does_while_a_mode_has_its_parts_elsewhere(pipe: Any) -> None:
    host = DiffusersHost(pipe, torch.device("meta"))
    host.attach()
    places = [(pipe.device.type, pipe._execution_device.type)]
    host.take_over_offload(True)
    places.append((pipe.device.type, pipe._execution_device.type))
    host.give_back_offload()
    places.append((pipe.device.type, pipe._execution_device.type))
    host.detach()
    assert places == [("cpu", "cpu"), ("meta", "meta"), ("cpu", "cpu")]


def test_a_replaced_scheduler_and_a_replaced_model_are_followed(pipe: Any, tmp_path: Path) -> None:
    with attached(pipe, tmp_path, mode="medvram") as pilot:
        image(pipe)
        old_unet = pipe.unet
        pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)
        other = sd_pipeline()
        for parameter in other.unet.parameters():
            parameter.mul_(0.9)
        pipe.unet = other.unet
        found = image(pipe)
        session = pilot.last_session()
        assert session is not None and len(session["steps"]) == 3 and session["mode"]["effective"]["mode"] == "medvram"
    assert type(old_unet) is diffusers.UNet2DConditionModel and not old_unet._forward_pre_hooks
    assert np.array_equal(found, image(pipe))


def test_a_stop_ends_the_call_at_its_next_step(pipe: Any, tmp_path: Path) -> None:
    with attached(pipe, tmp_path, mode="lowvram") as pilot:

        def stop(own: Any, step: int, timestep: Any, tensors: Any) -> Any:
            pilot.host.interrupt()
            return tensors

        with pytest.raises(HostError, match="stopped"):
            image(pipe, callback_on_step_end=stop)
        session = pilot.last_session()
        assert session is not None and session["status"] == "interrupted" and len(session["steps"]) == 1
        assert image(pipe).std() > 10


def test_the_pipeline_s_own_interrupt_is_recorded_as_one(pipe: Any, tmp_path: Path) -> None:
    def stop(own: Any, step: int, timestep: Any, tensors: Any) -> Any:
        own._interrupt = True
        return tensors

    with attached(pipe, tmp_path) as pilot:
        image(pipe, callback_on_step_end=stop)
        session = pilot.last_session()
    assert session is not None and session["status"] == "interrupted"


def test_a_pipeline_called_from_its_own_callback_is_part_of_the_job(pipe: Any) -> None:
    host, listener = listened(pipe)
    calls: list[int] = []

    def again(own: Any, step: int, timestep: Any, tensors: Any) -> Any:
        calls.append(step)
        assert not host.run_when_idle(lambda: None)
        return tensors

    image(pipe, num_inference_steps=1, callback_on_step_end=again)
    host.detach()
    assert calls == [0] and len(listener.named("job", "end")) == 2


def test_a_wrong_call_fails_as_it_does_without_us(pipe: Any) -> None:
    host, listener = listened(pipe)
    with pytest.raises(ValueError, match="divisible by 8"):
        pipe("x", height=65, width=64)
    with pytest.raises(TypeError):
        pipe(*[None] * 99)
    host.detach()
    assert [event[1] for event in listener.named("end")] == ["error", "error"]


# ---------------------------------------------------------------------------------------------------- weights that change


def test_weights_that_a_method_replaces_while_attached_are_right_in_every_mode(pipe: Any, tmp_path: Path) -> None:
    """Textual inversion puts a larger embedding table in place of the text encoder's."""
    pipe.tokenizer = copy.deepcopy(pipe.tokenizer)
    vector = torch.randn(64, generator=torch.Generator().manual_seed(2))
    plain = image(pipe, prompt="a <thing>")
    pipe.load_textual_inversion({"<thing>": vector})
    inverted = image(pipe, prompt="a <thing>")
    pipe.unload_textual_inversion()
    assert not np.array_equal(plain, inverted)
    with attached(pipe, tmp_path) as pilot:
        for mode in MODES:
            pilot.request(mode)
            assert np.array_equal(image(pipe, prompt="a <thing>"), plain), mode
            pipe.load_textual_inversion({"<thing>": vector})
            assert pilot.app.controller.effective().mode == "as-launched", "until the next job"
            assert np.array_equal(image(pipe, prompt="a <thing>"), inverted), mode
            assert pilot.app.controller.effective().mode == mode
            pipe.unload_textual_inversion()
    assert np.array_equal(image(pipe, prompt="a <thing>"), plain)


@pytest.mark.parametrize("mode", ["full", "medvram", "lowvram"])
def test_weights_rewritten_in_place_between_jobs_are_used_and_kept(pipe: Any, tmp_path: Path, mode: str) -> None:
    with attached(pipe, tmp_path, mode=mode):
        before = image(pipe)
        with torch.no_grad():
            pipe.unet.conv_out.weight.mul_(0.5)
        changed = image(pipe)
        assert np.array_equal(image(pipe), changed)
    assert not np.array_equal(before, changed) and np.array_equal(image(pipe), changed)


def test_what_the_denoiser_reads_besides_its_weights_is_part_of_its_state(pipe: Any) -> None:
    host, _ = listened(pipe)
    plain = host.computation_state()
    assert plain == host.computation_state() and hash(plain) == hash(host.computation_state())
    pipe.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    assert host.computation_state() != plain
    pipe.disable_freeu()
    assert host.computation_state() == plain
    pipe.enable_attention_slicing()
    assert host.computation_state() != plain

    class Other:
        pass

    next(module for module in pipe.unet.modules() if hasattr(module, "processor")).processor = Other()
    with pytest.raises(NotCapturable, match="Other"):
        host.computation_state()
    host.detach()


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("call", ["to", "enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_moving_an_attached_pipeline_is_refused_by_name(pipe: Any, tmp_path: Path, call: str) -> None:
    with attached(pipe, tmp_path), pytest.raises(RefusedError, match=f"{call}.*Detach first"):
        getattr(pipe, call)("cpu")
    pipe.to("cpu")


def test_what_is_no_such_pipeline_is_refused(tmp_path: Path) -> None:
    for wrong in (object(), None, torch.nn.Linear(1, 1)):
        with pytest.raises(UsageError, match="UNet, a VAE"):
            attached(wrong, tmp_path)


def _accelerated(pipe: Any) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module

    add_hook_to_module(pipe.vae.decoder, ModelHook())


def _group_offloaded(pipe: Any) -> None:
    """Its entry in diffusers' registry; the offloading itself does not start without an accelerator."""
    from diffusers.hooks import HookRegistry, ModelHook

    HookRegistry.check_if_exists_or_initialize(pipe.unet.mid_block).register_hook(ModelHook(), "group_offloading")


def _stored_in_eight_bits(pipe: Any) -> None:
    pipe.unet.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_accelerated, r"accelerate offloads vae.*remove_all_hooks"),
        (_group_offloaded, r"diffusers' own hooks move or cast unet.*Load the pipeline again"),
        (_stored_in_eight_bits, r"diffusers' own hooks move or cast unet"),
        (lambda pipe: pipe.unet.compile(), r"unet is compiled"),
        (lambda pipe: setattr(pipe, "unet", torch.compile(pipe.unet)), r"unet is compiled"),
        (lambda pipe: setattr(pipe, "hf_device_map", {"unet": 0}), r"reset_device_map"),
    ],
)
def test_a_pipeline_that_something_else_moves_or_replaces_is_refused_with_what_to_do(
    pipe: Any, tmp_path: Path, prepare: Callable[[Any], Any], said: str
) -> None:
    prepare(pipe)
    before = snapshot(pipe)
    with pytest.raises(RefusedError, match=said):
        attached(pipe, tmp_path)
    assert snapshot(pipe) == before


def test_a_second_attachment_is_refused_also_through_a_shared_model(pipe: Any, tmp_path: Path) -> None:
    sharing = diffusers.StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
    with attached(pipe, tmp_path):
        for other in (pipe, sharing):
            with pytest.raises(RefusedError, match="attached already"):
                attached(other, tmp_path)


def test_a_bad_mode_leaves_the_pipeline_alone(pipe: Any, tmp_path: Path) -> None:
    before = snapshot(pipe)
    for options, error in (
        ({"mode": "turbo"}, UsageError),
        ({"mode": "lowvram", "budget_mib": -1}, UsageError),
        ({"mode": "tensorrt"}, RefusedError),
        ({"mode": "full", "budget_mib": 1}, UsageError),
    ):
        with pytest.raises(error):
            attached(pipe, tmp_path, **options)
    assert snapshot(pipe) == before


def test_detaching_within_a_job_is_refused(pipe: Any, tmp_path: Path) -> None:
    said: list[str] = []
    pilot = attached(pipe, tmp_path)

    def detach(own: Any, step: int, timestep: Any, tensors: Any) -> Any:
        with pytest.raises(RefusedError, match="running"):
            pilot.detach()
        said.append("refused")
        return tensors

    image(pipe, num_inference_steps=1, callback_on_step_end=detach)
    pilot.detach()
    assert said == ["refused"]


def test_what_is_saved_from_an_attached_pipeline_names_the_true_classes(pipe: Any, tmp_path: Path) -> None:
    with attached(pipe, tmp_path, mode="medvram"):
        pipe.save_config(str(tmp_path / "saved"))
        pipe.unet.save_config(str(tmp_path / "unet"))
    assert '"StableDiffusionPipeline"' in (tmp_path / "saved" / "model_index.json").read_text()
    assert '"UNet2DConditionModel"' in (tmp_path / "unet" / "config.json").read_text()
