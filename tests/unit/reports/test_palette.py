"""One set of colours for panel and report."""

from __future__ import annotations

import re

import pytest

from tests.project import ROOT
from vram_pilot.reports.palette import DARK, LIGHT, SERIES

STYLE = (ROOT / "style.css").read_text(encoding="utf-8")
#: Names in the report's palette to those in the panel's style.
SHARED = {
    **{
        name: name
        for name in ("good", "warn", "bad", "latency", "allocated", "reserved", "load", "encode", "denoise", "decode")
    },
    "soft": "muted",
    "other": "other",
}


def of_the_panel(selector: str, name: str) -> str:
    block = STYLE[STYLE.index(f"\n{selector} {{") :]
    found = re.search(rf"--vp-{name}: (?:var\([^,]+, )?(#[0-9a-f]{{6}})", block[: block.index("}")])
    assert found, f"style.css names no colour --vp-{name}"
    return found[1]


@pytest.mark.parametrize("name", SHARED)
def test_the_reports_colours_are_the_panels(name: str) -> None:
    assert LIGHT[name] == of_the_panel("#vram-pilot", SHARED[name])
    assert DARK[name] == of_the_panel(".dark #vram-pilot", SHARED[name])


def test_each_has_a_dark_form_and_no_two_share_a_light_one_only() -> None:
    """The page turns dark by exchanging colours, so a light colour must mean one dark colour."""
    assert LIGHT.keys() == DARK.keys()
    assert set(SERIES) <= LIGHT.keys()
    pairs = {(LIGHT[name], DARK[name]) for name in LIGHT}
    assert len({light for light, _ in pairs}) == len(pairs)
