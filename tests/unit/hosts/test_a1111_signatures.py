"""The table of the WebUI's names: the fakes have them, and the adapter uses no other."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.fakes.a1111 import FOLDER, SIGNATURES, installed
from tests.host.probe.vram_pilot_signatures import signature
from tests.project import PACKAGE


@pytest.mark.parametrize("target", sorted(SIGNATURES))
def test_the_fake_is_as_the_real_one(target: str) -> None:
    with installed():
        assert signature(target) == SIGNATURES[target]


def test_no_fake_has_a_name_that_is_not_in_the_table() -> None:
    """Public functions and classes; what a fake needs for itself begins with an underscore or is a private matter of these."""
    own = {"Options", "InterruptedException", "CFGDenoiserParams", "FIFOLock"}
    known = {target.partition(":")[0] + ":" + target.partition(":")[2].partition(".")[0] for target in SIGNATURES}
    for path in (FOLDER / "modules").rglob("*.py"):
        module = "modules." + ".".join(path.relative_to(FOLDER / "modules").with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in own and not node.name.startswith("_"):
                assert f"{module}:{node.name}" in known, f"{module}:{node.name}"


def used_names(path: Path) -> set[str]:
    """ "modules.x:name" for every attribute of a module of the WebUI, and every name imported from one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bound: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "modules":
            for alias in node.names:
                with installed():
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                        bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    except ModuleNotFoundError:
                        used.add(f"{node.module}:{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            used.add(f"{bound[node.value.id]}:{node.attr}")
    return used


def test_the_adapter_uses_no_name_that_is_not_in_the_table() -> None:
    known = {":".join((target.partition(":")[0], target.partition(":")[2].partition(".")[0])) for target in SIGNATURES}
    for path in sorted((PACKAGE / "hosts" / "a1111").glob("*.py")):
        assert used_names(path) <= known, path.name
