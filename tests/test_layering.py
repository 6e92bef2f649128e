"""Who may import what, and that importing does nothing. The first table is the rule; everything below only looks."""

from __future__ import annotations

import ast
import compileall
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.project import PACKAGE, ROOT, module_name, package_files, python_files

HOSTS, PAGES = ("hosts/",), ("panel/", "hosts/standalone")
#: Module outside the standard library -> where in vram_pilot/ it may be imported. What is not named may be imported nowhere.
MAY_IMPORT = {
    "modules": HOSTS,
    "modules_forge": HOSTS,
    "backend": HOSTS,
    "ldm_patched": HOSTS,
    "diffusers": HOSTS,
    "transformers": HOSTS,
    "safetensors": HOSTS,
    "PIL": HOSTS,
    "numpy": HOSTS,
    "torch": (
        *("hosts/", "modes/", "streaming/", "graphs/", "engines/", "telemetry/", "bench/"),
        *("autopilot/recover.py", "autopilot/kernels.py", "side_streams.py"),
    ),
    "pynvml": ("telemetry/nvml.py",),
    "gradio": PAGES,
    "fastapi": PAGES,
    "starlette": PAGES,
    "uvicorn": ("hosts/standalone",),
    "psutil": ("telemetry/process.py", "doctor/"),
    "xformers": ("autopilot/kernels.py",),
    "tensorrt": ("engines/",),
    "tensorrt_bindings": ("engines/",),
    "onnx": ("engines/",),
    "onnxruntime": ("engines/",),
    "prometheus_client": ("exporters/",),
    "plotly": ("reports/figures.py",),
    "pyarrow": ("reports/parquet.py",),
}
#: Standard library only, also through what they import; and so is each file whose docstring says so.
PURE = ("session/", "settings.py", "errors.py", "units.py")
SAYS_PURE = re.compile(r"\b(pure|standard library only)\b", re.IGNORECASE)
#: What importing our modules must not bring along. Only those that need a pipeline, or are called while a page is built, may.
HEAVY = (
    "gradio",
    "diffusers",
    "transformers",
    "pynvml",
    "plotly",
    "psutil",
    "prometheus_client",
    "pyarrow",
    "matplotlib",
    "pandas",
)
MAY_BE_HEAVY = (
    "vram_pilot.hosts.standalone",
    "vram_pilot.hosts.diffusers",
    "vram_pilot.panel.view",
    "vram_pilot.panel.options",
    "vram_pilot.reports.figures",
)
#: Host programs: an adapter may say that its host is not here.
HOST_PROGRAMS = ("modules", "modules_forge", "backend", "ldm_patched", "launch")
#: What this version consists of; a package or a module.
REQUIRED = (
    *("install.py", "preload.py", "tasks.py", "scripts/vram_pilot_entry.py", "javascript/vram_pilot.mjs", "style.css"),
    *("vram_pilot/app", "vram_pilot/settings", "vram_pilot/errors", "vram_pilot/units", "vram_pilot/control"),
    *("vram_pilot/hosts/base", "vram_pilot/hosts/detect", "vram_pilot/hosts/a1111", "vram_pilot/hosts/diffusers"),
    *("vram_pilot/hosts/standalone", "vram_pilot/modes/base", "vram_pilot/modes/registry", "vram_pilot/modes/full"),
    *("vram_pilot/modes/medvram", "vram_pilot/modes/lowvram", "vram_pilot/streaming/schedule", "vram_pilot/streaming/pinned"),
    *(
        "vram_pilot/streaming/copies",
        "vram_pilot/streaming/executor",
        "vram_pilot/telemetry/base",
        "vram_pilot/telemetry/steps",
    ),
    *("vram_pilot/session/records", "vram_pilot/session/timeline", "vram_pilot/session/store", "vram_pilot/panel/view"),
    *("vram_pilot/panel/routes", "vram_pilot/reports/base", "vram_pilot/reports/html", "vram_pilot/reports/json"),
    *("vram_pilot/commands/run", "vram_pilot/commands/serve", "vram_pilot/commands/sessions"),
    *("tests/contracts", "tests/fakes", "tests/browser", "tests/js", "tests/host", "tests/gpu"),
)
ENTRY_LINES, FILE_LINES = 40, 500
#: For all of ours, in a host: 50 ms on an ordinary machine, and as much again twice for a slow one.
IMPORT_CPU_S = 0.15


@dataclass(frozen=True)
class Import:
    """One import in one file. type_only: under `if TYPE_CHECKING`, so it never happens."""

    name: str
    line: int
    type_only: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every import in the file, also those inside functions; of `from a import b` both a and a.b."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return tuple(_imports(tree, module_name(path), path.name == "__init__.py", type_only=False))


def _imports(node: ast.AST, module: str, is_package: bool, type_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, type_only) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, module, is_package)
            yield Import(base, child.lineno, type_only)
            yield from (Import(f"{base}.{alias.name}", child.lineno, type_only) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inner in child.body:
                yield from _imports(ast.Module([inner], []), module, is_package, type_only=True)
            for inner in child.orelse:
                yield from _imports(ast.Module([inner], []), module, is_package, type_only)
        else:
            yield from _imports(child, module, is_package, type_only)


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".") if is_package else module.split(".")[:-1]
    kept = parents[: len(parents) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_foreign(name: str) -> bool:
    return name != "vram_pilot" and name not in sys.stdlib_module_names


def place_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_pure(path: Path) -> bool:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"), str(path))) or ""
    return place_of(path).startswith(PURE) or bool(SAYS_PURE.search(docstring))


def foreign_at_run_time(path: Path, seen: set[Path]) -> Iterator[str]:
    """What importing or running the file may import from outside the standard library, also through our other files."""
    seen.add(path)
    for found in imports_of(path):
        if found.type_only:
            continue
        if is_foreign(found.top):
            yield f"{place_of(path)}:{found.line} {found.name}"
        for inner in (ROOT / (found.name.replace(".", "/") + ".py"), ROOT / found.name.replace(".", "/") / "__init__.py"):
            if found.top == "vram_pilot" and inner.is_file() and inner not in seen:
                yield from foreign_at_run_time(inner, seen)


FILES = package_files()
PURE_FILES = [path for path in FILES if is_pure(path)]


@pytest.mark.parametrize("path", FILES, ids=place_of)
def test_imports_only_what_the_table_allows(path: Path) -> None:
    wrong = [
        f"line {found.line}: {found.name}"
        for found in imports_of(path)
        if is_foreign(found.top) and not place_of(path).startswith(MAY_IMPORT.get(found.top, ()))
    ]
    assert not wrong, f"{place_of(path)} may not import this; the table MAY_IMPORT says who may: {wrong}"


@pytest.mark.parametrize("path", PURE_FILES, ids=place_of)
def test_pure_files_need_the_standard_library_only(path: Path) -> None:
    assert not list(foreign_at_run_time(path, set()))


def test_the_walk_sees_imports_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.project.ROOT", tmp_path)
    path = tmp_path / "vram_pilot" / "sub" / "file.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import gradio\n"
        "def later():\n    import psutil.tests\n    from ..units import mib\n    try:\n        from . import other\n"
        "    except ImportError:\n        pass\n"
    )
    found = {(each.name, each.type_only) for each in imports_of(path)}
    assert {("torch", True), ("gradio", False), ("psutil.tests", False)} <= found
    assert {("vram_pilot.units.mib", False), ("vram_pilot.sub.other", False)} <= found
    assert ("torch", False) not in found


@pytest.mark.parametrize("name", REQUIRED)
def test_the_layout_is_complete(name: str) -> None:
    assert (ROOT / name).exists() or (ROOT / f"{name}.py").is_file(), f"{name} belongs to this version and is missing"


@pytest.mark.parametrize("path", python_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_stay_readable(path: Path) -> None:
    limit = ENTRY_LINES if path.name == "vram_pilot_entry.py" else FILE_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit


# -------------------------------------------------------------------------------------------------- importing does nothing

IMPORTER = """
import importlib, json, os, sys, threading, time

names, heavy = json.loads(sys.argv[1])
import asyncio, sqlite3, torch, starlette.applications  # every host has loaded these

# torch loads pynvml, which must not hide that we do
for name in [name for name in sys.modules if name.partition(".")[0] in heavy]:
    del sys.modules[name]

answer = os.fdopen(os.dup(1), "w")
caught = open(sys.argv[2], "w+b")
os.dup2(caught.fileno(), 1), os.dup2(caught.fileno(), 2)
for name in names:
    before, environment, start = set(sys.modules), dict(os.environ), os.fstat(caught.fileno()).st_size
    failure, clock = None, time.process_time()
    try:
        importlib.import_module(name)
    except Exception as error:
        failure = [type(error).__name__, getattr(error, "name", None), str(error)]
    sys.stdout.flush(), sys.stderr.flush()
    caught.seek(start)
    report = {
        "cpu_s": time.process_time() - clock,
        "failure": failure,
        "threads": [thread.name for thread in threading.enumerate()],
        "printed": caught.read().decode(errors="replace"),
        "heavy": sorted({each.partition(".")[0] for each in set(sys.modules) - before} & set(heavy)),
        "cuda": torch.cuda.is_initialized(),
        "environment": sorted(key for key in set(environment) | set(os.environ) if environment.get(key) != os.environ.get(key)),
    }
    print(json.dumps([name, report]), file=answer, flush=True)
"""


def light(name: str) -> bool:
    return not name.startswith(MAY_BE_HEAVY)


MODULES = sorted((module_name(path) for path in FILES), key=lambda name: (not light(name), name))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One process imports all modules, the light ones first, and reports after each what it did."""
    compileall.compile_dir(PACKAGE, quiet=1)
    arguments = [json.dumps([MODULES, HEAVY]), str(tmp_path_factory.mktemp("imports") / "printed")]
    answer = subprocess.run([sys.executable, "-c", IMPORTER, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(line) for line in answer.stdout.splitlines())


@pytest.mark.slow  # a process of its own that imports everything, in each worker of a quick run
@pytest.mark.parametrize("name", MODULES)
def test_importing_does_nothing(name: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[name]
    failure = report["failure"]
    if failure is not None:
        needs_its_host = name.startswith("vram_pilot.hosts.") and str(failure[1]).partition(".")[0] in HOST_PROGRAMS
        assert needs_its_host, failure
    assert report["threads"] == ["MainThread"]
    assert report["printed"] == ""
    assert not report["cuda"]
    if light(name):
        assert not report["environment"]
        assert not report["heavy"], "import this where it is used, not at the top of a module"


def test_importing_everything_is_quick(reports: dict[str, dict[str, Any]]) -> None:
    costs = {name: report["cpu_s"] for name, report in reports.items() if light(name)}
    dearest = sorted(costs, key=lambda name: -costs[name])[:5]
    assert sum(costs.values()) < IMPORT_CPU_S, {name: costs[name] for name in dearest}
