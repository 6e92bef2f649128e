"""The WebUI's own page in a real browser: generations by clicks, the tab, the settings, Reload UI, under a subpath."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.host.client import Client
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, MODES
from tests.host.page import WebUIPage, browser
from tests.host.test_switching import go_on_to
from tests.host.webui import WebUI


def parameters(mode: str | None = None, steps: int = 4) -> str:
    """As they stand in a picture; of the same request as the API's."""
    field = "" if mode is None else f', VRAM mode: "{mode}"'
    return f"a photo of a cat\nSteps: {steps}, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 64x64{field}, Version: v1.10.1"


@pytest.fixture(scope="module")
def new_page() -> Iterator[Callable[[], Page]]:
    with browser() as make:
        yield make


@pytest.fixture
def ui(plain: Client, plain_webui: WebUI, new_page: Callable[[], Page], env: Environment) -> Iterator[WebUIPage]:
    """The page of the shared WebUI; nothing of ours may complain in it."""
    page = WebUIPage(new_page(), plain_webui.url, env.out / "shots").open()
    yield page
    page.page.close()
    assert not page.complaints


# ------------------------------------------------------------------------------------------------ generations


def test_a_generation_in_every_mode(ui: WebUIPage, plain: Client, record: Any) -> None:
    """The accordion's mode, chosen by clicks."""
    expected = plain.txt2img(AS_LAUNCHED).pixels[0]
    ui.paste(parameters())
    ui.open_accordion()
    assert ui.accordion_values()[0] == "(standing mode)"
    for label, mode in {"as-launched": AS_LAUNCHED, **MODES}.items():
        ui.choose("#vram_pilot_txt2img_mode", mode["mode"])
        budget = ui.page.locator("#vram_pilot_txt2img_budget")
        assert budget.is_visible() == (mode["mode"] == "lowvram")
        if budget.is_visible():
            budget.locator("input, textarea").first.fill(str(mode.get("budget_mib", "")))
        ui.generate()
        made = ui.pictures()
        record(label, made)
        assert made == [expected]
        found = plain.newest_session()["mode"]["effective"]
        assert (found["mode"], found["budget_mib"]) == (mode["mode"], mode.get("budget_mib"))
    ui.shoot("accordion")


def test_pasted_parameters(ui: WebUIPage, plain: Client) -> None:
    """B13: what a picture says sets the accordion; what could not be typed leaves it as it is."""
    steps = [
        ("lowvram, budget 32 MiB", ("lowvram", "32")),
        ("lowvram, budget -31528 MiB", ("lowvram", "32")),
        ("lowvram, budget 999999999999 MiB", ("lowvram", "32")),
        ("warp drive", ("lowvram", "32")),
        ("full > medvram", ("medvram", "")),
        (None, ("(standing mode)", "")),
    ]
    ui.open_accordion()
    for mode, expected in steps:
        ui.paste(parameters(mode))
        ui.wait_for(lambda expected=expected: ui.accordion_values() == expected)
    ui.paste(parameters("lowvram, budget 32 MiB"))
    ui.generate()
    assert ui.pictures() == list(plain.txt2img(AS_LAUNCHED).pixels)
    assert plain.get("/vram-pilot/v1/sessions?limit=2")["sessions"][1]["mode"] == "lowvram, budget 32 MiB"


def test_a_budget_that_makes_no_sense_is_said_on_the_page(ui: WebUIPage, plain: Client) -> None:
    ui.paste(parameters("lowvram"))
    ui.open_accordion()
    ui.page.locator("#vram_pilot_txt2img_budget").locator("input, textarea").first.fill("plenty")
    ui.generate()
    assert ui.pictures() == list(plain.txt2img(AS_LAUNCHED).pixels)
    said = ui.page.locator("#html_log_txt2img .comments").first.inner_text()
    assert "VRAM Pilot" in said and "plenty" in said and "Use a whole number" in said


def test_img2img_has_the_accordion_too(ui: WebUIPage) -> None:
    ui.tab("img2img")
    ui.open_accordion("img2img")
    ui.choose("#vram_pilot_img2img_mode", "medvram")
    assert ui.accordion_values("img2img")[0] == "medvram"


def test_a_plot_over_modes_by_clicks(ui: WebUIPage, plain: Client, record: Any) -> None:
    expected = plain.txt2img(AS_LAUNCHED).pixels[0]
    ui.paste(parameters())
    ui.choose("#script_list", "X/Y/Z plot")
    ui.choose("#script_txt2img_xyz_plot_x_type", "[VRAM Pilot] Mode")
    ui.page.locator("#xyz_grid_fill_x_tool_button").first.click()
    with ui.page.expect_websocket() as answer:  # the choice answered: what is filled before that would be emptied
        ui.choose("#script_txt2img_xyz_plot_y_type", "[VRAM Pilot] Budget")
    if not answer.value.is_closed():
        answer.value.wait_for_event("close")
    ui.page.locator("#script_txt2img_xyz_plot_y_values textarea, #script_txt2img_xyz_plot_y_values input").first.fill("0, 32")
    ui.page.locator("#script_txt2img_xyz_plot_include_lone_images input").check()
    ui.generate()
    made = ui.pictures()
    record("plot", made)
    assert len(made) == 9 and set(made[1:]) == {expected}
    rows = plain.get("/vram-pilot/v1/sessions?limit=8")["sessions"]
    streamed = ["lowvram, budget 0 MiB", "lowvram, budget 32 MiB"]
    assert sorted(row["mode"] for row in rows) == sorted(["as-launched", "full", "medvram"] * 2 + streamed)


# ------------------------------------------------------------------------------------------------ the tab


def test_the_tab_during_and_after_a_generation(ui: WebUIPage, plain: Client, record: Any) -> None:
    """Steps appear while they are made; the mode is changed in mid-job by a click, for this job only."""
    expected = plain.txt2img(AS_LAUNCHED, steps=8).pixels
    ui.paste(parameters(steps=8))
    plain.post("/vram-pilot-probe/hold", {"at": 3})
    ui.generate()
    assert plain.get("/vram-pilot-probe/held")["held"]
    ui.open_panel()
    ui.slot("job").wait_for()
    ui.page.locator('#vram-pilot input[name="vp-mode"][value="lowvram"]').check()
    ui.slot("scope").wait_for()
    ui.slot("apply").click()
    ui.wait_for(lambda: "step" in ui.slot("answer").inner_text().lower())
    ui.shoot("panel-during")
    go_on_to(plain, 6)
    ui.wait_for(lambda: ui.slot("mode").inner_text() == "lowvram")
    ui.wait_for(lambda: "step 5 of 8" in ui.slot("job").inner_text())
    go_on_to(plain, None)
    ui.wait_for(lambda: "Done" in ui.slot("job").inner_text())
    ui.wait_for(lambda: ui.slot("mode").inner_text() == "as-launched")
    ui.shoot("panel-after")
    ui.page.locator("#vp-tab-sessions").click()
    ui.page.wait_for_load_state("networkidle")
    ui.shoot("panel-sessions")
    ui.tab("txt2img")
    made = ui.pictures()
    record("switched", made)
    assert made == list(expected)
    history = [(entry["step"], entry["to"]) for entry in plain.newest_session()["mode"]["history"]]
    assert history[0] == (3, "lowvram")


def test_the_standing_mode_is_chosen_in_the_tab(ui: WebUIPage, plain: Client) -> None:
    ui.open_panel()
    for mode in ("medvram", "full", "lowvram"):
        ui.page.locator(f'#vram-pilot input[name="vp-mode"][value="{mode}"]').check()
        ui.slot("apply").click()
        ui.wait_for(lambda mode=mode: ui.slot("mode").inner_text() == mode)
        state = plain.state()["mode"]
        assert state["standing"]["mode"] == state["effective"]["mode"] == mode
    ui.tab("txt2img")
    ui.paste(parameters())
    ui.generate()
    ui.pictures()
    assert plain.newest_session()["mode"]["effective"]["mode"] == "lowvram"


# ------------------------------------------------------------------------------------------------ settings and Reload UI


def test_the_settings_page_has_our_section(ui: WebUIPage, plain: Client) -> None:
    ui.tab("Settings")
    ui.page.locator("#settings > .tab-nav button", has_text="VRAM Pilot").click()
    for name in ("mode", "budget_mib", "record_sessions", "keep_sessions", "write_infotext"):
        ui.page.locator(f"#setting_vram_pilot_{name}").wait_for()
    ui.shoot("settings")
    ui.choose("#setting_vram_pilot_mode", "medvram")
    ui.page.locator("#settings_submit").click()
    ui.wait_for(lambda: plain.state()["mode"]["effective"]["mode"] == "medvram")
    ui.choose("#setting_vram_pilot_mode", "as-launched")
    ui.page.locator("#settings_submit").click()
    ui.wait_for(lambda: plain.state()["mode"]["effective"]["mode"] == "as-launched")


def test_reload_by_its_button(ui: WebUIPage, plain: Client, plain_webui: WebUI) -> None:
    """With the panel open: its stream ends, so that the server can stop, and comes again by itself."""
    expected = list(plain.txt2img(AS_LAUNCHED).pixels)
    plain.mode("medvram", "standing")
    ui.open_panel()
    for _number in range(2):
        since = plain_webui.line_count
        ui.page.locator("#footer a", has_text="Reload UI").click()
        plain_webui.wait_for_reload(since)
        ui.page.locator("#txt2img_generate").wait_for()
        ui.complaints = [text for text in ui.complaints if "Failed to load resource" not in text]  # while the server is away
        ui.open_panel()
        ui.wait_for(lambda: ui.slot("mode").inner_text() != "—")
        assert plain.state()["mode"]["standing"]["mode"] == "medvram"
    ui.tab("txt2img")
    ui.paste(parameters())
    ui.generate()
    assert ui.pictures() == expected


def test_the_panel_is_quiet_while_it_is_hidden(ui: WebUIPage, plain: Client) -> None:
    ui.open_panel()
    with ui.page.expect_event("requestfailed", lambda request: "/vram-pilot/v1/events" in request.url):
        ui.tab("txt2img")  # soon after it the page ends its stream
    before = len(ui.ours())
    plain.txt2img("lowvram", steps=8)
    ui.page.wait_for_timeout(500)
    assert len(ui.ours()) == before


# ------------------------------------------------------------------------------------------------ under a subpath


@contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """A reverse proxy that serves the WebUI below `prefix`, without web sockets."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path[len(prefix) :] or "/", body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            while chunk := answer.read1(65536):
                try:
                    self.wfile.write(chunk)
                    self.wfile.flush()
                except OSError:
                    break
            connection.close()

        do_POST = do_DELETE = do_PUT = do_GET

        def log_message(self, *_args: Any) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        server.server_close()


def test_under_a_subpath(webui: Callable[..., WebUI], new_page: Callable[[], Page], env: Environment) -> None:
    """E16: behind a proxy that strips the prefix, every address of ours is below it."""
    with webui("subpath", "--subpath", "sd") as running, proxy(running.port, "/sd") as url:
        page = WebUIPage(new_page(), f"{url}/", env.out / "shots").open()
        page.open_panel()
        page.page.locator('#vram-pilot input[name="vp-mode"][value="medvram"]').check()
        page.slot("apply").click()
        page.wait_for(lambda: page.slot("mode").inner_text() == "medvram")
        assert page.ours() and all(address.startswith(f"{url}/") for address in page.ours())
        page.page.close()
        assert not page.complaints
