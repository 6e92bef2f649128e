"""The docs name what the code has, and the project names no machine of its makers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import preload
import tasks
import vram_pilot
from tests.project import ROOT, project_files
from vram_pilot import cli, settings
from vram_pilot.panel import routes

SETTINGS = (*settings.REQUEST_SETTINGS, *settings.MACHINE_SETTINGS)
COMMANDS = ("demo", "test")
#: Taken apart here, so that this file does not hold what it looks for.
FOREIGN = re.compile(
    "|".join(
        (
            r"(?<![\w.*-])/(work|root|opt/pypi|opt/wheels)/",
            r"(?<![\w.*-])/home/(?!user\b|me\b|you\b)\w+/",
            r"\bpypi" + r"\.org\b",
            r"\bpythonhosted" + r"\.org\b",
            r"\bregistry\.npmjs" + r"\.org\b",
            r"\bdeb\.debian" + r"\.org\b",
            r"\bdownload\.pytorch" + r"\.org\b",
        )
    )
)
TEXT_SUFFIXES = {
    "",
    ".py",
    ".md",
    ".txt",
    ".in",
    ".toml",
    ".json",
    ".mjs",
    ".js",
    ".css",
    ".html",
    ".yml",
    ".yaml",
    ".cfg",
    ".sh",
}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")


def page(name: str) -> str:
    path = ROOT / "docs" / name
    assert path.is_file(), f"docs/{name} is missing"
    return path.read_text(encoding="utf-8")


def row(text: str, key: str) -> str:
    """The table row that begins with `key` in backticks."""
    found = [line for line in text.splitlines() if re.match(rf"\| `{re.escape(key)}[` ]", line)]
    assert len(found) == 1, f"one row for {key} is wanted, {len(found)} found"
    return found[0]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_documented_with_its_values(setting: settings.Setting) -> None:
    text = row(page("settings.md"), setting.key)
    assert f"| {setting.label} |" in text
    assert all(f"`{choice}`" in text for choice in setting.choices)
    for limit in (setting.minimum, setting.maximum):
        assert limit is None or f"{limit:.10g}" in text
    shown = {"None": "empty", "True": "true", "False": "false"}.get(str(setting.default), str(setting.default))
    assert shown in text.rpartition(" | ")[2] or f"| {shown}" in text


@pytest.mark.parametrize("flag", [name for name, _ in preload.FLAGS])
def test_every_flag_of_the_webui_is_documented(flag: str) -> None:
    assert row(page("settings.md"), flag)


@pytest.mark.parametrize("mode", settings.MODES)
def test_every_mode_is_documented(mode: str) -> None:
    assert f"`{mode}`" in page("modes.md")


@pytest.mark.parametrize("mode", settings.BUILT_MODES)
def test_every_built_mode_has_its_row_in_the_tables(mode: str) -> None:
    assert row(page("modes.md"), mode)
    assert row((ROOT / "README.md").read_text(encoding="utf-8"), mode)


@pytest.mark.parametrize("command", [entry.name for entry in cli.COMMANDS])
def test_every_command_is_documented(command: str) -> None:
    assert f"vram_pilot {command}" in page("api.md")


@pytest.mark.parametrize("route", routes.ROUTES, ids=" ".join)
def test_every_route_is_documented(route: tuple[str, str]) -> None:
    method, path = route
    plain = re.sub(r"\{(\w+):\w+\}", r"{\1}", path)
    lines = [line for line in page("api.md").splitlines() if re.search(re.escape(plain) + r"(?![\w/{])", line)]
    assert any(re.search(rf"\b{method}\b", line) for line in lines), f"docs/api.md has no line with {method} {plain}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands_exist(command: str) -> None:
    assert f"python3 tasks.py {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        tasks.parser().parse_args([command, "--help"])
    assert stop.value.code == 0


def test_every_task_that_a_page_names_exists() -> None:
    pages = [path for path in project_files() if path.suffix == ".md"]
    named = {name for path in pages for name in re.findall(r"tasks\.py ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))}
    assert named <= set(tasks.TASKS)


def test_the_changelog_has_this_version() -> None:
    assert f"## {vram_pilot.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_links_between_pages_lead_somewhere() -> None:
    for path in (each for each in project_files() if each.suffix == ".md"):
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}, which does not exist"


def text_files() -> list[Path]:
    return [path for path in project_files() if path.suffix in TEXT_SUFFIXES]


@pytest.mark.parametrize("path", text_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_names_a_machine_or_a_registry(path: Path) -> None:
    found = FOREIGN.search(path.read_text(encoding="utf-8"))
    assert found is None, f"names {found[0]!r}" if found else ""


def test_the_search_for_machines_finds_them() -> None:
    assert FOREIGN.search("see /wo" + "rk/main for it")
    assert FOREIGN.search("https://pypi" + ".org/simple")
    assert not FOREIGN.search("/vram-pilot/work/x, net" + "work/x, /home/user/x")


def test_the_modes_in_a_flags_help_are_those_that_are_built() -> None:
    text = dict(preload.FLAGS)["--vram-pilot-mode"]["help"]
    assert all(mode in text for mode in settings.BUILT_MODES)
    assert not any(mode in text for mode in set(settings.MODES) - set(settings.BUILT_MODES))
