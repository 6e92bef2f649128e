"""The HTML report as a browser shows it from a disk: nothing is requested, nothing overflows, both colour schemes read well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.fakes.jobs import plain_session, rich_session
from vram_pilot.reports.base import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield started
        started.close()


class Visit:
    """The open page, with everything that it asked for and complained of."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.path = path
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")

    def color(self, selector: str, name: str) -> tuple[int, int, int]:
        shown = self.page.evaluate(
            "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]", [selector, name]
        )
        red, green, blue = shown[shown.index("(") + 1 : shown.index(")")].split(",")[:3]
        return int(red), int(green), int(blue)


SESSIONS = {"plain": plain_session, "rich": rich_session}
VIEWS = [(name, scheme, width) for name in SESSIONS for scheme in ("light", "dark") for width in (1280, 390)]


@pytest.fixture(scope="module", params=VIEWS, ids=lambda view: "-".join(map(str, view)))
def visit(request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    name, scheme, width = request.param
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(SESSIONS[name](), "html", path)
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    yield Visit(context.new_page(), path)
    context.close()


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """WCAG's ratio of two colours, 1 to 21."""

    def luminance(color: tuple[int, int, int]) -> float:
        parts = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in color]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_nothing_but_the_file_is_requested(visit: Visit) -> None:
    assert visit.requests == [visit.path.as_uri()]
    assert visit.complaints == []


def test_nothing_is_wider_than_the_page(visit: Visit) -> None:
    width, shown = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= shown


def test_the_style_is_applied(visit: Visit) -> None:
    """The policy lets this style in: a page without it would still hold every word."""
    assert visit.page.evaluate("getComputedStyle(document.querySelector('.figures')).display") == "flex"
    assert visit.page.evaluate("getComputedStyle(document.querySelector('section')).borderRadius") == "10px"


def test_words_can_be_read(visit: Visit) -> None:
    background = visit.color("section", "backgroundColor")
    assert contrast(visit.color("section p", "color"), background) >= 7
    assert contrast(visit.color(".figures dt", "color"), background) >= 4.5
    assert contrast(visit.color(".tick", "fill"), background) >= 4.5
    assert contrast(visit.color(".status", "color"), visit.color("body", "backgroundColor")) >= 4.5


def test_one_chart_of_each_kind_is_seen_with_letters_of_a_fair_size(visit: Visit) -> None:
    charts: list[Any] = visit.page.evaluate(
        """[...document.querySelectorAll("svg.chart")].filter(chart => chart.getClientRects().length).map(chart => [
            chart.getAttribute("aria-label"),
            chart.getBoundingClientRect().width,
            chart.querySelector(".tick").getBoundingClientRect().height])"""
    )
    assert [label for label, _, _ in charts] == ["Duration of each step", "Memory at the end of each step"]
    for _, width, letters in charts:
        assert width > 250
        assert letters >= 10


def test_it_prints_in_light_colours(visit: Visit) -> None:
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert visit.color("body", "backgroundColor") == (255, 255, 255)
    assert visit.color("body", "color") == (0, 0, 0)
    assert visit.page.evaluate("[...document.querySelectorAll('svg.chart')].some(chart => chart.getClientRects().length)")
    visit.page.emulate_media(media="screen")
