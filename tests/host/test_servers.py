"""Other ways to start the WebUI: without its page, with logins, under a subpath, with us switched off, after a crash."""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.client import AnswerError, Client
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, in_every_mode
from tests.host.webui import WebUI

ROUTES = (
    ("GET", "/vram-pilot/v1/state", None),
    ("GET", "/vram-pilot/v1/events?poll=1", None),
    ("POST", "/vram-pilot/v1/mode", {"mode": "as-launched"}),
    ("GET", "/vram-pilot/v1/sessions", None),
    ("GET", "/vram-pilot/v1/sessions/compare?a=x&b=y", None),
    ("GET", "/vram-pilot/v1/sessions/20200101-000000-00000000", None),
    ("GET", "/vram-pilot/v1/sessions/20200101-000000-00000000/report", None),
    ("DELETE", "/vram-pilot/v1/sessions/20200101-000000-00000000", {}),
)


# ------------------------------------------------------------------------------------------------ --nowebui


def test_without_the_page(webui: Callable[..., WebUI], record: Any) -> None:
    """E15: routes and modes are there; no page is built and no tab."""
    with webui("nowebui", "--nowebui") as running:
        client = running.client
        assert client.state()["host"]["name"] == "AUTOMATIC1111"
        in_every_mode(client, lambda mode: client.txt2img(mode), record)
        client.mode("medvram", "standing")
        client.txt2img()
        session = client.newest_session()
        assert session["mode"]["effective"]["mode"] == "medvram" and len(session["steps"]) == 4
        found = client.get("/vram-pilot-probe/extension")
        assert found["axes"] and found["settings"]
        status, _body, _headers = client.call("GET", "/")
        assert status == 404
        assert not [line for line in running.lines() if "Error" in line and "vram_pilot" in line]


# ------------------------------------------------------------------------------------------------ logins


@pytest.fixture(scope="module")
def guarded(webui: Callable[..., WebUI]) -> Iterator[WebUI]:
    with webui("guarded", "--api-auth", "api:secret,second:word", "--gradio-auth", "page:door") as running:
        yield running


def statuses(client: Client, headers: dict[str, str]) -> set[int]:
    return {client.call(method, path, body, headers=headers)[0] for method, path, body in ROUTES}


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def cookie(running: WebUI, user: str, password: str) -> dict[str, str]:
    """What the page's own login form gives."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    form = urllib.parse.urlencode({"username": user, "password": password})
    connection.request("POST", "/login", form, {"Content-Type": "application/x-www-form-urlencoded"})
    answer = connection.getresponse()
    answer.read()
    set_cookies = [value.partition(";")[0] for name, value in answer.getheaders() if name.lower() == "set-cookie"]
    return {"Cookie": "; ".join(set_cookies)}


def test_every_route_needs_the_login(guarded: WebUI) -> None:
    """E17."""
    client = guarded.client
    for headers in ({}, basic("api:wrong"), basic("page:door"), basic("api"), {"Cookie": "access-token=guess"}):
        assert statuses(client, headers) == {401}, headers
    assert cookie(guarded, "page", "wrong") == {"Cookie": ""}


def test_either_login_opens_every_route(guarded: WebUI) -> None:
    client = guarded.client
    for headers in (basic("api:secret"), basic("second:word"), cookie(guarded, "page", "door")):
        assert 401 not in statuses(client, headers), headers
        assert client.call("GET", "/vram-pilot/v1/state", headers=headers)[0] == 200


def test_the_login_outlives_a_reload(guarded: WebUI) -> None:
    old = cookie(guarded, "page", "door")
    guarded.reload()
    assert statuses(guarded.client, {}) == {401}
    assert 401 not in statuses(guarded.client, basic("api:secret"))
    assert 401 not in statuses(guarded.client, cookie(guarded, "page", "door"))
    page, _body, _headers = guarded.client.call("GET", "/config", headers=old)
    ours, _body, _headers = guarded.client.call("GET", "/vram-pilot/v1/state", headers=old)
    assert (page == 200) == (ours == 200), "an old cookie opens our routes exactly when it opens the page"


def test_no_secret_is_written(guarded: WebUI) -> None:
    """E17: neither into a session nor into a report."""
    client = Client(guarded.url, basic("api:secret")["Authorization"])
    client.txt2img("lowvram", prompt="a secret garden of words")
    session = client.newest_session()
    texts = [str(session)]
    for form in client.state()["offers"]["reports"]:
        _status, body, _headers = client.call("GET", f"/vram-pilot/v1/sessions/{session['id']}/report?format={form}")
        texts.append(body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body))
    for word in ("secret", "door", "garden", "api:", str(guarded.data), str(guarded.env.webui)):
        assert not any(word in text for text in texts), word


# ------------------------------------------------------------------------------------------------ switched off


def test_switched_off(webui: Callable[..., WebUI], record: Any) -> None:
    with webui("off", "--vram-pilot-off", "--vram-pilot-mode", "lowvram") as running:
        client = running.client
        assert client.state()["off"] is True
        for method, path, body in ROUTES[1:]:
            status, answer, _headers = client.call(method, path, body)
            assert status == 409 and answer["off"] is True and "--vram-pilot-off" in answer["do"], (path, answer)
        found = client.get("/vram-pilot-probe/extension")
        assert not found["axes"] and not found["settings"] and not found["threads"]
        assert set(found["depths"].values()) == {0} and set(found["scripts"].values()) == {0}
        assert set(found["callbacks"]) == {"callbacks_app_started"}
        made = client.txt2img()
        record("off", made)
        with pytest.raises(AnswerError) as failure:
            client.txt2img("lowvram")
        assert failure.value.status == 422
        assert not (running.data / "vram-pilot").exists()
        hooks = client.get("/vram-pilot-probe/model")["hooks"]
        assert not hooks
        running.reload()
        assert client.txt2img().pixels == made.pixels and client.state()["off"] is True


# ------------------------------------------------------------------------------------------------ a crash


def test_a_start_after_a_crash_in_an_activation(webui: Callable[..., WebUI], tmp_path: Path, record: Any) -> None:
    """The process dies while a job enters a mode; the next start is as launched and says why, although settings ask for it."""
    with webui("crash", data=tmp_path) as running:
        client = running.client
        expected = client.txt2img(AS_LAUNCHED)
        client.post("/sdapi/v1/options", {"vram_pilot_mode": "medvram"})
        assert client.state()["mode"]["effective"]["mode"] == "medvram", "a setting holds at once"
        client.mode("full", "standing")
        client.post("/vram-pilot-probe/break-activation", {"how": "exit"})
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            client.txt2img("medvram")
        assert running.wait_for_end() == 9
    with webui("after-crash", data=tmp_path) as running:
        client = running.client
        mode = client.state()["mode"]
        assert (mode["standing"]["mode"], mode["effective"]["mode"]) == ("as-launched", "as-launched")
        assert any("medvram" in note and "last start" in note for note in mode["notes"]), mode["notes"]
        assert client.newest_session()["status"] == "aborted"
        made = client.txt2img()
        record("after the crash", made)
        assert made.pixels == expected.pixels and client.newest_session()["mode"]["effective"]["mode"] == "as-launched"
        assert client.txt2img("medvram").pixels == expected.pixels
        assert client.newest_session()["mode"]["effective"]["mode"] == "medvram"


# ------------------------------------------------------------------------------------------------ a subpath, and other flags


def test_other_flags_and_a_mode_from_the_start(webui: Callable[..., WebUI], tmp_path: Path, record: Any) -> None:
    """--device-id means nothing on a CPU; a mode given by flag stands from the first job; the state may lie elsewhere."""
    folder = tmp_path / "elsewhere"
    flags = ("--device-id", "0", "--subpath", "sd", "--vram-pilot-mode", "medvram", "--vram-pilot-data-dir", str(folder))
    with webui("flags", *flags) as running:
        client = running.client
        made = client.txt2img()
        record("medvram by flag", made)
        assert client.newest_session()["mode"]["effective"]["mode"] == "medvram"
        assert made.pixels == client.txt2img(AS_LAUNCHED).pixels
        assert folder.is_dir() and not (running.data / "vram-pilot").exists()


def test_native_medvram_for_sdxl_only(webui: Callable[..., WebUI], env: Environment, record: Any) -> None:
    """The WebUI's flag arms its offload for one family; a mode that stands goes over from one model to the other."""
    names = (env.names.sd1[0], env.names.sdxl)
    with webui("medvram-sdxl", "--medvram-sdxl") as running:
        client = running.client
        expected, launched = {}, {}
        for name in names:
            expected[name] = client.txt2img(override_settings={"sd_model_checkpoint": name}).pixels
            found = client.get("/vram-pilot-probe/model")
            launched[name] = {key: found[key] for key in ("hooks", "lowvram", "parallel")}
            launched[name]["hooks"] = {place: len(hooks["before"]) for place, hooks in found["hooks"].items()}
        assert launched[names[0]]["parallel"] and not launched[names[1]]["parallel"]
        for mode in ("full", "medvram", "lowvram"):
            client.mode(mode, "standing")
            for name in names:
                made = client.txt2img(override_settings={"sd_model_checkpoint": name})
                record(f"{mode} {name}", made)
                assert made.pixels == expected[name] and client.state()["mode"]["effective"]["mode"] == mode
        client.mode("as-launched", "standing")
        for name in names:
            assert client.txt2img(override_settings={"sd_model_checkpoint": name}).pixels == expected[name]
            found = client.get("/vram-pilot-probe/model")
            hooks = {place: len(hooks["before"]) for place, hooks in found["hooks"].items()}
            assert {"hooks": hooks, "lowvram": found["lowvram"], "parallel": found["parallel"]} == launched[name]
