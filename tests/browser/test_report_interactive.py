"""The HTML report with plotly, opened from a disk: it draws all, asks for nothing, tells values, zooms and prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ViewportSize

from tests.browser.panel import Watched
from tests.browser.report import Visit
from tests.fakes.jobs import plain_session, rich_session
from tests.fakes.panel_app import FakeApp
from tests.fakes.readings import with_readings
from vram_pilot.reports import readings
from vram_pilot.reports.base import write_report
from vram_pilot.reports.palette import DARK, LIGHT

pytestmark = pytest.mark.browser

SESSION = with_readings(rich_session())
NAMES = ["step_latency", "step_memory", "vram", "utilization", "power", "temperature", "clocks", "pcie", "ram"]
DRAWN = """names => names.every(name => {
    const plot = document.querySelector(`[data-chart="${name}"]`);
    return plot.classList.contains("drawn") && plot.querySelector(".main-svg");
})"""
RANGES = "[...document.querySelectorAll('.live')].map(live => live.layout.xaxis.range.map(Number))"
#: The plot's inside in the window, scrolled to.
INSIDE = """name => {
    const live = document.querySelector(`[data-chart="${name}"] .live`);
    live.scrollIntoView({ block: "center" });
    const { x, y, width, height } = live.querySelector(".nsewdrag").getBoundingClientRect();
    return { x, y, width, height };
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(SESSION, "html", path)
    return path


class Chart:
    """One chart of the open page, by the mouse."""

    def __init__(self, visit: Visit, name: str) -> None:
        self._page, self._name = visit.page, name
        box = self._page.evaluate(INSIDE, name)
        self._left, self._top, self._width, self._height = (box[key] for key in ("x", "y", "width", "height"))

    def at(self, across: float, up: float) -> tuple[float, float]:
        return self._left + across * self._width, self._top + (1 - up) * self._height

    def told(self, across: float, up: float) -> list[str]:
        """What is told when that place is pointed at."""
        x, y = self.at(across, up)
        self._page.mouse.move(0, 0)
        self._page.mouse.move(x, y)
        texts = f'[data-chart="{self._name}"] .hoverlayer text'
        self._page.wait_for_selector(texts)
        return [text for text in self._page.locator(texts).all_text_contents() if text]

    def zoom(self, start: float, stop: float) -> None:
        self._page.mouse.move(*self.at(start, 0.5))
        self._page.mouse.down()
        self._page.mouse.move(*self.at(stop, 0.55), steps=5)
        self._page.mouse.up()


def opened(browser: Browser, path: Path, names: list[str], **options: Any) -> tuple[BrowserContext, Visit]:
    context = browser.new_context(**{"viewport": ViewportSize(width=1280, height=900), **options})
    visit = Visit(context.new_page(), path)
    visit.page.wait_for_function(DRAWN, arg=names)
    return context, visit


@pytest.fixture(scope="module", params=[(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)], ids=str)
def visit(request: pytest.FixtureRequest, browser: Browser, path: Path) -> Iterator[Visit]:
    scheme, width = request.param
    context, visit = opened(browser, path, NAMES, color_scheme=scheme, viewport=ViewportSize(width=width, height=900))
    yield visit
    context.close()


@pytest.fixture
def wide(browser: Browser, path: Path) -> Iterator[Visit]:
    context, visit = opened(browser, path, NAMES)
    yield visit
    context.close()


def test_all_is_drawn_and_nothing_but_the_file_is_requested(visit: Visit) -> None:
    assert visit.requests == [visit.address]
    assert visit.complaints == []
    assert visit.page.locator("svg.chart:visible").count() == 0
    assert visit.page.locator(".live .main-svg:visible").count() >= len(NAMES)


def test_it_is_a_file_that_can_be_mailed(path: Path) -> None:
    assert path.stat().st_size < 6_000_000


def test_nothing_is_wider_than_the_page(visit: Visit) -> None:
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for width, holder in visit.page.evaluate(
        "[...document.querySelectorAll('.live')].map(live => [live.querySelector('.main-svg').getBoundingClientRect().width, "
        "live.parentElement.getBoundingClientRect().width])"
    ):
        assert holder * 0.9 <= width <= holder + 13


def test_no_letter_of_an_axis_is_cut_off(visit: Visit) -> None:
    cut = visit.page.evaluate(
        "[...document.querySelectorAll('.live')].flatMap(live => [...live.querySelectorAll('.ytick text')].filter(text => "
        "text.getBoundingClientRect().left < live.getBoundingClientRect().left).map(text => text.textContent))"
    )
    assert cut == []


def test_the_colours_are_the_pages(visit: Visit) -> None:
    dark = visit.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    palette = DARK if dark else LIGHT
    found = visit.page.evaluate(
        "[...document.querySelectorAll('.live')].map(live => [live.layout.paper_bgcolor, live.layout.yaxis.tickfont.color])"
    )
    assert found == [[palette["card"], palette["soft"]]] * len(NAMES)
    bar = visit.page.locator('[data-chart="step_latency"] .barlayer .point path').first
    assert visit.rgb(bar.evaluate("bar => getComputedStyle(bar).fill")) == rgb(palette["latency"])


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[start : start + 2], 16) for start in (1, 3, 5))


def test_pointing_at_a_step_tells_of_that_step(wide: Visit) -> None:
    step = SESSION["steps"][24]
    across = (step["start_s"] + step["duration_s"] / 2) / SESSION["summary"]["duration_s"]
    (told,) = Chart(wide, "step_latency").told(across, 0.3)
    assert told == f"step 5 of hires, batch 1: {step['duration_s'] * 1000:.1f} ms"


def test_pointing_at_a_mark_tells_of_the_switch(wide: Visit) -> None:
    mark = wide.page.locator('[data-chart="step_latency"] .scatterlayer .point').last
    box = mark.bounding_box()
    assert box is not None
    wide.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = wide.page.locator('[data-chart="step_latency"] .hoverlayer text').first
    label.wait_for()
    assert "full → lowvram" in (label.text_content() or "")
    assert label.evaluate("text => getComputedStyle(text.querySelector('tspan') ?? text).fill") != "none"


def test_pointing_at_the_memory_tells_who_holds_how_much(wide: Visit) -> None:
    place = 60
    chart = readings.chart(SESSION, "vram")
    assert chart is not None
    told = Chart(wide, "vram").told(SESSION["samples"]["t_s"][place] / SESSION["summary"]["duration_s"], 0.5)
    for line in chart.lines:
        assert f"{line.label}: {line.points[place][1]:.2f} GiB" in told


def test_a_zoom_holds_for_every_chart_and_goes_back(wide: Visit) -> None:
    whole = wide.page.evaluate(RANGES)
    assert len({tuple(each) for each in whole}) == 1
    chart = Chart(wide, "vram")
    chart.zoom(0.25, 0.5)
    wide.page.wait_for_function(f"() => {RANGES}.every(([start]) => start > 0)")
    zoomed = wide.page.evaluate(RANGES)
    assert all(each == pytest.approx(zoomed[0]) for each in zoomed)
    assert zoomed[0] == pytest.approx([whole[0][1] * 0.25, whole[0][1] * 0.5], rel=0.02)
    wide.page.mouse.dblclick(*chart.at(0.5, 0.5))
    wide.page.wait_for_function(f"() => {RANGES}.every(([start]) => start === 0)")
    assert wide.page.evaluate(RANGES) == whole
    assert wide.complaints == []


def test_it_follows_the_systems_scheme_and_keeps_the_zoom(wide: Visit) -> None:
    Chart(wide, "vram").zoom(0.25, 0.5)
    wide.page.wait_for_function(f"() => {RANGES}.every(([start]) => start > 0)")
    zoomed = wide.page.evaluate(RANGES)
    wide.page.emulate_media(color_scheme="dark")
    wide.page.wait_for_function(
        "color => [...document.querySelectorAll('.live')].every(live => live.layout.paper_bgcolor === color)", arg=DARK["card"]
    )
    assert wide.page.evaluate(RANGES) == zoomed
    assert wide.complaints == []


@pytest.mark.parametrize(
    ("button", "ending", "begins"), [("Download plot as a PNG", "png", b"\x89PNG"), ("SVG", "svg", b"<svg")]
)
def test_a_chart_can_be_saved(wide: Visit, button: str, ending: str, begins: bytes) -> None:
    chart = Chart(wide, "vram")
    wide.page.mouse.move(*chart.at(0.5, 0.5))
    with wide.page.expect_download() as waiting:
        wide.page.click(f'[data-chart="vram"] .modebar-btn[data-title*="{button}" i]')
    assert waiting.value.suggested_filename == f"vram.{ending}"
    assert Path(waiting.value.path()).read_bytes().startswith(begins)
    assert wide.complaints == []
    assert not [url for url in wide.requests if not url.startswith(("file:", "blob:", "data:"))]


def test_on_paper_it_is_drawings_in_light_colours(wide: Visit) -> None:
    wide.page.emulate_media(media="print", color_scheme="dark")
    assert wide.page.locator(".live:visible").count() == 0
    assert wide.page.locator("svg.chart:visible").count() == len(NAMES)
    assert wide.color("body", "backgroundColor") == (255, 255, 255)


def test_without_scripts_the_drawings_stay(browser: Browser, path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("svg.chart.wide:visible, svg.chart.half:visible").count() == len(NAMES)
    context.close()


def test_under_a_finger_a_chart_does_not_hold_the_page(browser: Browser, path: Path) -> None:
    context, visit = opened(browser, path, NAMES, viewport=ViewportSize(width=390, height=800), has_touch=True, is_mobile=True)
    assert visit.page.evaluate("document.querySelector('.live').layout.dragmode") is False
    assert visit.page.locator(".modebar").count() == 0
    context.close()


def test_a_chart_that_cannot_be_drawn_stays_a_drawing(browser: Browser, path: Path, tmp_path: Path) -> None:
    """A release of plotly may refuse what others take; here one figure's layout is lost."""
    broken = tmp_path / "report.html"
    before, name, after = path.read_text(encoding="utf-8").partition('"power":{"data":')
    broken.write_text(before + name + after.replace('"layout":{', '"lost":{', 1), encoding="utf-8")
    context, visit = opened(browser, broken, [name for name in NAMES if name != "power"])
    assert visit.page.locator('[data-chart="power"] svg.chart:visible').count() == 1
    assert visit.page.locator('[data-chart="power"] .live').count() == 0
    context.close()


def test_a_job_without_readings_has_its_steps_alone(browser: Browser, tmp_path: Path) -> None:
    write_report(plain_session(), "html", tmp_path / "plain.html")
    context, visit = opened(browser, tmp_path / "plain.html", ["step_latency", "step_memory"])
    assert visit.page.locator("[data-chart]").count() == 2
    assert visit.complaints == []
    context.close()


def test_served_by_the_panel_it_draws_too_and_reaches_nothing(seen: Watched, app: FakeApp) -> None:
    """There the server's own policy holds as well: a sandbox without an origin."""
    address = f"{seen.served.url}/vram-pilot/v1/sessions/{app.keep(SESSION)}/report"
    visit = Visit(seen.page.context.new_page(), address)
    visit.page.wait_for_function(DRAWN, arg=NAMES)
    assert "Torch, in use: 2.05 GiB" in Chart(visit, "vram").told(0.2, 0.5)
    with visit.page.expect_download() as waiting:
        visit.page.click('[data-chart="vram"] .modebar-btn[data-title*="PNG" i]')
    assert waiting.value.suggested_filename == "vram.png"
    assert [url for url in visit.requests if not url.startswith(("blob:", "data:"))] == [address]
    assert visit.complaints == []
