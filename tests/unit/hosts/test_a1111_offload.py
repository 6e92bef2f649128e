"""The WebUI's own medvram and lowvram, disarmed and armed again exactly as they were."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.a1111 import installed


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.inner(z)


class Model(nn.Module):
    """As far as the WebUI's lowvram looks at it."""

    lowvram = False

    def __init__(self) -> None:
        super().__init__()
        self.cond_stage_model = nn.Linear(2, 2)
        self.model = nn.Sequential()
        self.model.diffusion_model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.first_stage_model = Vae()


@pytest.fixture
def webui() -> Iterator[Any]:
    with installed() as found:
        yield found


def offload(webui: Any) -> Any:
    from vram_pilot.hosts.a1111.offload import NativeOffload

    return NativeOffload(webui.lowvram, webui.shared)


def native(webui: Any, flag: str) -> Model:
    model = Model()
    if flag != "none":
        webui.lowvram.setup_for_low_vram(model, flag == "medvram")
        webui.shared.parallel_processing_allowed = False
    return model


def hooks(model: nn.Module) -> dict[str, list[tuple[int, Any]]]:
    found = {name: list(module._forward_pre_hooks.items()) for name, module in model.named_modules()}
    return {name: entries for name, entries in found.items() if entries}


def state(webui: Any, model: Model) -> Any:
    methods = {name: vars(model.first_stage_model).get(name) for name in ("encode", "decode")}
    return hooks(model), methods, model.lowvram, webui.shared.parallel_processing_allowed


def count_native(model: nn.Module) -> int:
    return sum(hook.__module__ == "modules.lowvram" for entries in hooks(model).values() for _key, hook in entries)


FLAGS = ("none", "medvram", "lowvram")


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("serial", [True, False])
def test_taken_and_given_back(webui: Any, flag: str, serial: bool) -> None:
    model = native(webui, flag)
    before, ours = state(webui, model), offload(webui)
    for _number in range(3):
        ours.take_over(model, serial)
        ours.take_over(model, serial)
        assert ours.is_taken() and count_native(model) == 0
        assert not {"encode", "decode"} & set(vars(model.first_stage_model))
        assert (model.lowvram, webui.shared.parallel_processing_allowed) == (serial, not serial)
        ours.give_back()
        ours.give_back()
        assert not ours.is_taken() and state(webui, model) == before


def test_previews_change_with_the_mode(webui: Any) -> None:
    model, ours = native(webui, "medvram"), offload(webui)
    ours.take_over(model, True)
    ours.take_over(model, False)
    assert (model.lowvram, webui.shared.parallel_processing_allowed) == (False, True)
    ours.give_back()
    assert (model.lowvram, webui.shared.parallel_processing_allowed) == (True, False)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_model_that_takes_another_s_place_without_a_word(webui: Any, flag: str) -> None:
    """Both are as they were found in the end, and so are the previews."""
    models = native(webui, flag), native(webui, flag)
    before, ours = [state(webui, model) for model in models], offload(webui)
    for model in models:
        ours.take_over(model, True)
    assert count_native(models[1]) == 0
    assert state(webui, models[0])[:3] == before[0][:3]
    ours.give_back()
    assert [state(webui, model) for model in models] == before


def test_what_is_on_the_device_leaves_it(webui: Any) -> None:
    """The last module that the native hooks brought in is sent away, so that the mode finds everything at home."""
    model, ours = native(webui, "medvram"), offload(webui)
    model.cond_stage_model(torch.zeros(1, 2))
    assert webui.lowvram.module_in_gpu is model.cond_stage_model
    ours.take_over(model, True)
    assert webui.lowvram.module_in_gpu is None


def marker(name: str) -> Any:
    def hook(_module: nn.Module, _args: Any) -> None:
        return None

    hook.__qualname__ = name
    return hook


def names(module: nn.Module) -> list[str]:
    return [hook.__qualname__.rpartition(".")[2] for hook in module._forward_pre_hooks.values()]


@pytest.mark.parametrize("flag", ["medvram", "lowvram"])
def test_hooks_of_others_among_the_native_ones(webui: Any, flag: str) -> None:
    """Added before, after and meanwhile, removed meanwhile: each keeps its place, and its handle still works."""
    model = Model()
    encoder = model.cond_stage_model
    first = encoder.register_forward_pre_hook(marker("first"))
    webui.lowvram.setup_for_low_vram(model, flag == "medvram")
    last = encoder.register_forward_pre_hook(marker("last"))
    ours = offload(webui)
    ours.take_over(model, True)
    assert names(encoder) == ["first", "last"]
    meanwhile = encoder.register_forward_pre_hook(marker("meanwhile"))
    foremost = encoder.register_forward_pre_hook(marker("foremost"), prepend=True)
    last.remove()
    ours.give_back()
    assert names(encoder) == ["first", "send_me_to_gpu", "foremost", "meanwhile"]
    for handle in (meanwhile, foremost):
        handle.remove()
    assert names(encoder) == ["first", "send_me_to_gpu"]
    first.remove()
    assert names(encoder) == ["send_me_to_gpu"]


def test_hooks_work_again_after_they_were_given_back(webui: Any) -> None:
    model, ours = native(webui, "lowvram"), offload(webui)
    ours.take_over(model, True)
    model.model.diffusion_model(torch.zeros(1, 2))
    assert webui.lowvram.module_in_gpu is None
    ours.give_back()
    model.model.diffusion_model(torch.zeros(1, 2))
    assert webui.lowvram.module_in_gpu is model.model.diffusion_model[1]
    model.first_stage_model.decode(torch.zeros(1, 2))
    assert webui.lowvram.module_in_gpu is model.first_stage_model


def test_the_vae_s_methods_under_another_extension_s_are_an_obstacle(webui: Any) -> None:
    """Ours could not be taken out from below, so nothing is touched, and it is said why."""
    model, ours = native(webui, "medvram"), offload(webui)
    assert ours.obstacle(model) is None
    inner = model.first_stage_model.decode
    model.first_stage_model.decode = lambda z: inner(z)
    before = state(webui, model)
    assert "another extension" in (ours.obstacle(model) or "") and "decode" in (ours.obstacle(model) or "")
    assert state(webui, model) == before


def test_another_extension_s_method_without_native_offload_is_none(webui: Any) -> None:
    model, ours = native(webui, "none"), offload(webui)
    theirs = model.first_stage_model.decode = lambda z: z
    assert ours.obstacle(model) is None
    ours.take_over(model, True)
    ours.give_back()
    assert vars(model.first_stage_model)["decode"] is theirs


def test_a_model_that_says_nothing_of_lowvram(webui: Any) -> None:
    model = SimpleNamespace(modules=lambda: iter(()), first_stage_model=Vae())
    ours = offload(webui)
    assert ours.obstacle(model) is None
    ours.take_over(model, True)
    ours.give_back()
    assert model.lowvram is False
