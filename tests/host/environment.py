"""Where the WebUI under test lies, and what its models are called.

WEBUI_DIR       the folder of an AUTOMATIC1111 WebUI 1.10 that starts by itself
WEBUI_PYTHON    the Python that it runs with (default: WEBUI_DIR/venv's)
WEBUI_ARGS      further arguments for its launch.py (default: all on the CPU, in float32)
WEBUI_MODELS    its models' folder (default: WEBUI_DIR/models)
WEBUI_EMBEDDINGS  its embeddings' folder (default: WEBUI_DIR/embeddings)
WEBUI_NAMES     JSON, or a file of JSON, that gives other names than the default ones to the models below
WEBUI_OUT       where logs, hashes and a session are kept (default: out/host)

The models may be of any size; small ones with random weights do. "same" are two checkpoints of one configuration (neither has a
yaml of its own), which the WebUI loads into one object; all others may have one.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.project import ROOT


class NotHereError(Exception):
    """A sentence that says what is missing and what to do."""


@dataclass(frozen=True)
class Names:
    """Names of files without their endings."""

    sd1: tuple[str, ...] = ("tiny-a", "tiny-b")
    same: tuple[str, ...] = ("tiny-c", "tiny-d")
    inpaint: str = "tiny-inpaint"
    sd2: str = "tiny-v2"
    sdxl: str = "tiny-xl"
    refiner: str = "tiny-xl-refiner"
    lora: tuple[str, ...] = ("lora-a", "lora-b")
    lora_sdxl: str = "lora-xl"
    vae: str = "tiny.vae.safetensors"
    embedding: str = "emb-a"


@dataclass(frozen=True)
class Environment:
    webui: Path
    python: Path
    models: Path
    embeddings: Path
    arguments: tuple[str, ...]
    names: Names = field(default_factory=Names)
    out: Path = ROOT / "out" / "host"


def environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Raises NotHereError."""
    webui = _folder(variables, "WEBUI_DIR", None, "the folder of an installed WebUI")
    if not (webui / "launch.py").is_file():
        raise NotHereError(f"WEBUI_DIR is {webui}, which holds no launch.py: set it to the folder of an installed WebUI.")
    names = _names(variables.get("WEBUI_NAMES", ""))
    found = Environment(
        webui,
        _python(variables, webui),
        _folder(variables, "WEBUI_MODELS", webui / "models", "the folder of its models"),
        _folder(variables, "WEBUI_EMBEDDINGS", webui / "embeddings", "the folder of its embeddings"),
        tuple(shlex.split(variables.get("WEBUI_ARGS", "--use-cpu all --no-half"))),
        names,
        Path(variables["WEBUI_OUT"]).resolve() if variables.get("WEBUI_OUT") else ROOT / "out" / "host",
    )
    _check_models(found)
    return found


def _folder(variables: Mapping[str, str], name: str, default: Path | None, what: str) -> Path:
    value = variables.get(name) or (None if default is None else str(default))
    if value is None:
        raise NotHereError(f"These tests need a real WebUI: set {name} to {what}.")
    path = Path(value).resolve()
    if not path.is_dir():
        raise NotHereError(f"{name} is {path}, which is no folder: set it to {what}.")
    return path


def _python(variables: Mapping[str, str], webui: Path) -> Path:
    inside = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    python = Path(variables.get("WEBUI_PYTHON") or webui / "venv" / inside)
    if not python.is_file():
        raise NotHereError(f"{python} is no file: set WEBUI_PYTHON to the Python that the WebUI runs with.")
    return python.absolute()  # not resolved: a virtual environment's python is a link


def _names(given: str) -> Names:
    if not given:
        return Names()
    text = Path(given).read_text(encoding="utf-8") if not given.lstrip().startswith("{") else given
    try:
        chosen = json.loads(text)
        known = {name.name for name in fields(Names)}
        assert set(chosen) <= known, f"unknown: {sorted(set(chosen) - known)}"
        return Names(**{key: tuple(value) if isinstance(value, list) else value for key, value in chosen.items()})
    except (ValueError, AssertionError, TypeError) as error:
        raise NotHereError(f"WEBUI_NAMES cannot be read ({error}): see tests/host/environment.py for its keys.") from error


def _check_models(found: Environment) -> None:
    names = found.names
    wanted = [
        ("Stable-diffusion", name) for name in (*names.sd1, *names.same, names.inpaint, names.sd2, names.sdxl, names.refiner)
    ]
    wanted += [("Lora", name) for name in (*names.lora, names.lora_sdxl)] + [("VAE", names.vae)]
    places = [(found.models / folder, name) for folder, name in wanted] + [(found.embeddings, names.embedding)]
    for folder, name in places:
        if not any(folder.glob(f"{name}*")):
            raise NotHereError(f"{folder} holds no {name}: put a model there, or name yours in WEBUI_NAMES.")
