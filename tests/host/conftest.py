"""The WebUIs that the tests share, and the record of what they made."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.client import Client, Pictures
from tests.host.environment import Environment, NotHereError, environment
from tests.host.modes import AS_LAUNCHED
from tests.host.webui import EXTENSION, WebUI, installed_copy

PROBE = Path(__file__).parent / "probe"
_RECORDED: dict[str, Any] = {}
_DURATIONS: dict[str, list[Any]] = {}


@pytest.fixture(scope="session")
def env() -> Environment:
    try:
        return environment()
    except NotHereError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def extension(env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the installed extension, the same for every WebUI of this run. Nothing may be written into it but what
    Python itself keeps there, compiled beforehand as by an earlier start."""
    folder = installed_copy(tmp_path_factory.mktemp("extension") / EXTENSION)
    subprocess.run([env.python, "-m", "compileall", "-q", folder / "vram_pilot"], check=True)
    before = _files(folder)
    yield folder
    assert _files(folder) == before, "the extension's folder was written to"


def _files(folder: Path) -> dict[str, bytes]:
    every = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in every}


StartWebUI = Callable[..., WebUI]


@pytest.fixture(scope="session")
def webui(env: Environment, extension: Path, tmp_path_factory: pytest.TempPathFactory) -> StartWebUI:
    """Makes a WebUI, not started yet: `webui("name", *arguments, data=folder)`."""

    def make(name: str, *arguments: str, data: Path | None = None, **more: Any) -> WebUI:
        folder = data or tmp_path_factory.mktemp(f"data-{name}")
        return WebUI(env, name, folder, {EXTENSION: extension, "vram-pilot-probe": PROBE}, *arguments, **more)

    return make


@pytest.fixture(scope="session")
def plain_webui(webui: StartWebUI) -> Iterator[WebUI]:
    """The one without flags that most tests share."""
    with webui("plain") as running:
        yield running


@pytest.fixture
def plain(plain_webui: WebUI, env: Environment) -> Iterator[Client]:
    """Its client; the standing mode, the checkpoint and the VAE are as at the start, before and after."""
    client = plain_webui.client
    yield client
    client.post("/vram-pilot-probe/release", {"next_at": None})
    client.mode("as-launched", "standing")
    client.post("/sdapi/v1/options", {"sd_model_checkpoint": env.names.sd1[0], "sd_vae": "Automatic"})


@pytest.fixture(scope="session")
def launched(plain_webui: WebUI) -> Callable[..., Pictures]:
    """The pictures of a request as launched, made once: `launched(**request)`."""
    made: dict[str, Pictures] = {}

    def make(**request: Any) -> Pictures:
        key = json.dumps(request, sort_keys=True)
        if key not in made:
            made[key] = plain_webui.client.txt2img(AS_LAUNCHED, **request)
        return made[key]

    return make


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[str, Pictures | Any], None]:
    """Notes pictures' hashes, or any other fact, for the summary."""

    def note(name: str, found: Pictures | Any) -> None:
        place = _RECORDED.setdefault(request.node.nodeid.split("tests/host/")[-1], {})
        if isinstance(found, Pictures):
            found = {
                "pixels": [p[:16] for p in found.pixels],
                "png": [f[:16] for f in found.files],
                "duration_s": round(found.duration_s, 2),
            }
        place[name] = found

    return note


# ------------------------------------------------------------------------------------------------ the summary


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    entry = _DURATIONS.setdefault(report.nodeid.split("tests/host/")[-1], ["passed", 0.0])
    entry[1] += report.duration
    if report.outcome != "passed":
        entry[0] = report.outcome


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each file of tests, and everything as JSON."""
    files: dict[str, list[Any]] = {}
    for name, (outcome, duration_s) in _DURATIONS.items():
        row = files.setdefault(name.partition("::")[0], [0, 0, 0.0])
        row[0 if outcome == "passed" else 1] += 1
        row[2] += duration_s
    terminalreporter.section("real WebUI")
    for name, (passed, failed, duration_s) in files.items():
        terminalreporter.write_line(f"  {name:<28} {passed:4} passed {failed:4} failed {duration_s:8.1f} s")
    try:
        out = environment().out
    except NotHereError:
        return
    out.mkdir(parents=True, exist_ok=True)
    results = {
        name: {"outcome": outcome, "duration_s": round(duration_s, 2)} for name, (outcome, duration_s) in _DURATIONS.items()
    }
    summary = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "results": results, "recorded": _RECORDED}
    (out / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    terminalreporter.write_line(f"  logs, hashes and results: {out}")
