"""One generation in each mode by the command line, and its report as a browser opens it from the disk."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from playwright.sync_api import Browser

from tests.browser.report import Visit
from tests.project import ROOT

pytestmark = pytest.mark.browser

MODES = ("lowvram", "full", "medvram", "as-launched")
SCHEMA = json.loads((ROOT / "docs" / "session.schema.json").read_text(encoding="utf-8"))
WORDS = (
    "run --model tiny --mode {mode} --steps 4 --size 64x64 --seed 1 --out {place} --json {place}/s.json --report {place}/r.html"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each mode, with one image, its session and its report."""
    folder = tmp_path_factory.mktemp("run")
    for mode in MODES:
        words = [word.format(mode=mode, place=folder / mode) for word in WORDS.split()]
        command = [sys.executable, "-m", "vram_pilot", *words, "--data-dir", str(folder / "state")]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
    return {mode: folder / mode for mode in MODES}


def test_every_mode_gives_the_same_file(made: dict[str, Path]) -> None:
    files = {mode: [path.read_bytes() for path in folder.glob("*.png")] for mode, folder in made.items()}
    assert {mode: len(found) for mode, found in files.items()} == dict.fromkeys(MODES, 1)
    assert len({hashlib.sha256(found[0]).hexdigest() for found in files.values()}) == 1


@pytest.mark.parametrize("mode", MODES)
def test_the_session_is_as_the_schema_says_and_tells_its_mode(made: dict[str, Path], mode: str) -> None:
    session = json.loads((made[mode] / "s.json").read_text(encoding="utf-8"))
    jsonschema.validate(session, SCHEMA, format_checker=jsonschema.FormatChecker())
    assert (session["status"], session["mode"]["effective"]["mode"], len(session["steps"])) == ("ok", mode, 4)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("mode", MODES)
def test_the_report_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, made: dict[str, Path], mode: str, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})  # type: ignore[arg-type]
    try:
        visit = Visit(context.new_page(), made[mode] / "r.html")
        assert visit.address.startswith("file://")
        assert [url for url in visit.requests if url != visit.address and not url.startswith(("data:", "blob:"))] == []
        assert visit.requests[0] == visit.address and visit.complaints == []
        assert mode in visit.page.locator("body").inner_text()
        assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        context.close()
