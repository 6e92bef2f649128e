"""E19: Reload UI. Routes, callbacks, patches, threads, axes and settings are there once, however often; the mode stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.host.modes import AS_LAUNCHED, MODES, in_every_mode
from tests.host.test_switching import go_on_to, held
from tests.host.webui import WebUI


@pytest.fixture(scope="module")
def reloaded(webui: Callable[..., WebUI]) -> Iterator[WebUI]:
    with webui("reload") as running:
        yield running


def inventory(running: WebUI) -> dict[str, Any]:
    """What we have in the WebUI, after a job, when everything that starts late has started."""
    running.client.txt2img()
    running.client.newest_session()
    return dict(running.client.get("/vram-pilot-probe/extension"))


def test_three_reloads(reloaded: WebUI, record: Any) -> None:
    client = reloaded.client
    expected = client.txt2img(AS_LAUNCHED)
    before = inventory(reloaded)
    assert all(depth == 1 for depth in before["depths"].values()), before["depths"]
    assert before["scripts"] == {"txt2img": 1, "img2img": 1} and len(before["axes"]) == 2
    assert len(before["routes"]) == len(set(before["routes"])) > 5
    client.mode("lowvram", "standing", budget_mib=32)
    for number in range(3):
        reloaded.reload()
        state = client.state()["mode"]
        assert state["standing"] == {"mode": "lowvram", "budget_mib": 32, "accelerate": "off"}, f"after reload {number + 1}"
        made = client.txt2img()
        record(f"after reload {number + 1}", made)
        assert made.pixels == expected.pixels
        session = client.newest_session()
        assert session["mode"]["effective"]["mode"] == "lowvram" and len(session["steps"]) == 4
        assert inventory(reloaded) == before
    client.mode("as-launched", "standing")
    in_every_mode(client, lambda mode: client.txt2img(mode), record)


def test_a_reload_puts_the_model_back_before_the_scripts_come_again(reloaded: WebUI) -> None:
    client = reloaded.client
    client.txt2img(AS_LAUNCHED)
    before = client.get("/vram-pilot-probe/model")
    client.mode("lowvram", "standing")
    client.txt2img()
    reloaded.reload()
    assert client.state()["mode"]["effective"]["mode"] == "as-launched", "the mode is entered with the next job"
    assert client.get("/vram-pilot-probe/model") == before
    client.mode("as-launched", "standing")


@pytest.mark.parametrize("label", list(MODES))
def test_a_reload_in_mid_job(reloaded: WebUI, label: str, record: Any) -> None:
    """The WebUI interrupts the job; nothing of it is left, and the next one is right."""
    client = reloaded.client
    client.mode("as-launched", "standing")
    expected = client.txt2img(AS_LAUNCHED)
    before = inventory(reloaded)
    client.mode(**MODES[label], scope="standing")
    since = reloaded.line_count
    with held(client, 2, lambda: client.txt2img(steps=8)) as running:
        client.post("/vram-pilot-probe/restart", {})
        go_on_to(client, None)
        running.result()
        reloaded.wait_for_reload(since)
    assert client.newest_session()["status"] == "interrupted"
    made = client.txt2img()
    record("next", made)
    assert made.pixels == expected.pixels
    assert client.newest_session()["mode"]["effective"]["mode"] == MODES[label]["mode"]
    assert inventory(reloaded) == before
    client.mode("as-launched", "standing")


def test_another_extension_wraps_what_we_wrap(reloaded: WebUI, record: Any) -> None:
    """What it calls for ever is dead weight afterwards: jobs and steps are still counted once."""
    client = reloaded.client
    expected = client.txt2img(AS_LAUNCHED)
    client.post("/vram-pilot-probe/wrap", {})
    depths = []
    for _number in range(3):
        reloaded.reload()
        made = client.txt2img("lowvram")
        assert made.pixels == expected.pixels
        session = client.newest_session()
        assert session["status"] == "ok" and [step["calls"] for step in session["steps"]] == [1, 1, 1, 1]
        assert client.state()["mode"]["in_job"] is False
        depths.append(inventory(reloaded)["depths"]["process_images_inner"])
    assert depths == [3, 3, 3], "one dead wrapper is left below the other extension's, and no more"
