"""The WebUI's page in a real browser, and what the tests do on it."""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, sync_playwright

from tests.host.client import pixels_of

SIZE = {"width": 1400, "height": 1100}


def browser_path() -> str:
    found = os.environ.get("VRAM_PILOT_BROWSER") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
    )
    assert found, "No Chromium or Chrome was found: give its path in VRAM_PILOT_BROWSER."
    return found


class WebUIPage:
    """url: the page's; shots: the folder of pictures for a person to look at."""

    def __init__(self, page: Page, url: str, shots: Path) -> None:
        self.page, self.url, self.shots = page, url, shots
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._before: set[str] = set()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self._heard(str(error), error.stack))
        page.on("console", lambda message: message.type == "error" and self._heard(message.text, str(message.location)))

    def _heard(self, text: str, where: str | None) -> None:
        """The host's own page complains too: of what it cannot load without a network, and at Reload UI."""
        if "vram" in f"{text} {where}".lower():
            self.complaints.append(f"{text} {where}")

    def ours(self) -> list[str]:
        return [url for url in self.requests if "vram" in url]

    def open(self) -> WebUIPage:
        self.page.goto(self.url, wait_until="load")
        self.page.locator("#txt2img_generate").wait_for()
        return self

    def wait_for(self, reached: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """Looks until it is so."""
        start = time.monotonic()
        while not (found := reached()):
            assert time.monotonic() - start < timeout_s, "it did not come to that"
            self.page.wait_for_timeout(20)
        return found

    def tab(self, name: str) -> None:
        self.page.locator("#tabs > .tab-nav button", has_text=name).first.click()

    def slot(self, name: str) -> Locator:
        return self.page.locator(f'#vram-pilot [data-vp="{name}"]')

    def open_panel(self) -> None:
        self.tab("VRAM Pilot")
        self.slot("main").wait_for()
        self.wait_for(lambda: self.slot("link").get_attribute("data-link") == "streaming")

    def shoot(self, name: str) -> None:
        self.shots.mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            self.page.evaluate("dark => document.body.classList.toggle('dark', dark)", theme == "dark")
            self.page.screenshot(path=str(self.shots / f"{name}-{theme}.png"), full_page=True)
        self.page.evaluate("() => document.body.classList.remove('dark')")

    # ------------------------------------------------------------------------------------------------ a generation

    def paste(self, text: str, tab: str = "txt2img") -> None:
        """Parameters of a picture through the button that reads them from the prompt."""
        prompt = self.page.locator(f"#{tab}_prompt textarea")
        prompt.fill(text)
        self.page.locator(f"#{tab}_tools #paste").click()
        first = text.partition("\n")[0]
        self.wait_for(lambda: prompt.input_value() == first)
        self.page.wait_for_load_state("networkidle")

    def open_accordion(self, tab: str = "txt2img") -> None:
        accordion = self.page.locator(f"#vram_pilot_{tab}_accordion")
        if not accordion.locator(f"#vram_pilot_{tab}_mode").is_visible():
            accordion.locator(".label-wrap").click()
        accordion.locator(f"#vram_pilot_{tab}_mode").wait_for()

    def choose(self, dropdown: str, option: str) -> None:
        """An entry of a gradio drop-down, by clicks."""
        field = self.page.locator(f"{dropdown} input").first
        field.click()
        self.page.locator(f"{dropdown} ul.options li", has_text=option).first.click()
        self.page.wait_for_load_state("networkidle")

    def accordion_values(self, tab: str = "txt2img") -> tuple[str, str]:
        mode = self.page.locator(f"#vram_pilot_{tab}_mode input").first.input_value()
        return mode, self.page.locator(f"#vram_pilot_{tab}_budget").locator("input, textarea").first.input_value()

    def generate(self, tab: str = "txt2img") -> None:
        self._before = set(self._sources(tab))
        self.page.locator(f"#{tab}_generate").click()

    def pictures(self, tab: str = "txt2img") -> list[str]:
        """SHA-256 of the pixels of the pictures that the last generation has made, in their order; waits for them."""

        def done() -> list[str]:
            shown = self._sources(tab)
            return shown if shown and not self._before & set(shown) else []

        return [self._pixels(source) for source in self.wait_for(done, 60)]

    def _sources(self, tab: str) -> list[str]:
        """Addresses of the pictures in the gallery; a live preview is none of its files."""
        images = self.page.locator(f"#{tab}_gallery .thumbnails img").all()
        return [source for source in (image.get_attribute("src") or "" for image in images) if "/file=" in source]

    @staticmethod
    def _pixels(source: str) -> str:
        with urllib.request.urlopen(source, timeout=30) as answer:
            return pixels_of(answer.read())


@contextmanager
def browser() -> Iterator[Callable[[], Page]]:
    """Makes pages of one browser."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        try:
            yield lambda: running.new_page(viewport=SIZE)  # type: ignore[arg-type]
        finally:
            running.close()
