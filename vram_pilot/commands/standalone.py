"""What `run` and `serve` share: the standalone host under VRAM Pilot, in a process that is ours."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vram_pilot.paths import default_state_dir
from vram_pilot.session.records import Note
from vram_pilot.settings import ACCELERATE, MODE, ModeRequest, Setting, parse_mode_request

if TYPE_CHECKING:
    from vram_pilot.app import App
    from vram_pilot.hosts.standalone.host import StandaloneHost

#: Libraries of the host that would ask a server for something, were it only for their own news.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DIFFUSERS_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "GRADIO_ANALYTICS_ENABLED": "False",
}


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", default=MODE.default, metavar="MODE", help=_choice(MODE))
    parser.add_argument("--budget-mib", metavar="N", help="lowvram only: MiB of the denoiser that may stay on the card")
    parser.add_argument("--accelerate", default=ACCELERATE.default, metavar="A", help=_choice(ACCELERATE))
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:N or mps; by default the best one there is")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the state folder; by default this user's own")


def _choice(setting: Setting) -> str:
    return f"one of {', '.join(setting.built or setting.choices)}; {setting.default} unless given"


def requested_mode(args: argparse.Namespace) -> ModeRequest:
    """Raises UsageError or RefusedError."""
    asked = {"mode": args.mode, "accelerate": args.accelerate}
    return parse_mode_request(asked if args.budget_mib is None else {**asked, "budget_mib": args.budget_mib})


def build(device: str | None, data_dir: Path | None, **options: Any) -> tuple[StandaloneHost, App]:
    """The host without a model, and the application that listens to it once it is started. options: see `App`.

    Raises UsageError for a device that is not here.
    """
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    from vram_pilot.app import App
    from vram_pilot.hosts.standalone.host import StandaloneHost

    host = StandaloneHost(device)
    app = App(host, data_dir or default_state_dir(), **options)

    def note(text: str) -> None:
        app.timeline.append(Note(time.monotonic(), app.recorder.session_id if app.recorder is not None else None, text))

    host.on_note = note
    return host, app


def write_mode_into_images(host: StandaloneHost, app: App) -> None:
    """Adds the field "VRAM mode" to an image's parameters, as in a WebUI, when the setting is on."""

    def fields() -> Mapping[str, Any]:
        text = app.infotext()
        return {} if text is None else {"VRAM mode": text}

    host.extra_infotext = fields
