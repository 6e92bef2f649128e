"""Command-line flags of the WebUI that VRAM Pilot adds. The host calls `preload` before it reads its command line."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

FLAGS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--vram-pilot-off",
        {
            "action": "store_true",
            "default": False,
            "help": "VRAM Pilot: do nothing at all; its routes only answer that it is off",
        },
    ),
    (
        "--vram-pilot-mode",
        {
            "type": str,
            "default": None,
            "metavar": "MODE",
            "help": "VRAM Pilot: the mode from the start on: as-launched, full, medvram or lowvram. Default: as-launched",
        },
    ),
    (
        "--vram-pilot-data-dir",
        {
            "type": str,
            "default": None,
            "metavar": "DIR",
            "help": "VRAM Pilot: the folder for its sessions and state. Default: vram-pilot in the WebUI's data folder",
        },
    ),
    (
        "--vram-pilot-allow-remote-control",
        {
            "action": "store_true",
            "default": False,
            "help": "VRAM Pilot: with --listen or --share, let every user change the standing mode and delete sessions",
        },
    ),
)


def preload(parser: argparse.ArgumentParser) -> None:
    """Adds the flags. Hosts may call this again with the same parser; a flag that is there already stays as it is."""
    for name, options in FLAGS:
        with contextlib.suppress(argparse.ArgumentError):
            parser.add_argument(name, **options)
