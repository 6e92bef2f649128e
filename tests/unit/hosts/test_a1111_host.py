"""The WebUI as a host: its model and parts, what stands in the way, and work under its queue."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.a1111 import installed
from tests.fakes.listening import RecordingListener


@pytest.fixture
def webui() -> Iterator[Any]:
    with installed() as found:
        yield found


@pytest.fixture
def host(webui: Any) -> Any:
    from vram_pilot.hosts.a1111.host import A1111Host

    return A1111Host("v1.10.1")


class Net(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


def model(family: str = "sd1", **parts: Any) -> Any:
    info = SimpleNamespace(model_name="folder/some-model", filename="some-model.safetensors")
    flags = {f"is_{name}": name == family for name in ("sd1", "sd2", "sdxl", "sd3", "ssd")}
    inner = SimpleNamespace(diffusion_model=Net())
    known = {
        "sd_checkpoint_info": info,
        "sd_model_hash": "0123456789",
        "model": inner,
        "first_stage_model": Net(),
        "lowvram": False,
    }
    encoder = {"conditioner": Net()} if family == "sdxl" else {"cond_stage_model": Net()}
    return SimpleNamespace(**{**known, **flags, **encoder, "modules": lambda: iter(()), **parts})


# ------------------------------------------------------------------------------------------------ the model


def test_without_a_model_there_is_none(webui: Any, host: Any) -> None:
    """B3: also while one is half loaded, without the checkpoint's name."""
    for found in (None, SimpleNamespace(), SimpleNamespace(sd_checkpoint_info=None)):
        webui.sd_models.model_data.sd_model = found
        assert host.model() is None and host.components() == () and host.obstacle() is None


@pytest.mark.parametrize("family", ["sd1", "sd2", "sdxl", "sd3"])
def test_what_a_model_consists_of(webui: Any, host: Any, family: str) -> None:
    loaded = webui.sd_models.model_data.sd_model = model(family)
    found = host.model()
    assert (found.family, found.name, found.digest) == (family, "some-model", "0123456789")
    parts = {component.name: component.module for component in host.components()}
    encoder = loaded.conditioner if family == "sdxl" else loaded.cond_stage_model
    assert list(parts) == ["text_encoder", "denoiser", "vae"]
    assert list(parts.values()) == [encoder, loaded.model.diffusion_model, loaded.first_stage_model]


def test_parts_of_other_variants(webui: Any, host: Any) -> None:
    webui.sd_models.model_data.sd_model = model("sd2", depth_model=Net(), embedder=Net())
    assert [component.name for component in host.components()][3:] == ["other:depth_model", "other:embedder"]
    webui.sd_models.model_data.sd_model = model("none of them")
    assert host.model().family == "unknown"


# ------------------------------------------------------------------------------------------------ obstacles


def test_another_extension_executes_the_denoiser(webui: Any, host: Any) -> None:
    webui.sd_models.model_data.sd_model = model()
    assert host.obstacle() is None
    webui.sd_unet.options["[TRT] some-model"] = SimpleNamespace(label="[TRT] some-model")
    webui.sd_unet.apply_unet("[TRT] some-model")
    assert "[TRT] some-model" in host.obstacle() and "SD Unet" in host.obstacle()


def test_the_device(webui: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "cuda" alone means the current card, whose number names it."""
    assert host.device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    webui.devices.device = torch.device("cuda")
    assert host.device() == torch.device("cuda", 1)
    webui.devices.device = torch.device("cuda:3")
    assert host.device() == torch.device("cuda", 3)


# ------------------------------------------------------------------------------------------------ the queue


def test_work_when_idle(webui: Any, host: Any) -> None:
    """Under the queue and under the lock of the first load, both free again afterwards, also after an exception."""
    queue, loading = webui.call_queue.queue_lock, webui.sd_models.model_data.lock
    seen: list[bool] = []
    assert host.run_when_idle(lambda: seen.append(queue.acquire(blocking=False) or loading.acquire(blocking=False)))
    assert seen == [False]

    def fails() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        host.run_when_idle(fails)
    for lock in (queue, loading):
        assert lock.acquire(blocking=False)
        lock.release()


def test_no_work_while_anything_goes_on(webui: Any, host: Any) -> None:
    queue, loading = webui.call_queue.queue_lock, webui.sd_models.model_data.lock
    for lock in (queue, loading):
        with lock:
            assert not host.run_when_idle(lambda: pytest.fail("not idle"))
    host.jobs._depth = 1
    assert not host.run_when_idle(lambda: pytest.fail("not idle"))
    host.jobs._depth = 0
    assert host.run_when_idle(lambda: None), "every lock is free again"


def test_work_ends_a_job_that_was_lost(webui: Any, host: Any) -> None:
    heard = RecordingListener()
    end = host.subscribe(heard)
    host.jobs.before_process(webui.processing.StableDiffusionProcessing(), None)
    assert host.run_when_idle(lambda: None)
    assert heard.events[-1][:2] == ("end", "error")
    end()


def test_interrupt(webui: Any, host: Any) -> None:
    host.interrupt()
    assert webui.shared.state.interrupted
