"""What makes a page interactive: exactly these scripts, nothing that breaks out of them, no harm where plotly fails."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import logging
import time
from typing import Any

import pytest

from tests.fakes.jobs import Bench, plain_session, rich_session
from tests.fakes.readings import with_readings
from vram_pilot.reports import figures, interactive
from vram_pilot.reports.html import render
from vram_pilot.reports.palette import DARK, LIGHT
from vram_pilot.settings import ModeRequest


class Scripts(html.parser.HTMLParser):
    """The scripts of a page as a browser takes them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str | None, str]] = []
        self._inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self._inside = True
            self.found.append((dict(attrs).get("type"), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            kind, before = self.found[-1]
            self.found[-1] = kind, before + data


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy(page: str) -> str:
    return page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]


def test_the_policy_lets_these_scripts_run_and_no_other() -> None:
    page = render(with_readings(rich_session()))
    data, *scripts = Scripts(page).found
    assert [kind for kind, _ in scripts] == [None, None]
    allowed = " ".join(f"'{digest(text)}'" for _, text in scripts)
    assert policy(page) == (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
    assert data[0] == "application/json"
    assert list(json.loads(data[1])["figures"])[:3] == ["step_latency", "step_memory", "vram"]


def test_every_figure_has_its_place_in_the_page() -> None:
    page = render(with_readings(rich_session()))
    for name in json.loads(Scripts(page).found[0][1])["figures"]:
        assert page.count(f'data-chart="{name}"') == 1


def test_each_light_colour_has_a_dark_one() -> None:
    built = interactive.build(with_readings(rich_session()))
    assert built is not None
    data = json.loads(Scripts(built.body).found[0][1])
    assert {LIGHT[name]: DARK[name] for name in LIGHT}.items() <= data["dark"].items()
    used = {value for figure in data["figures"].values() for value in colors(figure)}
    assert used <= data["dark"].keys()


def colors(value: Any, key: str = "") -> list[str]:
    if isinstance(value, dict):
        return [found for name, entry in value.items() for found in colors(entry, name)]
    if isinstance(value, list):
        return [found for entry in value for found in colors(entry, key)]
    return [value] if key.endswith("color") and isinstance(value, str) else []


def test_no_text_ends_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "</script><script>alert(1)</script><!-- <script>"
    monkeypatch.setattr(figures, "plotly_script", lambda: f"var a = '{hostile}';\r\nvar b;\r")
    session = rich_session()
    session["mode"]["history"][0]["reason"] = hostile
    page = render(session)
    found = Scripts(page).found
    assert len(found) == 3
    assert "\r" not in page
    assert found[1][1].startswith("var a = '\\u003c/script>")
    assert digest(found[1][1]) in policy(page)


@pytest.mark.parametrize(
    "fault", [RuntimeError("a release that is not known"), ImportError("half installed"), AttributeError("gone")]
)
def test_a_plotly_that_fails_leaves_the_drawings(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> dict[str, Any]:
        raise fault

    monkeypatch.setattr(figures, "all_figures", fails)
    with caplog.at_level(logging.WARNING):
        page = render(plain_session())
    assert "<script" not in page
    assert 'aria-label="Duration of each step"' in page
    assert "without interactive charts" in caplog.text


def test_without_plotly_there_is_no_script_and_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "is_installed", lambda: False)
    page = render(with_readings(rich_session()))
    assert "<script" not in page
    assert page.count("plotly") == 1
    assert page.count('<svg class="drawing chart') == 2 * 3 + 6  # three for both widths, six that stand side by side


def test_a_session_without_figures_needs_no_script() -> None:
    page = render({**plain_session(), "steps": [], "phases": [], "samples": {"t_s": []}})
    assert "<script" not in page
    assert "plotly" not in page


def test_a_day_of_ten_thousand_steps_is_a_file_that_can_be_mailed() -> None:
    """With as many readings and switches as a session holds. On an ordinary machine it takes a second and a half."""
    bench = Bench()
    bench.start(steps=100, n_iter=100)
    for image in range(100):
        bench.phase("encode", 0.3)
        mode = ModeRequest("lowvram", 0) if image % 2 else ModeRequest("full")
        bench.steps([8.0 + 0.01 * (index % 7) for index in range(100)], image=image, switches={50: mode})
        bench.phase("decode", 2.0)
    session = with_readings(bench.finish(), 4000)
    assert session["summary"]["duration_s"] > 80_000
    start_s = time.process_time()
    page = render(session)
    assert time.process_time() - start_s < 10
    assert len(page.encode()) < 6_000_000
    assert json.loads(Scripts(page).found[0][1])["figures"]["vram"]["layout"]["xaxis"]["ticksuffix"] == " h"
