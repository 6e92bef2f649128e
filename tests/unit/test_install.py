"""install.py (case D9): installs what is missing, moves nothing, and never keeps a WebUI from starting.

The slow tests run it as a WebUI does, with a real pip in an environment of its own, and wheels made here instead of a network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import install
from tests.project import ROOT

NAMES = [name for name, _ in install.requirements((ROOT / "requirements.txt").read_text(encoding="utf-8"))]


def test_each_requirement_has_a_sentence_for_its_absence() -> None:
    assert set(NAMES) == set(install.OFF_WITHOUT)


def test_requirements_are_read_without_comments_markers_or_empty_lines() -> None:
    text = "# a comment\n\nplain\n at-least >= 1.2  # why\nwith[extra]~=1 ; python_version<'4'\n"
    assert install.requirements(text) == [
        ("plain", "plain"),
        ("at-least", "at-least >= 1.2"),
        ("with", "with[extra]~=1 ; python_version<'4'"),
    ]


def test_every_installed_package_is_a_constraint() -> None:
    lines = install.constraints().splitlines()
    assert f"pytest=={pytest.__version__}" in lines
    names = [line.partition("==")[0] for line in lines]
    assert len(names) == len(set(names)), "pip refuses two versions of one name"


@pytest.mark.parametrize("version", ["2.1.2+cu121", "1!2.0", "2026.10.19.post1", "3.0rc1", "1.0.dev3"])
def test_ordinary_versions_become_constraints(version: str) -> None:
    assert install._VERSION.fullmatch(version)


@pytest.mark.parametrize("version", ["", "unknown", "1.0-custom build", "1.0\n--index-url=x"])
def test_a_version_that_pip_would_choke_on_does_not(version: str) -> None:
    assert not install._VERSION.fullmatch(version)


def test_with_nothing_missing_nothing_is_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(install, "is_installed", lambda name: True)
    monkeypatch.setattr(install, "pip_install", lambda requirement: pytest.fail("pip was run"))
    install.main()
    assert capsys.readouterr().out == ""


def test_one_failure_does_not_keep_the_others_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(install, "is_installed", lambda name: False)
    monkeypatch.setattr(install, "pip_install", lambda requirement: asked.append(requirement) or "ERROR: no")
    install.main()
    printed = capsys.readouterr().out
    assert len(asked) == len(NAMES)
    assert all(f"{name} could not be installed, so {off}." in printed for name, off in install.OFF_WITHOUT.items())


# -------------------------------------------------------------------------------------- as a WebUI runs it, with a real pip


@dataclass(frozen=True)
class Site:
    """An environment of its own, and a folder that stands in for the package index."""

    folder: Path
    wheels: Path

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def environ(self) -> dict[str, str]:
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "INDEX_URL"))}
        return {**keep, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}

    def run_install(self) -> str:
        """What install.py prints. Fails when it does not exit with 0."""
        command = [self.python, ROOT / "install.py"]
        return subprocess.run(command, cwd=self.folder, env=self.environ(), capture_output=True, text=True, check=True).stdout

    def pip(self, *arguments: str) -> str:
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, env=self.environ(), capture_output=True, text=True, check=True).stdout

    def freeze(self) -> set[str]:
        return set(self.pip("freeze").split())

    def add_wheel(self, name: str, version: str, *requires: str) -> None:
        stem = f"{name.replace('-', '_')}-{version}"
        metadata = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            *(f"Requires-Dist: {each}\n" for each in requires),
        ]
        files = {
            "METADATA": "".join(metadata),
            "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{stem}.dist-info/{file},,\n" for file in [*files, "RECORD"])
        with zipfile.ZipFile(self.wheels / f"{stem}-py3-none-any.whl", "w") as wheel:
            for file, text in {**files, "RECORD": record}.items():
                wheel.writestr(f"{stem}.dist-info/{file}", text)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "host", tmp_path / "wheels")
    made.wheels.mkdir()
    subprocess.run([sys.executable, "-m", "venv", made.folder], check=True)
    return made


@pytest.mark.slow
def test_offline_twice_it_exits_with_0_and_says_what_is_off(site: Site) -> None:
    before = site.freeze()
    for _ in range(2):
        printed = site.run_install()
        assert all(f"so {off}." in printed for off in install.OFF_WITHOUT.values())
        assert site.freeze() == before


@pytest.mark.slow
def test_only_what_is_missing_is_installed_and_what_is_pinned_stays(site: Site) -> None:
    for name in NAMES:
        site.add_wheel(name, "99.0", *(["pinned>=2"] if name == "plotly" else ["pinned"]))
    site.add_wheel("pinned", "1.0")
    site.add_wheel("pinned", "2.0")
    site.add_wheel("psutil", "1.0")
    site.pip("install", "pinned==1.0", "psutil==1.0")
    printed = site.run_install()
    assert site.freeze() == {"pinned==1.0", "psutil==1.0", "nvidia-ml-py==99.0", "prometheus-client==99.0"}
    assert "plotly could not be installed, so the charts in reports are drawings that cannot be pointed at." in printed
    site.add_wheel("plotly", "99.1", "pinned<2")
    site.run_install()
    assert "plotly==99.1" in site.freeze() and "pinned==1.0" in site.freeze()
    assert site.run_install() == ""


@pytest.mark.slow
def test_without_pip_the_webui_starts_all_the_same(site: Site) -> None:
    site.pip("uninstall", "--yes", "pip")
    assert "could not be installed" in site.run_install()
