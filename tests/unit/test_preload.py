"""The flags that the extension adds to a WebUI's command line."""

from __future__ import annotations

import argparse
import subprocess
import sys

import preload
from tests.project import ROOT


def parsed(*arguments: str, times: int = 1) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for _ in range(times):
        preload.preload(parser)
    return parser.parse_args(arguments)


def test_without_a_flag_nothing_is_set() -> None:
    assert not any(vars(parsed()).values())


def test_each_flag_arrives() -> None:
    found = parsed(
        "--vram-pilot-off", "--vram-pilot-allow-remote-control", "--vram-pilot-mode", "full", "--vram-pilot-data-dir", "d"
    )
    assert vars(found) == {
        "vram_pilot_off": True,
        "vram_pilot_mode": "full",
        "vram_pilot_data_dir": "d",
        "vram_pilot_allow_remote_control": True,
    }


def test_a_host_may_ask_twice() -> None:
    assert parsed("--vram-pilot-off", times=2).vram_pilot_off


def test_it_loads_alone_as_a_host_loads_it() -> None:
    """Without the extension's folder on the path, and without bringing the package along."""
    code = (
        "import importlib.util, sys; "
        f"spec = importlib.util.spec_from_file_location('preload', {str(ROOT / 'preload.py')!r}); "
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); "
        "print('vram_pilot' in sys.modules, callable(module.preload))"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert answer.stdout == "False True\n"
