"""The HTML report as a browser shows it from a disk, as drawings: nothing is requested, nothing overflows, all reads well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.report import Visit, contrast
from tests.fakes.jobs import plain_session, rich_session
from tests.fakes.readings import with_readings
from vram_pilot.reports import interactive
from vram_pilot.reports.base import write_report

pytestmark = pytest.mark.browser

SESSIONS = {"plain": plain_session, "rich": rich_session, "read": lambda: with_readings(rich_session())}
VIEWS = [(name, scheme, width) for name in SESSIONS for scheme in ("light", "dark") for width in (1280, 390)]
STEPS = ["Duration of each step", "Memory at the end of each step"]
READ = ["Who holds the card’s memory", "Utilisation", "Power", "Temperature", "Clocks", "PCIe traffic", "Memory of the machine"]


@pytest.fixture(scope="module", params=VIEWS, ids=lambda view: "-".join(map(str, view)))
def visit(request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The page as it is written where plotly is not installed."""
    name, scheme, width = request.param
    path = tmp_path_factory.mktemp("report") / f"{name}.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interactive, "is_installed", lambda: False)
        write_report(SESSIONS[name](), "html", path)
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    yield Visit(context.new_page(), path)
    context.close()


def test_nothing_but_the_file_is_requested(visit: Visit) -> None:
    assert visit.requests == [visit.address]
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
    assert contrast(visit.color(".note", "color"), background) >= 4.5


def test_lines_can_be_seen(visit: Visit) -> None:
    """WCAG asks for 3 where something is drawn."""
    background = visit.color("section", "backgroundColor")
    lines = (
        ".drawing .line.latency, .drawing .line.allocated, .drawing .line.first, .drawing .line.second, .drawing .line.third"
    )
    for number in range(visit.page.locator(lines).count()):
        shown = visit.page.locator(lines).nth(number).evaluate("line => getComputedStyle(line).stroke")
        assert contrast(visit.rgb(shown), background) >= 3


def test_one_chart_of_each_kind_is_seen_with_letters_of_a_fair_size(visit: Visit) -> None:
    charts: list[Any] = visit.page.evaluate(
        """[...document.querySelectorAll("svg.chart")].filter(chart => chart.getClientRects().length).map(chart => [
            chart.getAttribute("aria-label"),
            chart.getBoundingClientRect().width,
            chart.querySelector(".tick").getBoundingClientRect().height])"""
    )
    assert [label for label, _, _ in charts] == (STEPS + READ if visit.address.endswith("read.html") else STEPS)
    for _, width, letters in charts:
        assert width > 250
        assert letters >= 10


def test_it_prints_in_light_colours(visit: Visit) -> None:
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert visit.color("body", "backgroundColor") == (255, 255, 255)
    assert visit.color("body", "color") == (0, 0, 0)
    assert visit.page.evaluate("[...document.querySelectorAll('svg.chart')].some(chart => chart.getClientRects().length)")
    visit.page.emulate_media(media="screen")
