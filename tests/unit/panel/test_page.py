"""The tab's markup, the accordion and its meaning, and the files of the panel."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from vram_pilot.errors import RefusedError, UsageError
from vram_pilot.panel import assets, view
from vram_pilot.panel.fields import STANDING, request_from_fields
from vram_pilot.panel.page import WINDOW_S, WINDOWS, tab_html
from vram_pilot.settings import ACCELERATES, BUILT_ACCELERATES, BUILT_MODES, NOT_ACCELERATED, ModeRequest
from vram_pilot.telemetry.columns import ROWS
from vram_pilot.telemetry.fields import CLOCK_EVENTS
from vram_pilot.telemetry.memory_map import PERIOD_S
from vram_pilot.telemetry.rates import LANE_BYTES_PER_S

ROOT = Path(__file__).resolve().parents[3]
VOID = {"input", "br", "link", "meta"}


class Tree(HTMLParser):
    """Every element with its attributes; complains about what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def with_attribute(self, name: str) -> dict[str, str]:
        return {str(attributes[name]): tag for tag, attributes in self.elements if name in attributes}


def test_the_markup_is_whole_and_its_references_lead_somewhere() -> None:
    tree = Tree(tab_html())
    ids = [str(attributes["id"]) for _, attributes in tree.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name in ("for", "aria-labelledby", "aria-controls", "aria-describedby"):
        assert set(tree.with_attribute(name)) <= set(ids)
    places = [attributes["data-vp"] for _, attributes in tree.elements if "data-vp" in attributes]
    assert len(places) == len(set(places))


def test_every_place_that_the_script_fills_is_there() -> None:
    scripts = [path.read_text(encoding="utf-8") for name, path in assets.FILES.items() if name.endswith(".mjs")]
    used = {place for script in scripts for place in re.findall(r'page\.(?:slot|text|show|fill|say|on)\("([a-z-]+)"', script)}
    assert len(used) > 30 and used <= set(Tree(tab_html()).with_attribute("data-vp"))


def test_exactly_the_built_modes_are_offered() -> None:
    tree = Tree(tab_html())
    offered = [attributes["value"] for _, attributes in tree.elements if attributes.get("name") == "vp-mode"]
    assert offered == list(BUILT_MODES)


def test_each_mode_says_what_goes_with_it() -> None:
    takes = {a["value"]: a["data-takes"] for _, a in Tree(tab_html()).elements if a.get("name") == "vp-mode"}
    assert takes["lowvram"] == "budget accelerate" and takes["full"] == "accelerate"
    assert all(takes[mode] == "" for mode in NOT_ACCELERATED if mode in takes)
    options = [attributes["value"] for tag, attributes in Tree(tab_html()).elements if tag == "option"]
    assert options == list(BUILT_ACCELERATES)


def test_what_goes_with_another_mode_is_not_asked_for() -> None:
    for way in ACCELERATES:
        assert request_from_fields("as-launched", "512", way) == ModeRequest()
    for way in BUILT_ACCELERATES:
        assert request_from_fields("full", "512", way) == ModeRequest("full", None, way)


def test_every_control_has_a_name() -> None:
    """A button's text, a label around or for an input, or an aria-label."""
    text = tab_html()
    assert not re.search(r"<button[^>]*>\s*</button>", text)
    labelled = set(Tree(text).with_attribute("for"))
    for match in re.finditer(r"<input[^>]*>", text):
        around = text[: match.start()].count("<label") > text[: match.start()].count("</label")
        own = re.search(r' id="([^"]+)"', match[0])
        assert around or (own and own[1] in labelled) or "aria-label" in match[0]


def config_of(blocks: gr.Blocks) -> list[dict[str, Any]]:
    return list(blocks.get_config_file()["components"])


def test_the_tab_asks_the_application_for_nothing() -> None:
    blocks = view.tab(object())  # type: ignore[arg-type]
    assert any("vram-pilot" in str(component["props"].get("value")) for component in config_of(blocks))


@pytest.mark.parametrize(("is_img2img", "prefix"), [(False, "vram_pilot_txt2img"), (True, "vram_pilot_img2img")])
def test_the_accordion_offers_exactly_what_is_built(is_img2img: bool, prefix: str) -> None:
    with gr.Blocks(analytics_enabled=False) as blocks:
        fields = view.accordion(is_img2img)
    assert len(fields) == 3
    mode = next(component["props"] for component in config_of(blocks) if component["props"].get("elem_id") == f"{prefix}_mode")
    choices = [choice[1] if isinstance(choice, (list, tuple)) else choice for choice in mode["choices"]]
    assert choices == [STANDING, *BUILT_MODES] and mode["value"] == STANDING


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        ((STANDING, "512"), None),
        (("", ""), None),
        ((None,), None),
        ((STANDING, "", "graph"), None),
        (("as-launched", "", "graph"), ModeRequest()),
        (("full", ""), ModeRequest("full")),
        (("lowvram", ""), ModeRequest("lowvram")),
        (("lowvram", " 512 "), ModeRequest("lowvram", 512)),
        (("lowvram", 512.0), ModeRequest("lowvram", 512)),
        (("medvram", "512"), ModeRequest("medvram")),
        (("full", "", None), ModeRequest("full")),
    ],
    ids=repr,
)
def test_the_fields_mean_a_request(fields: tuple[object, ...], request_: ModeRequest | None) -> None:
    assert request_from_fields(*fields) == request_


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (("lowvram", "much"), UsageError),
        (("lowvram", "-1"), UsageError),
        ((["full"], ""), UsageError),
        (("auto", ""), RefusedError),
    ],
    ids=repr,
)
def test_fields_that_mean_nothing_are_named(fields: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        request_from_fields(*fields)


# --------------------------------------------------------------------------------------------------------------- assets


def test_every_file_of_the_script_is_known_on_both_sides() -> None:
    folder = ROOT / "javascript" / "vram_pilot"
    assert sorted(assets.HELPERS) == sorted(path.stem for path in folder.glob("*.mjs"))
    script = (ROOT / "javascript" / assets.SCRIPT).read_text(encoding="utf-8")
    listed = re.search(r"const HELPERS = \[(.*?)\];", script, re.DOTALL)
    assert listed and sorted(re.findall(r'"(\w+)"', listed[1])) == sorted(assets.HELPERS)


def script(name: str) -> str:
    return (ROOT / "javascript" / "vram_pilot" / f"{name}.mjs").read_text(encoding="utf-8")


def table(name: str, constant: str) -> dict[str, str]:
    """An object of names and plain values in a script."""
    found = re.search(rf"const {constant} = \{{(.*?)\}};", script(name), re.DOTALL)
    assert found
    return dict(re.findall(r'(\w+): "?([\w.]+)', found[1]))


def test_both_sides_agree_on_what_they_share() -> None:
    assert {name: int(bit, 16) for name, bit in table("gauges", "CLOCK_EVENTS").items()} == CLOCK_EVENTS
    assert set(table("gauges", "EVENT_KINDS")) == set(CLOCK_EVENTS)
    assert {int(name): float(rate) for name, rate in table("gauges", "LANE").items()} == LANE_BYTES_PER_S
    assert f"const ROWS = {ROWS};" in script("columns") and f"const SLOT_S = {PERIOD_S};" in script("columns")
    assert sorted(map(int, table("tracks", "WINDOWS"))) == sorted(WINDOWS) and f"windowS: {WINDOW_S}" in script("board")


def test_every_metric_that_is_shown_is_documented() -> None:
    known = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    shown = set(re.findall(r'"((?:gpu|host|process)_[a-z0-9_]+|\w+_ratio)"', script("gauges") + script("readings")))
    shown |= set(re.findall(r"(?:values|facts)\.(\w+)", script("holders") + script("gauges")))
    assert len(shown) > 20
    for name in shown - {"host_ram_used_bytes"}:
        assert f"`{name}`" in known, name


def test_the_scripts_import_by_relative_address_only() -> None:
    for name, path in assets.FILES.items():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), f"{name} names a server"
        for source in re.findall(r'\bfrom "([^"]+)"', text):
            assert source.startswith("./") and (path.parent / source).is_file()


@pytest.mark.parametrize("base", ["", "/sub/", "../"])
def test_a_standalone_page_loads_the_files_under_its_root(base: str) -> None:
    head = assets.head_html(base)
    for name in (assets.SCRIPT, assets.STYLE):
        assert re.search(rf'"{re.escape(base)}vram-pilot/assets/{re.escape(name)}\?\d+"', head)
