"""The panel in a real browser, on a page of the gradio that this environment has."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.responses import FileResponse
from playwright.sync_api import Browser, Route, expect

from tests.browser.panel import HIDE_PAGE, HIDEABLE, SESSION, SHOW_PAGE, Watched, drop, shoot, watched
from tests.fakes.panel_app import FakeApp
from tests.fakes.panel_server import HeadMiddleware, host_application, page, serving
from vram_pilot.panel import assets
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.fields import request_from_fields
from vram_pilot.panel.routes import register
from vram_pilot.settings import ModeRequest

#: The promise to who watches.
SOON_S = 0.5


# --------------------------------------------------------------------------------------------------------------- the mode


def test_the_mode_is_changed_by_clicks(seen: Watched) -> None:
    seen.open_tab()
    seen.page.get_by_text("medvram", exact=True).click()
    seen.slot("apply").click()
    expect(seen.slot("answer")).to_have_text("In force.")
    expect(seen.slot("mode")).to_have_text("medvram")
    assert seen.app.controller.requests[0][:2] == (ModeRequest("medvram"), "standing")


def test_a_budget_goes_with_lowvram_and_a_job_can_be_meant_alone(seen: Watched) -> None:
    seen.open_tab()
    expect(seen.slot("budget-row")).to_be_hidden()
    seen.app.start_job()
    expect(seen.slot("scope")).to_be_visible()
    seen.page.get_by_text("lowvram", exact=True).click()
    seen.page.get_by_label("Budget (MiB)", exact=True).fill("512")
    seen.slot("apply").click()
    expect(seen.slot("answer")).to_have_text("Applied at the running job's next step.")
    expect(seen.slot("why")).to_contain_text("lowvram, 512 MiB is applied at the running job's next step")
    seen.app.controller.apply()
    expect(seen.slot("mode")).to_have_text("lowvram, 512 MiB")
    assert seen.app.controller.requests[0][:2] == (ModeRequest("lowvram", 512), "job")


def test_a_refusal_is_read_out_with_its_advice(browser: Browser, app: FakeApp) -> None:
    app.controller.refuses = "full cannot be used: the card is too small"
    with watched(browser, app) as seen:
        seen.open_tab()
        seen.page.get_by_text("full", exact=True).click()
        seen.slot("apply").click()
        expect(seen.slot("answer")).to_have_text("full cannot be used: the card is too small. Choose another mode.")
        expect(seen.slot("answer")).to_have_attribute("role", "status")
        expect(seen.slot("mode")).to_have_text("as-launched")
        seen.complaints[:] = [text for text in seen.complaints if "409" not in text]  # the browser's own line of the answer


def test_a_change_from_elsewhere_is_shown_but_not_over_what_is_being_chosen(seen: Watched) -> None:
    seen.open_tab()
    seen.page.get_by_text("medvram", exact=True).click()
    seen.app.controller.request(ModeRequest("full"))
    expect(seen.slot("mode")).to_have_text("full")
    expect(seen.page.locator('[name="vp-mode"][value="medvram"]')).to_be_checked()


def test_everything_is_reached_by_the_keyboard(seen: Watched) -> None:
    seen.open_tab()
    seen.page.locator('[name="vp-mode"][value="as-launched"]').focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("Enter")
    expect(seen.slot("mode")).to_have_text("full")
    seen.page.locator("#vp-tab-live").focus()
    seen.page.keyboard.press("ArrowRight")
    expect(seen.page.locator("#vp-sessions")).to_be_visible()
    expect(seen.page.locator("#vp-tab-sessions")).to_be_focused()
    seen.page.keyboard.press("ArrowLeft")
    seen.app.start_job(SESSION)
    for index in range(3):
        seen.app.step(SESSION, index)
    seen.wait_for(lambda: seen.dots() == 3)
    seen.slot("latency").focus()
    seen.page.keyboard.press("ArrowLeft")
    seen.page.keyboard.press("ArrowLeft")
    expect(seen.slot("latency-tip")).to_contain_text("Step 2")
    seen.page.keyboard.press("Escape")
    expect(seen.slot("latency-tip")).to_be_hidden()


def test_the_accordion_gives_its_job_the_mode(seen: Watched) -> None:
    accordion = seen.page.locator("#vram_pilot_txt2img_accordion")
    accordion.get_by_text("VRAM Pilot").click()
    expect(seen.page.locator("#vram_pilot_txt2img_budget")).to_be_hidden()
    accordion.locator("#vram_pilot_txt2img_mode input").click()
    seen.page.locator("ul.options li", has_text="lowvram").click()
    seen.page.locator("#vram_pilot_txt2img_budget").locator("input, textarea").fill("512")
    seen.page.locator("#generate").click()
    shown = seen.page.locator("#values textarea")
    expect(shown).to_have_value(re.compile(r"\('lowvram', '512'"))
    assert request_from_fields("lowvram", "512") == ModeRequest("lowvram", 512)


# ------------------------------------------------------------------------------------------------------------- the stream


#: When each number of points was first there, in milliseconds of the clock on the wall.
CLOCK_POINTS = """() => {
  window.__drawn = {};
  const plot = document.querySelector('[data-vp="latency"]');
  const look = () => (window.__drawn[plot.querySelectorAll("circle").length] ??= Date.now());
  new MutationObserver(look).observe(plot, { childList: true, subtree: true });
}"""


def test_points_arrive_within_half_a_second(seen: Watched) -> None:
    seen.open_tab()
    expect(seen.slot("live-empty")).to_contain_text("No generation yet")
    seen.page.evaluate(CLOCK_POINTS)
    seen.app.start_job(SESSION)
    sent = []
    for index in range(10):
        sent.append(time.time())
        seen.app.step(SESSION, index)
        seen.page.wait_for_timeout(300)  # each in a write of its own
    expect(seen.slot("job-detail")).to_contain_text("step 10 of 20")
    drawn = seen.page.evaluate("window.__drawn")
    delays = sorted(drawn[str(index + 1)] / 1000 - at for index, at in enumerate(sent) if str(index + 1) in drawn)
    assert len(delays) >= 9 and delays[8] < SOON_S, "one may be held up by a busy machine, no more"


def test_after_a_drop_there_is_no_gap_and_no_double(seen: Watched) -> None:
    seen.open_tab()
    seen.app.start_job(SESSION)
    for index in range(5):
        seen.app.step(SESSION, index)
    seen.wait_for(lambda: seen.dots() == 5)
    before = len([url for url in seen.ours() if "/events" in url])
    drop(seen)
    for index in range(5, 12):
        seen.app.step(SESSION, index)
    seen.wait_for(lambda: seen.dots() == 12)
    again = [url for url in seen.ours() if "/events" in url][before:]
    assert again and all("since=6&" in url for url in again), "it goes on behind the job's start and five steps"
    expect(seen.slot("job-detail")).to_contain_text("step 12 of 20")
    assert "Missed" not in seen.slot("log").inner_text()
    expect(seen.slot("link")).to_have_text("Live")
    seen.complaints[:] = [text for text in seen.complaints if "ERR_" not in text]  # the browser's own line of the drop


def test_a_server_that_comes_back_is_found_again(browser: Browser, app: FakeApp) -> None:
    with watched(browser, app) as seen:
        seen.open_tab()
        app.start_job(SESSION)
        app.step(SESSION, 0)
        seen.wait_for(lambda: seen.dots() == 1)
        seen.served.panel.close()
        seen.served.server.should_exit = True
        seen.served.thread.join(10)
        expect(seen.slot("alert")).to_have_text("The server does not answer.", timeout=15_000)
        expect(seen.slot("alert")).to_have_attribute("role", "alert")
        expect(seen.slot("link")).to_contain_text("Not connected", timeout=15_000)
        shoot(seen, "disconnected")
        app.step(SESSION, 1)
        target, panel = host_application(app)
        with serving(target, panel, seen.served.port):
            seen.wait_for(lambda: seen.dots() == 2, 25)
            expect(seen.slot("alert")).to_be_hidden(timeout=10_000)
        seen.page.goto("about:blank")
        seen.complaints[:] = [text for text in seen.complaints if "ERR_" not in text]


def test_e16_where_streams_are_held_back_it_polls(seen: Watched) -> None:
    seen.page.route(lambda url: "/events" in url and "poll=1" not in url, lambda route: None)
    seen.host_tab("VRAM Pilot")
    expect(seen.slot("link")).to_have_text("Live, by polling", timeout=5_000)
    seen.app.start_job(SESSION)
    for index in range(3):
        seen.app.step(SESSION, index)
    seen.wait_for(lambda: seen.dots() == 3, 2)
    seen.app.step(SESSION, 3)
    seen.wait_for(lambda: seen.dots() == 4, 2)
    expect(seen.slot("job-detail")).to_contain_text("step 4 of 20")


def test_nothing_is_asked_before_the_tab_is_opened(seen: Watched) -> None:
    seen.page.wait_for_timeout(500)
    assert [url.split("?")[0].rsplit("/", 1)[1] for url in seen.ours()] == [assets.STYLE, assets.SCRIPT]


def test_an_update_mixes_no_versions(browser: Browser, app: FakeApp, tmp_path: Path) -> None:
    """A WebUI stamps only the first script's address with its time, and a browser keeps the others for as long as it likes."""
    copy = tmp_path / "javascript"
    shutil.copytree(assets.ROOT / "javascript", copy)
    long_ago = time.time() - 100 * 24 * 3600
    outer = FastAPI()

    @outer.get("/file={path:path}")
    def file(path: str) -> FileResponse:
        return FileResponse(tmp_path / path, media_type="text/javascript")

    def written(text: str) -> None:
        for script in copy.rglob("*.mjs"):
            if script.name == "now.mjs":
                script.write_text(script.read_text(encoding="utf-8").replace("Nothing is touched", text), encoding="utf-8")
            os.utime(script, (long_ago, long_ago + len(text)))

    panel = register(outer, app, Auth(lambda: None))
    outer.add_middleware(HeadMiddleware, head='<script type="module" src="file=javascript/vram_pilot.mjs?1"></script>')
    with serving(gr.mount_gradio_app(outer, page(app), path="/"), panel) as served:
        context = browser.new_context()
        for text in ("Nothing is touched", "Hands off"):
            written(text)
            tab = context.new_page()
            tab.goto(served.url)
            tab.locator("button", has_text="VRAM Pilot").first.click()
            expect(tab.locator('[data-vp="why"]')).to_contain_text(text)
            tab.close()
        context.close()


COUNT_DRAWING = """() => {
  window.__drawn = 0;
  const count = new MutationObserver(() => (window.__drawn += 1));
  count.observe(document.getElementById("vram-pilot"), { childList: true, subtree: true, attributes: true });
}"""


@pytest.mark.parametrize("how", ["another tab", "a hidden page"])
def test_hidden_it_asks_and_draws_nothing_and_shown_it_goes_on(browser: Browser, app: FakeApp, how: str) -> None:
    with watched(browser, app, init=HIDEABLE) as seen:
        seen.open_tab()
        app.start_job(SESSION)
        app.step(SESSION, 0)
        seen.wait_for(lambda: seen.dots() == 1)
        if how == "another tab":
            seen.host_tab("txt2img")
        else:
            seen.page.evaluate(HIDE_PAGE)
        seen.wait_for(lambda: seen.served.panel.hub.streams == 0)
        seen.page.evaluate(COUNT_DRAWING)
        before = len(seen.ours())
        for index in range(1, 6):
            app.step(SESSION, index)
        seen.page.wait_for_timeout(2500)
        assert len(seen.ours()) == before
        assert seen.page.evaluate("window.__drawn") == 0
        if how == "another tab":
            seen.host_tab("VRAM Pilot")
        else:
            seen.page.evaluate(SHOW_PAGE)
        seen.wait_for(lambda: seen.dots() == 6)
        expect(seen.slot("job-detail")).to_contain_text("step 6 of 20")


def test_an_answer_that_comes_when_it_is_hidden_starts_nothing(seen: Watched) -> None:
    seen.open_tab()
    seen.view("sessions")
    held: list[Route] = []
    seen.page.route("**/v1/state*", lambda route: held.append(route))
    seen.app.note("news, so that the state is asked for")
    seen.wait_for(lambda: held)
    seen.host_tab("txt2img")
    seen.wait_for(lambda: seen.served.panel.hub.streams == 0)
    before = len(seen.ours())
    with seen.page.expect_response("**/v1/state*"):
        held[0].continue_()
    seen.page.wait_for_timeout(500)
    assert len(seen.ours()) == before


def test_ten_thousand_steps_leave_a_bounded_page(seen: Watched) -> None:
    seen.open_tab()
    seen.app.start_job(SESSION)
    for index in range(10_000):
        seen.app.step(SESSION, index)
        if index % 50 == 0:
            seen.app.note(f"note {index}")
    seen.wait_for(lambda: "step 20 of 20" in seen.slot("job-detail").inner_text(), 20)
    seen.wait_for(lambda: "400 steps" in (seen.page.locator('[data-vp="latency"] svg').get_attribute("aria-label") or ""), 20)
    assert seen.page.locator("#vram-pilot *").count() < 1000
    assert seen.slot("log").locator("li").count() <= 60
