"""`python -m vram_pilot serve`, in this process: the page, its buttons, the routes beside it, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.fakes.listening import RecordingListener
from tests.ports import free_port
from vram_pilot.app import App
from vram_pilot.cli import main
from vram_pilot.commands import serve as command
from vram_pilot.commands.standalone import write_mode_into_images
from vram_pilot.hosts.standalone.address import Address
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.page import Page
from vram_pilot.panel.fields import STANDING

pytestmark = pytest.mark.slow  # each starts a server of its own


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def get(url: str, cookie: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Cookie": cookie} if cookie else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command; `look` is called with the page's address while it serves."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def run(look: Callable[[str], None], *options: str) -> int:
        port = free_port()
        monkeypatch.setattr(command, "_wait", lambda: look(f"http://127.0.0.1:{port}"))
        return main(["serve", "--port", str(port), "--device", "cpu", "--data-dir", str(tmp_path / "state"), *options])

    return run


# ---------------------------------------------------------------------------------------------------- the server


def test_page_assets_and_routes_are_served_and_gone_afterwards(
    serving: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def look(url: str) -> None:
        status, page = get(url)
        assert status == 200
        loaded = re.findall(r"""<(?:script|link)[^>]*\s(?:src|href)=["']([^"']+)""", page)
        assert loaded and not [address for address in loaded if re.match(r"(https?:)?//", address)], "nothing from elsewhere"
        ours = [address for address in loaded if "vram-pilot/assets" in address]
        assert {address.partition("?")[0].rpartition("/")[2] for address in ours} == {"style.css", "vram_pilot.mjs"}
        assert [get(f"{url}/{address}")[0] for address in ours] == [200, 200]
        seen["state"] = json.loads(get(f"{url}/vram-pilot/v1/state")[1])
        seen["url"] = url

    assert serving(look, "--mode", "medvram") == 0
    assert seen["state"]["mode"]["standing"]["mode"] == "medvram"
    with pytest.raises(urllib.error.URLError):
        get(seen["url"])
    printed = capsys.readouterr()
    assert seen["url"] in printed.err and "Stopped." in printed.err and printed.out == ""


def test_with_a_login_page_and_routes_need_it(serving: Callable[..., int]) -> None:
    def look(url: str) -> None:
        assert get(f"{url}/vram-pilot/v1/state")[0] == 401
        assert get(f"{url}/config")[0] == 401
        form = urllib.request.Request(f"{url}/login", data=b"username=me&password=pass:word")
        with urllib.request.urlopen(form, timeout=10) as answer:
            cookies = "; ".join(value.partition(";")[0] for value in answer.headers.get_all("set-cookie"))
        assert get(f"{url}/vram-pilot/v1/state", cookies)[0] == 200

    assert serving(look, "--gradio-auth", "me:pass:word") == 0


def test_off_generates_and_the_routes_say_off(serving: Callable[..., int]) -> None:
    def look(url: str) -> None:
        assert json.loads(get(f"{url}/vram-pilot/v1/state")[1])["off"] is True

    assert serving(look, "--vram-pilot-off") == 0


def test_a_subpath_is_the_page_s_root(serving: Callable[..., int]) -> None:
    def look(url: str) -> None:
        config = re.search(r"window\.gradio_config = (\{.*?\});</script>", get(url)[1], re.DOTALL)
        assert config is not None and "/sd/pilot" in config[1]

    assert serving(look, "--subpath", "/sd/pilot/") == 0


def test_a_port_that_is_taken_ends_with_1_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StandaloneHost, "load", lambda self, name: pytest.fail("a model was loaded"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--device", "cpu", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said and "--port" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "0"], "1 to 65535"),
        (["--port", "70000"], "1 to 65535"),
        (["--gradio-auth", "me"], "USER:PASS"),
        (["--gradio-auth", ":x"], "USER:PASS"),
        (["--subpath", "/a b"], "--subpath /sd"),
        (["--subpath", "https://x/y?z"], "--subpath /sd"),
        (["--mode", "turbo"], "lowvram"),
        (["--model", "none.safetensors"], "tiny, sd15"),
    ],
)
def test_wrong_usage_ends_with_2(options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", str(free_port()), "--device", "cpu", "--data-dir", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_ends_with_a_signal_and_leaves_the_handlers_as_they_were(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    press = threading.Timer(0.05, lambda: signal.raise_signal(number))
    press.start()
    command._wait()
    press.join()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("name", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.1.2", False), ("pc.lan", False)],
)
def test_what_only_this_machine_can_reach_is_local(name: str, local: bool) -> None:
    assert Address(name).is_local is local


# ---------------------------------------------------------------------------------------------------- the page's buttons


@pytest.fixture(scope="module")
def host() -> StandaloneHost:
    host = StandaloneHost("cpu")
    host.load("tiny")
    return host


@pytest.fixture
def page(host: StandaloneHost, tmp_path: Path) -> Iterator[Page]:
    app = App(host, tmp_path / "state")
    write_mode_into_images(host, app)
    app.start()
    page = Page(host, app, "tiny")
    yield page
    app.stop()
    app.store.close()
    page.close()
    host.extra_infotext = dict


def values(**changes: Any) -> list[Any]:
    """The page's fields as gradio gives them, the accordion's last."""
    fields: dict[str, Any] = {
        **{"steps": 2, "sampler": "Euler", "width": 64, "height": 64.0, "cfg": 7, "size": 1, "count": 1, "seed": 5.0},
        **{"hires": False, "scale": 2, "strength": 0.7, "mode": STANDING, "budget": ""},
    }
    return list({**fields, **changes}.values())


def test_generate_gives_files_parameters_and_a_status(page: Page) -> None:
    paths, text, status = page.generate("a cat", "", *values(count=2, mode="lowvram", budget="1"))
    assert "2 images in" in status and "vp-error" not in status
    assert "Seed: 5" in text and "Seed: 6" in text and 'VRAM mode: "lowvram, budget 1 MiB"' in text
    with Image.open(paths[1]) as read:
        assert read.size == (64, 64) and read.info["parameters"] == text.split("\n\n")[1]


def test_the_mode_is_written_only_when_one_of_ours_was_in_force(page: Page) -> None:
    assert "VRAM mode" not in page.generate("a cat", "", *values())[1]
    page.app.write_infotext = False
    assert "VRAM mode" not in page.generate("a cat", "", *values(mode="full"))[1]


def test_a_new_seed_is_another_one_each_time_and_is_said(page: Page) -> None:
    texts = [page.generate("a cat", "", *values(seed=-1))[1] for _ in range(2)]
    seeds = {re.search(r"Seed: (\d+)", text)[1] for text in texts}  # type: ignore[index]
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"width": 65}, "width"),
        ({"width": None}, "width"),
        ({"seed": 0.5}, "seed"),
        ({"seed": "<b>"}, "&lt;b&gt;"),
        ({"mode": "lowvram", "budget": "-1"}, "budget_mib"),
        ({"mode": "tensorrt"}, "not in this version"),
        ({"hires": True, "scale": 9}, "hires"),
    ],
)
def test_bad_input_is_said_and_nothing_runs(page: Page, changes: dict[str, Any], said: str) -> None:
    paths, text, status = page.generate("a cat", "", *values(**changes))
    assert (paths, text) == ([], "")
    assert 'role="alert"' in status and said in status
    assert page.app.store.list() == []


def test_a_failure_keeps_what_was_made_and_says_what_to_do(page: Page) -> None:
    calls: list[int] = []

    def fail(*args: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = page.host.components()[1].module.register_forward_pre_hook(fail)
    paths, _, status = page.generate("a cat", "", *values(count=2))
    handle.remove()
    assert len(paths) == 1 and "leaner mode" in status


def test_an_interrupted_job_says_so(page: Page) -> None:
    handle = page.host.components()[1].module.register_forward_pre_hook(lambda *args: page.host.interrupt())
    paths, _, status = page.generate("a cat", "", *values())
    handle.remove()
    assert paths == [] and "Interrupted" in status


def test_another_model_is_loaded_by_name_and_only_by_those_who_may(page: Page) -> None:
    listener = RecordingListener()
    page.host.subscribe(listener)
    assert page.load("tiny") == ""
    assert [event[0] for event in listener.events] == ["changing", "changed"]
    assert "no such model" in page.load("/etc/passwd")
    page.app._allow_control = lambda: False
    assert "everybody" in page.load("tiny")
    assert len(listener.events) == 2


def test_the_images_are_gone_with_the_page(host: StandaloneHost, tmp_path: Path) -> None:
    page = Page(host, App(host, tmp_path), "tiny")
    paths, _, _ = page.generate("a cat", "", *values())
    page.close()
    assert not Path(paths[0]).exists()
