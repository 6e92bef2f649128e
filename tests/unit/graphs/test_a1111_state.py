"""What the WebUI's denoiser reads is part of the key, and what cannot be repeated is refused by name."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vram_pilot.graphs.capture import CAPTURE_LOCK
from vram_pilot.graphs.signature import NotCapturable

#: Names as in the WebUI 1.10.1.
MODULES = ("devices", "sd_hijack", "sd_unet", "shared", "shared_state")


class Network:
    def __init__(self, name: str, unet: float) -> None:
        self.name, self.te_multiplier, self.unet_multiplier, self.dyn_dim = name, 1.0, unet, None


class WebUI:
    """`modules` with what the state is made of."""

    def __init__(self) -> None:
        self.modules = {name: types.ModuleType(f"modules.{name}") for name in MODULES}
        self.networks = types.ModuleType("networks")
        self.networks.loaded_networks = []  # type: ignore[attr-defined]
        self["devices"].unet_needs_upcast = False
        self["devices"].dtype_unet = self["devices"].dtype = self["devices"].dtype_inference = torch.float16
        self["devices"].force_fp16 = self["devices"].fp8 = False
        self["devices"].torch_gc = lambda: self.log.append("gc")
        self["sd_hijack"].model_hijack = types.SimpleNamespace(optimization_method="sdp", circular_enabled=False)
        self["sd_unet"].current_unet = None
        self["shared"].loaded_hypernetworks = []
        self["shared"].opts = types.SimpleNamespace(upcast_attn=False, lora_functional=False)
        self["shared"].cmd_opts = types.SimpleNamespace(sub_quad_q_chunk_size=1024, xformers_flash_attention=False)
        self["shared_state"].State = type("State", (), {"do_set_current_image": lambda state: self.log.append("preview")})
        self.log: list[str] = []
        self.model = types.SimpleNamespace(applied_token_merged_ratio=0)

    def __getitem__(self, name: str) -> Any:
        return self.modules[name]


@pytest.fixture
def webui(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebUI]:
    made = WebUI()
    package = types.ModuleType("modules")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "modules", package)
    monkeypatch.setitem(sys.modules, "networks", made.networks)
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, f"modules.{name}", module)
        setattr(package, name, module)
    yield made
    for name in ("computation", "waiting"):
        sys.modules.pop(f"vram_pilot.hosts.a1111.{name}", None)


def ours(name: str) -> Any:
    sys.modules.pop(f"vram_pilot.hosts.a1111.{name}", None)
    return importlib.import_module(f"vram_pilot.hosts.a1111.{name}")


CHANGES = {
    "a network": lambda webui: webui.networks.loaded_networks.append(Network("a", 1.0)),
    "attention": lambda webui: setattr(webui["sd_hijack"].model_hijack, "optimization_method", "xformers"),
    "tiling": lambda webui: setattr(webui["sd_hijack"].model_hijack, "circular_enabled", True),
    "precision": lambda webui: setattr(webui["devices"], "dtype_unet", torch.float32),
    "inference precision": lambda webui: setattr(webui["devices"], "dtype_inference", torch.float32),
    "upcast": lambda webui: setattr(webui["devices"], "unet_needs_upcast", True),
    "fp8": lambda webui: setattr(webui["devices"], "fp8", True),
    "upcast attention": lambda webui: setattr(webui["shared"].opts, "upcast_attn", True),
    "functional": lambda webui: setattr(webui["shared"].opts, "lora_functional", True),
    "chunks": lambda webui: setattr(webui["shared"].cmd_opts, "sub_quad_q_chunk_size", 512),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_the_forward_reads_is_part_of_the_state(webui: WebUI, change: Any) -> None:
    state = ours("computation").state
    before = state(webui.model)
    assert state(webui.model) == before and hash(before) == hash(state(webui.model))
    change(webui)
    assert state(webui.model) != before


def test_a_multiplier_is_part_of_the_state(webui: WebUI) -> None:
    state = ours("computation").state
    webui.networks.loaded_networks = [Network("a", 1.0)]  # type: ignore[attr-defined]
    before = state(webui.model)
    webui.networks.loaded_networks = [Network("a", 0.5)]  # type: ignore[attr-defined]
    assert state(webui.model) != before


def functional(webui: WebUI) -> None:
    CHANGES["a network"](webui)
    CHANGES["functional"](webui)


REFUSED = {
    "a hypernetwork is loaded": lambda webui: webui["shared"].loaded_hypernetworks.append("h"),
    "token merging is on": lambda webui: setattr(webui.model, "applied_token_merged_ratio", 0.5),
    "another SD Unet is chosen": lambda webui: setattr(webui["sd_unet"], "current_unet", object()),
    "networks are computed beside the weights (setting lora_functional)": functional,
}


@pytest.mark.parametrize(("reason", "change"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_repeated_is_named(webui: WebUI, reason: str, change: Any) -> None:
    change(webui)
    with pytest.raises(NotCapturable) as caught:
        ours("computation").state(webui.model)
    assert str(caught.value) == reason


def test_without_the_lora_extension_and_with_older_names_there_is_a_state(webui: WebUI) -> None:
    del sys.modules["networks"]
    del webui["devices"].dtype_inference, webui["devices"].fp8, webui["shared"].opts.lora_functional
    assert hash(ours("computation").state(webui.model)) is not None


@pytest.mark.parametrize("which", ["gc", "preview"])
def test_other_threads_wait_for_a_capture(webui: WebUI, which: str) -> None:
    from vram_pilot.hosts.a1111.patches import Patches

    patches = Patches()
    originals = webui["devices"].torch_gc, webui["shared_state"].State.do_set_current_image
    ours("waiting").wait_for_captures(patches)
    work = webui["devices"].torch_gc if which == "gc" else webui["shared_state"].State().do_set_current_image
    started, done = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        work()
        done.set()

    with CAPTURE_LOCK:
        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(5) and not done.wait(0.05)
        assert webui.log == []
        work()  # the capturing thread itself does not wait
        assert webui.log == [which]
    assert done.wait(5)
    thread.join()
    assert webui.log == [which, which]
    patches.undo()
    assert (webui["devices"].torch_gc, webui["shared_state"].State.do_set_current_image) == originals
