"""The WebUI's own flags: our modes are entered from each, give the same pictures, and leave everything as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.host.modes import AS_LAUNCHED, MODES, in_every_mode
from tests.host.webui import WebUI

FLAGS = {"none": (), "medvram": ("--medvram",), "lowvram": ("--lowvram",)}


@pytest.fixture(scope="module", params=list(FLAGS))
def started(request: pytest.FixtureRequest, webui: Callable[..., WebUI]) -> Iterator[WebUI]:
    if request.param == "none":
        yield request.getfixturevalue("plain_webui")
        return
    with webui(request.param, *FLAGS[request.param]) as running:
        yield running


def native_hooks(model: dict[str, Any]) -> int:
    return sum(hook[1] == "modules.lowvram" for hooks in model["hooks"].values() for hook in hooks["before"])


def settled(client: Any) -> dict[str, Any]:
    """The model after a job as launched: what a job itself leaves behind (a native hook's last module) is there already."""
    client.txt2img(AS_LAUNCHED)
    return dict(client.get("/vram-pilot-probe/model"))


def test_every_mode_gives_the_picture_as_launched(started: WebUI, record: Any) -> None:
    in_every_mode(started.client, lambda mode: started.client.txt2img(mode), record)


def test_every_mode_leaves_the_model_as_it_was_found(started: WebUI) -> None:
    """Hooks in their order, the VAE's methods, flags, and every tensor's identity, device, type and strides."""
    client = started.client
    before, sums = settled(client), client.get("/vram-pilot-probe/checksum")
    expected = {"plain": 0, "medvram": 3, "lowvram": 20}[started.name]
    assert native_hooks(before) >= expected and (native_hooks(before) == 0) == (started.name == "plain")
    for mode in (*MODES.values(), {"mode": "lowvram", "budget_mib": 1}):
        client.mode(**mode, scope="standing")
        inside = client.get("/vram-pilot-probe/model")
        armed = {"encode", "decode"} & set(inside["vae_attributes"])
        assert native_hooks(inside) == 0 and not armed, "the WebUI's own offload is still armed"
        client.txt2img()
        client.mode("as-launched", "standing")
        after = settled(client)
        for key in before:
            assert after[key] == before[key], f"{key} is not as it was before {mode}"
    assert client.get("/vram-pilot-probe/checksum") == sums


def test_five_cycles_leave_nothing_behind(started: WebUI, record: Any) -> None:
    """B1: full, lowvram, full … the number of hooks and the picture are those of the start."""
    client = started.client
    before = settled(client)
    first = client.txt2img("full")
    for _cycle in range(5):
        client.txt2img("lowvram")
        assert client.txt2img("full").pixels == first.pixels
    client.txt2img(AS_LAUNCHED)
    assert client.get("/vram-pilot-probe/model")["hooks"] == before["hooks"]
    record("first", first)


def test_previews_are_decoded_where_components_move(started: WebUI) -> None:
    """Live previews stay on the sampling thread as long as the VAE may be away, and only so long."""
    client = started.client
    launched = client.get("/vram-pilot-probe/model")
    for mode, parallel in (("full", True), ("medvram", False), ("lowvram", False)):
        client.mode(mode, "standing")
        assert client.get("/vram-pilot-probe/model")["parallel"] is parallel
    client.mode("as-launched", "standing")
    assert client.get("/vram-pilot-probe/model")["parallel"] == launched["parallel"]
    assert launched["parallel"] is (started.name == "plain")
