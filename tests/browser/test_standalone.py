"""The whole program in a real browser: real clicks, a real generation, its points, and an export opened as a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fakes.panel_server import free_port
from tests.project import ROOT

LONG_S = 90.0
STEPS = 8


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The standalone host with its smallest model, as a user starts it."""
    port = free_port()
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    options = ["--model", "tiny", "--port", str(port), "--device", "cpu", "--data-dir", str(tmp_path / "state")]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "vram_pilot", "serve", *options], cwd=ROOT, env=environ, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + LONG_S
        while not answers(f"{address}/vram-pilot/v1/state"):
            assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.1)  # a process that starts tells nobody
        yield address
    finally:
        server.terminate()
        server.wait(20)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def watch(page: Page) -> tuple[list[str], list[str]]:
    """(requests, complaints) of the page, filled as they come."""
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return requests, complaints


def test_generated_by_clicks_it_is_shown_live_kept_and_exported(browser: Browser, url: str, tmp_path: Path) -> None:
    with browser.new_context(locale="en-GB", accept_downloads=True) as context:
        page = context.new_page()
        requests, complaints = watch(page)
        page.goto(f"{url}/")
        tab = page.locator(".tab-nav button, [role=tablist] button", has_text="VRAM Pilot").first
        tab.click()
        expect(page.locator('#vram-pilot [data-vp="link"]')).to_have_attribute("data-link", "streaming", timeout=10_000)
        expect(page.locator('#vram-pilot [data-vp="live-empty"]')).to_be_visible()
        page.locator(".tab-nav button, [role=tablist] button", has_text="Generate").first.click()
        page.locator("#txt2img_generate").click()
        tab.click()
        points = page.locator('#vram-pilot [data-vp="latency"] circle')
        expect(points).to_have_count(STEPS, timeout=LONG_S * 1000)
        expect(page.locator('#vram-pilot [data-track="memory"]')).to_contain_text("No NVIDIA card")

        page.locator("#vp-tab-sessions").click()
        rows = page.locator('#vram-pilot [data-vp="sessions"] tr')
        expect(rows).to_have_count(1, timeout=10_000)
        expect(rows.first).to_contain_text("done", timeout=10_000)
        expect(rows.first).to_contain_text(f"{STEPS} steps")
        rows.first.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.locator("#vram-pilot .vp-exports a", has_text="HTML").click()
        download.value.save_as(tmp_path / "report.html")
        assert complaints == []
        assert [address for address in requests if not address.startswith((url, "data:", "blob:"))] == []

    with browser.new_context(offline=True) as context:
        page = context.new_page()
        requests, complaints = watch(page)
        page.goto((tmp_path / "report.html").as_uri())
        expect(page.locator("body")).to_contain_text(re.compile("tiny"))
        assert page.locator("svg").count() > 0
        assert (complaints, [address for address in requests if not address.startswith(("file:", "data:", "blob:"))]) == (
            [],
            [],
        )
