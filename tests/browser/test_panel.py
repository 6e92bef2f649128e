"""The panel in a real browser, on a page of the gradio that this environment has."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.responses import FileResponse
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.panel import LOW_CONTRAST, NARROW, SESSION, WIDE, Watched, watched
from tests.fakes.panel_app import FakeApp, session
from tests.fakes.panel_server import HeadMiddleware, free_port, host_application, page, serving
from vram_pilot.panel import assets
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.fields import request_from_fields
from vram_pilot.panel.routes import register
from vram_pilot.settings import ModeRequest

#: The promise to who watches.
SOON_S = 0.5
#: Where pictures are left for a person to look at, when it is set.
SHOTS = os.environ.get("VRAM_PILOT_SHOTS")


@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def app(tmp_path: Path) -> FakeApp:
    return FakeApp(tmp_path)


@pytest.fixture
def seen(browser: Browser, app: FakeApp) -> Iterator[Watched]:
    with watched(browser, app) as page_:
        yield page_


def shoot(seen: Watched, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        seen.page.screenshot(path=str(Path(SHOTS, f"gradio{gr.__version__[0]}-{name}.png")), full_page=True)


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


def test_points_arrive_within_half_a_second(seen: Watched) -> None:
    seen.open_tab()
    expect(seen.slot("live-empty")).to_contain_text("No generation yet")
    seen.app.start_job(SESSION)
    for index in range(10):
        seen.app.step(SESSION, index)
        assert seen.wait_for(lambda count=index + 1: seen.dots() == count) < SOON_S
    expect(seen.slot("job-detail")).to_contain_text("step 10 of 20")


def drop(seen: Watched) -> None:
    """Cuts every connection, as a network does."""
    for connection in list(seen.served.server.server_state.connections):
        connection.loop.call_soon_threadsafe(connection.transport.abort)


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


HIDE_PAGE = "() => { window.__hidden = true; document.dispatchEvent(new Event('visibilitychange')); }"
SHOW_PAGE = "() => { window.__hidden = false; document.dispatchEvent(new Event('visibilitychange')); }"
COUNT_DRAWING = """() => {
  window.__drawn = 0;
  const count = new MutationObserver(() => (window.__drawn += 1));
  count.observe(document.getElementById("vram-pilot"), { childList: true, subtree: true, attributes: true });
}"""
HIDEABLE = "Object.defineProperty(document, 'hidden', { get: () => window.__hidden === true });"


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


# ----------------------------------------------------------------------------------------------------------- the sessions


IDS = [f"2026010{day}-120000-0000000{day}" for day in range(1, 5)]


@pytest.fixture
def kept(app: FakeApp) -> FakeApp:
    for session_id, mode, step_s, status in zip(
        IDS, ("full", "medvram", "lowvram", "full"), (0.034, 0.05, 0.36, 0.034), ("ok", "ok", "interrupted", "oom"), strict=True
    ):
        app.keep(session(session_id, mode, step_s=step_s, status=status))
    return app


def test_sessions_are_listed_compared_exported_and_deleted(browser: Browser, kept: FakeApp, tmp_path: Path) -> None:
    with watched(browser, kept) as seen:
        seen.open_tab()
        seen.view("sessions")
        rows = seen.page.locator('[data-vp="sessions"] tr')
        expect(rows).to_have_count(4)
        expect(rows.first).to_contain_text("out of memory")
        expect(rows.nth(1)).to_contain_text("lowvram")
        shoot(seen, "sessions")

        expect(seen.slot("compare")).to_be_disabled()
        rows.nth(3).get_by_role("checkbox").click()
        rows.nth(1).get_by_role("checkbox").click()
        seen.slot("compare").click()
        expect(seen.slot("compared")).to_be_focused()
        expect(seen.slot("compared").locator("tr", has_text="Mode")).to_contain_text("differs")
        expect(seen.slot("compared").locator("tr", has_text="Median step")).to_contain_text("11 ×")
        shoot(seen, "compared")

        with seen.page.expect_download() as download:
            rows.nth(3).get_by_role("link", name="JSON").click()
        assert download.value.suggested_filename == f"vram-pilot-{IDS[0]}.json"
        assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["id"] == IDS[0]

        rows.nth(1).get_by_role("button", name="Delete").click()
        expect(rows.nth(1).get_by_role("button", name="Keep it")).to_be_focused()
        seen.page.keyboard.press("Enter")
        expect(rows).to_have_count(4)
        assert len(kept.store.list(9, 0)) == 4, "a second thought keeps it"
        rows.nth(1).get_by_role("button", name="Delete").click()
        rows.nth(1).get_by_role("button", name="Delete it").click()
        expect(rows).to_have_count(3)
        expect(seen.slot("chosen")).to_contain_text("deleted")
        assert [row["id"] for row in kept.store.list(9, 0)] == [IDS[3], IDS[1], IDS[0]]


def test_a_report_opens_beside_the_page_and_asks_nobody(browser: Browser, kept: FakeApp) -> None:
    with watched(browser, kept) as seen:
        seen.open_tab()
        seen.view("sessions")
        with seen.page.context.expect_page() as opened:
            seen.page.get_by_role("link", name="Open the report").first.click()
        report = opened.value
        report.wait_for_load_state()
        requests: list[str] = []
        complaints: list[str] = []
        report.on("request", lambda request: requests.append(request.url))
        report.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        report.reload()
        assert report.url.startswith(seen.served.url) and "format=html" in report.url
        assert [url for url in requests if url != report.url and not url.endswith("/favicon.ico")] == []
        assert complaints == []


def test_a_deletion_that_is_not_allowed_says_why(browser: Browser, kept: FakeApp) -> None:
    kept.open = False
    with watched(browser, kept) as seen:
        seen.open_tab()
        expect(seen.slot("locked")).to_contain_text("--vram-pilot-allow-remote-control")
        expect(seen.slot("apply")).to_be_disabled()
        seen.view("sessions")
        seen.page.get_by_role("button", name="Delete").first.click()
        seen.page.get_by_role("button", name="Delete it").click()
        expect(seen.slot("chosen")).to_contain_text("--vram-pilot-allow-remote-control")
        assert len(kept.store.list(9, 0)) == 4
        seen.complaints[:] = [text for text in seen.complaints if "403" not in text]


def test_many_sessions_come_in_pages(browser: Browser, app: FakeApp) -> None:
    for number in range(30):
        app.keep(session(f"20260101-1200{number:02d}-{number:08x}"))
    with watched(browser, app) as seen:
        seen.open_tab()
        seen.view("sessions")
        rows = seen.page.locator('[data-vp="sessions"] tr')
        expect(rows).to_have_count(25)
        expect(seen.slot("newer")).to_be_disabled()
        seen.slot("older").click()
        expect(rows).to_have_count(5)
        expect(seen.slot("page")).to_have_text("26 to 30")
        expect(seen.slot("older")).to_be_disabled()


def test_without_sessions_it_says_so(seen: Watched) -> None:
    seen.open_tab()
    seen.view("sessions")
    expect(seen.slot("sessions-empty")).to_contain_text("No session is kept yet")


# ------------------------------------------------------------------------------------------------------- states and looks


def test_off_says_how_to_switch_it_on(browser: Browser, app: FakeApp) -> None:
    app.off = True
    with watched(browser, app) as seen:
        seen.host_tab("VRAM Pilot")
        expect(seen.slot("off")).to_contain_text("--vram-pilot-off")
        expect(seen.slot("main")).to_be_hidden()
        assert not any("/events" in url for url in seen.ours())


def test_without_a_model_or_a_card_it_says_so(browser: Browser, app: FakeApp) -> None:
    app.host.loaded, app.host.device_name = None, "cpu"
    with watched(browser, app) as seen:
        seen.open_tab()
        expect(seen.slot("why")).to_contain_text("No model is loaded")
        expect(seen.slot("meta")).to_contain_text("no NVIDIA card (cpu)")


def a_job(app: FakeApp) -> None:
    app.start_job(SESSION, hires={"width": 1024, "height": 1024, "steps": 10, "scale": 2})
    app.phase(SESSION, "encode", 0.12)
    for index in range(20):
        app.step(SESSION, index, 0.034 + 0.002 * (index % 3))
        if index == 8:
            app.controller.request(ModeRequest("lowvram", 512), "job")
            app.controller.apply()
    app.phase(SESSION, "denoise", 0.8)
    app.note("Pinned memory is used up: pageable copies are used for the rest.")
    for index in range(6):
        app.step(SESSION, index, 0.13, "hires", allocated_bytes=3500 * 2**20, reserved_bytes=4100 * 2**20)


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_and_can_be_read(browser: Browser, kept: FakeApp, viewport: dict[str, int], dark: bool) -> None:
    kept.open = False
    with watched(browser, kept, viewport=viewport) as seen:
        seen.dark(dark)
        seen.open_tab()
        a_job(kept)
        seen.wait_for(lambda: seen.dots() == 26)
        seen.slot("latency").hover()
        for view in ("live", "sessions"):
            seen.view(view)
            if view == "sessions":
                expect(seen.page.locator('[data-vp="sessions"] tr')).to_have_count(4)
                seen.page.get_by_role("checkbox").first.click()
                seen.page.get_by_role("checkbox").nth(2).click()
                seen.slot("compare").click()
                expect(seen.slot("compared")).to_be_visible()
                seen.page.get_by_role("button", name="Delete").nth(1).click()
            shoot(seen, f"{view}-{viewport['width']}-{'dark' if dark else 'light'}")
            assert seen.page.evaluate(LOW_CONTRAST) == []
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
            overflowing = "[...document.querySelectorAll('#vram-pilot *')].filter((e) => e.checkVisibility() && "
            overflowing += "!e.closest('.vp-hidden, svg, .vp-table') && e.getBoundingClientRect().right > innerWidth + 1)"
            assert seen.page.evaluate(f"{overflowing}.map((e) => e.outerHTML.slice(0, 80))") == []


def test_e16_under_a_sub_path_everything_is_asked_under_it(browser: Browser, kept: FakeApp) -> None:
    with watched(browser, kept, root="/sub") as seen:
        seen.open_tab()
        kept.start_job(SESSION)
        kept.step(SESSION, 0)
        seen.wait_for(lambda: seen.dots() == 1)
        seen.page.get_by_text("full", exact=True).click()
        seen.slot("apply").click()
        expect(seen.slot("answer")).to_contain_text("next step")
        seen.view("sessions")
        expect(seen.page.locator('[data-vp="sessions"] tr')).to_have_count(4)
        assert all(url.startswith(f"{seen.served.url}/sub/vram-pilot/") for url in seen.ours())


def test_e17_behind_the_hosts_login_the_cookie_is_enough(browser: Browser, app: FakeApp) -> None:
    blocks = page(app)
    application, *_ = blocks.launch(
        prevent_thread_lock=True, server_port=free_port(), quiet=True, show_api=False, auth=("user", "word")
    )
    panel = register(application, app, Auth(lambda: application, None, True))
    url = blocks.local_url
    try:
        context = browser.new_context()
        tab = context.new_page()
        assert context.request.get(f"{url}vram-pilot/v1/state").status == 401
        tab.goto(url)
        tab.locator("input").nth(0).fill("user")
        tab.locator("input").nth(1).fill("word")
        tab.get_by_role("button").first.click()
        tab.locator("button", has_text="VRAM Pilot").first.click()
        tab.add_script_tag(url=f"{url}vram-pilot/assets/{assets.SCRIPT}", type="module")
        expect(tab.locator('[data-vp="link"]')).to_have_text("Live", timeout=10_000)
        app.start_job(SESSION)
        app.step(SESSION, 0)
        expect(tab.locator('[data-vp="latency"] circle')).to_have_count(1)
        context.clear_cookies()
        tab.get_by_text("full", exact=True).click()
        tab.locator('[data-vp="apply"]').click()
        expect(tab.locator('[data-vp="answer"]')).to_contain_text("log in")
        context.close()
    finally:
        panel.close()
        start = time.monotonic()
        blocks.close(verbose=False)
        assert time.monotonic() - start < 4
