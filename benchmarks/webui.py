"""A WebUI in a process of its own, started from a folder that is installed already."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

from tests.host.client import Client
from tests.ports import free_port
from tests.project import ROOT

EXTENSIONS = {"sd-webui-vram-pilot": ROOT, "webui-meter": Path(__file__).resolve().parent / "webui_meter"}
START_S = 300.0
#: The WebUI installs and downloads nothing.
QUIET = (
    *("--skip-torch-cuda-test", "--skip-python-version-check", "--skip-version-check", "--skip-prepare-environment"),
    *("--skip-install", "--no-download-sd-model", "--do-not-download-clip", "--nowebui", "--api"),
    *("--server-name", "127.0.0.1", "--vram-pilot-allow-remote-control"),  # the first alone counts as open to others
)
#: Every image encodes its prompt, and no preview is decoded beside it.
SETTINGS = {
    "live_previews_enable": False,
    "persistent_cond_cache": False,
    "samples_save": False,
    "auto_launch_browser": "Disable",
}


class StartError(RuntimeError):
    """The WebUI ended, or loaded no model in time. The message holds its log's end."""


class Place(NamedTuple):
    """Where the WebUI lies, where its data goes (one folder for all starts), and what its process sees.

    arguments: what every start gets.
    """

    webui: Path
    python: str
    models: Path
    data: Path
    arguments: tuple[str, ...]
    variables: dict[str, str]


def prepare(place: Place, checkpoint: str) -> None:
    """The data folder: settings, and the two extensions as links."""
    (place.data / "extensions").mkdir(parents=True, exist_ok=True)
    for name, source in EXTENSIONS.items():
        (place.data / "extensions" / name).symlink_to(source, target_is_directory=True)
    settings = {**SETTINGS, "sd_model_checkpoint": checkpoint}
    (place.data / "config.json").write_text(json.dumps(settings), encoding="utf-8")


class Server:
    """One start. arguments: those of this start alone; log: the file that takes all that it prints."""

    def __init__(self, place: Place, arguments: tuple[str, ...], log: Path) -> None:
        port = free_port()
        self.client, self.log = Client(f"http://127.0.0.1:{port}"), log
        folders = ["--data-dir", str(place.data), "--models-dir", str(place.models)]
        self._command = [place.python, "launch.py", *QUIET, *folders, "--port", str(port), *place.arguments, *arguments]
        self._place = place
        self.started_s = 0.0
        self.model: dict[str, Any] = {}

    def __enter__(self) -> Server:
        variables = {**os.environ, **self._place.variables, "PYTHONUNBUFFERED": "1", "SD_WEBUI_RESTARTING": "1"}
        variables.update(GRADIO_ANALYTICS_ENABLED="False", no_proxy="127.0.0.1")
        begun = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._place.webui,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.model = self._loaded(begun + START_S)
        except BaseException:
            self.stop()
            raise
        self.started_s = time.monotonic() - begun
        return self

    def _loaded(self, deadline: float) -> dict[str, Any]:
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                status, found, _headers = self.client.call("GET", "/vram-pilot-meter/model", timeout_s=START_S)
            except (URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
                continue
            if status == 200 and found["checkpoint"]:
                return dict(found)
            break
        raise StartError(f"The WebUI did not start with a model: see {self.log}. Its log ends so:\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def __exit__(self, *_failure: Any) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
