"""A real WebUI in a process of its own, with a data folder of its own, and the extension in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.host.client import Client
from tests.host.environment import Environment
from tests.ports import free_port
from tests.project import ROOT

EXTENSION = "sd-webui-vram-pilot"
START_S = 180.0
#: Another thread's output may stand before it on its line.
STARTED = r"Startup time: \d"
#: What a fresh config.json must hold, so that the WebUI restores these after a request that overrides them. Without the cache
#: of encoded prompts, every job runs the text encoder.
RESTORED = {
    "CLIP_stop_at_last_layers": 1,
    "persistent_cond_cache": False,
    "sd_vae": "Automatic",
    "token_merging_ratio": 0.0,
    "live_previews_enable": True,
    "show_progress_every_n_steps": 10,
    "show_progress_type": "Approx cheap",
    "live_preview_allow_lowvram_full": False,
    "fp8_storage": "Disable",
    "batch_cond_uncond": True,
    "pad_cond_uncond": False,
    "s_min_uncond_all": False,
    "samples_save": True,
    "auto_launch_browser": "Disable",
    "save_images_before_highres_fix": False,
}


def installed_copy(folder: Path) -> Path:
    """The extension as a user would have it: what git knows and what it would add. The checkout itself is never used."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


class WebUI:
    """One start of the WebUI. arguments: further ones; data: kept over several starts of the same folder."""

    def __init__(
        self,
        env: Environment,
        name: str,
        data: Path,
        extensions: Mapping[str, Path],
        *arguments: str,
        checkpoint: str | None = None,
    ) -> None:
        self.env, self.name, self.data = env, name, data
        self.arguments = arguments
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = Client(self.url)
        self.log = env.out / f"{name}.log"
        self.log.unlink(missing_ok=True)
        self._lines: list[str] = []
        self._grown = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self.started_s = 0.0
        self._prepare(extensions, checkpoint or env.names.sd1[0])

    def _prepare(self, extensions: Mapping[str, Path], checkpoint: str) -> None:
        (self.data / "extensions").mkdir(parents=True, exist_ok=True)
        for name, source in extensions.items():
            link = self.data / "extensions" / name
            if not link.exists():
                link.symlink_to(source, target_is_directory=True)
        config = self.data / "config.json"
        if not config.exists():
            chosen = {**RESTORED, "sd_model_checkpoint": checkpoint}
            config.write_text(json.dumps(chosen), encoding="utf-8")

    def _command(self) -> list[str]:
        env = self.env
        quiet = ["--skip-torch-cuda-test", "--skip-python-version-check", "--skip-prepare-environment", "--skip-install"]
        offline = ["--no-download-sd-model", "--do-not-download-clip"]
        places = ["--data-dir", str(self.data), "--models-dir", str(env.models), "--embeddings-dir", str(env.embeddings)]
        return [
            str(env.python),
            "launch.py",
            *quiet,
            *offline,
            *places,
            "--api",
            "--port",
            str(self.port),
            *env.arguments,
            *self.arguments,
        ]

    def start(self) -> WebUI:
        """Returns when the first model is loaded. Raises RuntimeError with the log's end when the WebUI ends before."""
        begun = time.monotonic()
        self.env.out.mkdir(parents=True, exist_ok=True)
        variables = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "SD_WEBUI_RESTARTING": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "no_proxy": "127.0.0.1",
        }
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        variables.pop("PYTHONPYCACHEPREFIX", None)  # the second start is to find what the first one compiled, as for a user
        self._process = subprocess.Popen(
            self._command(),
            cwd=self.env.webui,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        self.wait_for(STARTED)
        self.client.wait_until_it_answers(self._process)
        assert self.client.get("/vram-pilot-probe/loaded")["name"], f"no model was loaded, see {self.log}"
        self.started_s = time.monotonic() - begun
        return self

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with self.log.open("ab") as log:
            for raw in process.stdout:
                log.write(raw)
                log.flush()
                with self._grown:
                    self._lines += re.split(r"[\r\n]+", raw.decode("utf-8", "replace").strip("\r\n"))
                    self._grown.notify_all()
            log.write(f"\n(the process has ended with status {process.wait()})\n".encode())
        with self._grown:
            self._ended = True
            self._grown.notify_all()

    @property
    def line_count(self) -> int:
        with self._grown:
            return len(self._lines)

    def lines(self, since: int = 0) -> list[str]:
        with self._grown:
            return self._lines[since:]

    def wait_for(self, pattern: str, since: int = 0, timeout_s: float = START_S) -> str:
        """The first line of the log behind `since` that fits; waits for it."""
        expression = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        with self._grown:
            while True:
                for line in self._lines[since:]:
                    if expression.search(line):
                        return line
                since = len(self._lines)
                if self._ended or not self._grown.wait(deadline - time.monotonic()):
                    tail = "\n".join(self._lines[-20:])
                    raise RuntimeError(
                        f"{self.name}: no line fits {pattern!r} ({'ended' if self._ended else 'time is up'}):\n{tail}"
                    )

    def wait_for_end(self, timeout_s: float = 60.0) -> int:
        """The exit status of a WebUI that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """Ends the process; what it has written stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)

    def reload(self) -> None:
        """Reload UI, as its button does it; returns when the page is there again."""
        since = self.line_count
        self.client.post("/vram-pilot-probe/restart", {})
        self.wait_for_reload(since)

    def wait_for_reload(self, since: int) -> None:
        self.wait_for(r"Restarting UI\.", since)  # a progress bar may stand before it
        self.wait_for(STARTED, since)
        self.client.wait_until_it_answers(self._process)

    def __enter__(self) -> WebUI:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_failure: Any) -> None:
        self.stop()
