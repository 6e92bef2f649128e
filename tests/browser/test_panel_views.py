"""The panel's sessions, its states and its looks, in a real browser."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.panel import LOW_CONTRAST, NARROW, SESSION, WIDE, Watched, shoot, watched
from tests.fakes import instruments
from tests.fakes.panel_app import FakeApp, session
from tests.fakes.panel_server import free_port, page
from vram_pilot.panel import assets
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.routes import register
from vram_pilot.settings import ModeRequest

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

        export = rows.nth(3).get_by_role("button", name="Export")
        export.click()
        expect(export).to_have_attribute("aria-expanded", "true")
        offered = seen.page.locator('[data-vp="sessions"] .vp-exports a')
        assert offered.count() == len(
            seen.page.evaluate("fetch('vram-pilot/v1/state').then((it) => it.json())")["offers"]["reports"]
        )
        shoot(seen, "exports")
        with seen.page.expect_download() as download:
            offered.filter(has_text="JSON").click()
        assert download.value.suggested_filename == f"vram-pilot-{IDS[0]}.json"
        assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["id"] == IDS[0]

        export.press("Escape")
        expect(offered).to_have_count(0)
        expect(export).to_be_focused()

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
    instruments.scene(app)
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
        seen.open_tab()
        seen.dark(dark)  # gradio sets the page's own theme while it starts
        a_job(kept)
        seen.wait_for(lambda: seen.dots() == 26)
        seen.page.locator('[data-track="map"] [data-part="plot"]').hover()
        expect(seen.slot("moment")).to_contain_text("before the newest")
        for view in ("live", "sessions"):
            seen.view(view)
            if view == "live":
                seen.slot("missing").locator("button").first.focus()
                expect(seen.slot("missing").locator(".vp-reason").first).to_be_visible()
            if view == "sessions":
                expect(seen.page.locator('[data-vp="sessions"] tr')).to_have_count(4)
                seen.page.get_by_role("checkbox").first.click()
                seen.page.get_by_role("checkbox").nth(2).click()
                seen.slot("compare").click()
                expect(seen.slot("compared")).to_be_visible()
                seen.page.get_by_role("button", name="Export").nth(1).click()
            shoot(seen, f"{view}-{viewport['width']}-{'dark' if dark else 'light'}")
            assert seen.page.evaluate("document.body.classList.contains('dark')") is dark
            assert seen.page.evaluate(LOW_CONTRAST) == []
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
            overflowing = "[...document.querySelectorAll('#vram-pilot *')].filter((e) => e.checkVisibility() && "
            overflowing += (
                "!e.closest('.vp-hidden, svg, .vp-table, canvas') && e.getBoundingClientRect().right > innerWidth + 1)"
            )
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
