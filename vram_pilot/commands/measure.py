"""`python -m vram_pilot measure`: how fast this machine copies between host and card."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from vram_pilot.paths import default_state_dir
from vram_pilot.reports.files import write_whole
from vram_pilot.telemetry.measure import measure
from vram_pilot.telemetry.measured import Measured, Spread, save
from vram_pilot.units import GIB

_WORDS = {
    "pinned_to_device": "pinned, to the card",
    "pinned_to_host": "pinned, from the card",
    "pageable_to_device": "pageable, to the card",
    "pageable_to_host": "pageable, from the card",
    "device": "within the card",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=int, default=0, metavar="N", help="CUDA's number of the card; 0 unless given")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the state folder; by default this user's own")
    parser.add_argument("--json", metavar="F", help="JSON instead of a table, to the file F; - for standard output")


def execute(args: argparse.Namespace) -> int:
    """Measures, keeps the result, and shows it. Raises VramPilotError."""
    found = measure(args.device)
    if args.json is None:
        print(table(found))
    elif args.json == "-":
        sys.stdout.write(_json(found))
    else:
        write_whole(Path(args.json), _json(found).encode())
    save(args.data_dir or default_state_dir(), found)
    return 0


def table(found: Measured) -> str:
    """For people: one line for each way to copy."""
    head = f"{found.gpu_name}, driver {found.driver or 'unknown'}, torch {found.torch}"
    lines = [f"{_WORDS[name]:<24}{_rate(rate)}" for name, rate in found.rates.items()]
    return "\n".join([head, *lines])


def _rate(rate: Spread) -> str:
    return f"{rate.median / GIB:8.1f} GiB/s   ({rate.min / GIB:.1f} to {rate.max / GIB:.1f}, {rate.n} copies)"


def _json(found: Measured) -> str:
    return json.dumps(found.to_json(), indent=2) + "\n"
