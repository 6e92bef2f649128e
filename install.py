"""Run by the WebUI at its start: installs what requirements.txt names and this Python lacks, and moves nothing else.

Every installed package is handed to pip as a constraint, so that no version changes that the host has pinned. Without a
network, or where a package does not go with what is installed, the part of VRAM Pilot that needs it is off, and the WebUI
starts all the same. With nothing missing nothing is run. Works without a WebUI too: `python install.py`.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
#: What is off without a package.
OFF_WITHOUT = {
    "nvidia-ml-py": "the readings of the NVIDIA card (power, temperature, clocks, other programs' memory) are off",
    "plotly": "the charts in reports are drawings that cannot be pointed at",
    "psutil": "the readings of CPU and RAM are off",
    "prometheus-client": "the Prometheus page is off",
}
#: A version that pip takes for a constraint.
_VERSION = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[A-Za-z0-9.]+)?")


def requirements(text: str) -> list[tuple[str, str]]:
    """(name, the whole requirement) of each line that is one."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [(re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0], line) for line in lines if line]


def is_installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def constraints() -> str:
    """name==version for every installed package, as a constraints file."""
    pins: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name, version = package.metadata["Name"], package.version
        if name and version and _VERSION.fullmatch(version):
            pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def pip_install(requirement: str) -> str | None:
    """Installs one requirement. None when that worked, else the last thing that pip said."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "installed.txt"
        pins.write_text(constraints(), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--prefer-binary", "--retries", "1", "--disable-pip-version-check"]
        index = os.environ.get("INDEX_URL")  # the WebUI's own variable
        command += ["--index-url", index] if index else []
        answer = subprocess.run([*command, "-c", str(pins), requirement], capture_output=True, text=True, errors="replace")
    if answer.returncode == 0:
        return None
    said = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")]
    return (errors or said or [f"exit status {answer.returncode}"])[-1]


def main() -> None:
    for name, requirement in requirements(REQUIREMENTS.read_text(encoding="utf-8")):
        if is_installed(name):
            continue
        print(f"VRAM Pilot: installing {requirement}", flush=True)
        failure = pip_install(requirement)
        if failure is not None:
            off = OFF_WITHOUT.get(name, "what needs it is off")
            print(
                f"VRAM Pilot: {name} could not be installed, so {off}. Everything else works. pip said: {failure}", flush=True
            )


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the gate: a WebUI must start, whatever is wrong with this
        print(
            f"VRAM Pilot: could not see to its packages ({type(error).__name__}: {error}). What needs them is off.", flush=True
        )
