"""A browser at a page with the panel, and what the tests ask of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from playwright.sync_api import Browser, Page

from tests.fakes.panel_app import FakeApp
from tests.fakes.panel_server import Served, host_application, serving

#: Where pictures are left for a person to look at, when it is set.
SHOTS = os.environ.get("VRAM_PILOT_SHOTS")
SESSION = "20260101-000000-00000001"
WIDE, NARROW = {"width": 1280, "height": 1000}, {"width": 390, "height": 844}
#: The page as if it were in the background, and back; before its own scripts `HIDEABLE` must run.
HIDE_PAGE = "() => { window.__hidden = true; document.dispatchEvent(new Event('visibilitychange')); }"
SHOW_PAGE = "() => { window.__hidden = false; document.dispatchEvent(new Event('visibilitychange')); }"
HIDEABLE = "Object.defineProperty(document, 'hidden', { get: () => window.__hidden === true });"


class Watched:
    """A page, with every request that it made and everything that it complained of."""

    def __init__(self, page: Page, app: FakeApp, served: Served) -> None:
        self.page, self.app, self.served = page, app, served
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: Any) -> None:
        """What the host's page fails to load of its own (under a sub-path, its icon and gradio 4's styles) is not ours."""
        text = f"{message.text} {message.location.get('url', '')}"
        hosts_own = message.text.startswith(("Failed to load", "Unable to preload")) and "vram-pilot" not in text
        if message.type == "error" and not hosts_own:
            self.complaints.append(text)

    def ours(self) -> list[str]:
        return [url for url in self.requests if "/vram-pilot/" in url]

    def foreign(self) -> list[str]:
        return [url for url in self.requests if not url.startswith((self.served.url, "data:", "blob:", "about:"))]

    def host_tab(self, name: str) -> None:
        self.page.locator(".tab-nav button, [role=tablist] button", has_text=name).first.click()

    def open_tab(self) -> None:
        self.host_tab("VRAM Pilot")
        self.slot("main").wait_for()
        self.wait_for(lambda: self.slot("link").get_attribute("data-link") == "streaming")

    def slot(self, name: str) -> Any:
        return self.page.locator(f'#vram-pilot [data-vp="{name}"]')

    def view(self, name: str) -> None:
        self.page.locator(f"#vp-tab-{name}").click()

    def dots(self, chart: str = "latency") -> int:
        return self.page.locator(f'[data-vp="{chart}"] circle').count()

    def wait_for(self, reached: Callable[[], object], timeout_s: float = 8.0) -> float:
        """Looks until it is so; the seconds that it took."""
        start = time.monotonic()
        while not reached():
            assert time.monotonic() - start < timeout_s, "it did not come to that"
            self.page.wait_for_timeout(15)
        return time.monotonic() - start

    def dark(self, on: bool) -> None:
        self.page.evaluate("on => document.body.classList.toggle('dark', on)", on)


def drop(seen: Watched) -> None:
    """Cuts every connection, as a network does."""
    for connection in list(seen.served.server.server_state.connections):
        connection.loop.call_soon_threadsafe(connection.transport.abort)


def shoot(seen: Watched, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        seen.page.screenshot(path=str(Path(SHOTS, f"gradio{gr.__version__[0]}-{name}.png")), full_page=True)


@contextmanager
def watched(browser: Browser, app: FakeApp, *, root: str = "", viewport: Any = None, init: str = "") -> Iterator[Watched]:
    """A page at a host's server. On leaving: no complaint, no request to another server."""
    target, panel = host_application(app, root=root)
    with serving(target, panel) as served:
        context = browser.new_context(viewport=viewport or WIDE, locale="en-GB", timezone_id="UTC")
        try:
            page = context.new_page()
            if init:
                page.add_init_script(init)
            seen = Watched(page, app, served)
            page.goto(f"{served.url}{root}/")
            yield seen
            assert seen.complaints == [], seen.complaints
            assert seen.foreign() == []
        finally:
            context.close()


#: Texts whose contrast with their ground is under 4.5, as [text, contrast]. Grounds with an alpha are laid over those below.
LOW_CONTRAST = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((value, index) => value * a + under[index] * (1 - a));
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    const own = channels(getComputedStyle(element).backgroundColor);
    return (own[3] ?? 1) === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("#vram-pilot *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest(".vp-hidden")) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const colour = over(channels(element instanceof SVGElement ? style.fill : style.color), below);
    const [bright, dim] = [light(colour), light(below)].sort((a, b) => b - a);
    const contrast = (bright + 0.05) / (dim + 0.05);
    if (contrast < 4.5) found.push([text, Math.round(contrast * 100) / 100]);
  }
  return found;
}"""
