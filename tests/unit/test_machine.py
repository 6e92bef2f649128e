"""How much RAM there is, in a container and outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vram_pilot import machine

GIB = 2**30
V2, V1 = "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.fixture(autouse=True)
def _sixteen_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_physical_ram", lambda: 16 * GIB)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16 * GIB),
        ({V2: "max\n"}, 16 * GIB),
        ({V2: f"{4 * GIB}\n"}, 4 * GIB),
        ({V2: f"{64 * GIB}\n"}, 16 * GIB),
        ({V1: f"{2 * GIB}\n"}, 2 * GIB),
        ({V1: "9223372036854771712\n"}, 16 * GIB),  # how an unlimited group of the first version reads
        ({V2: "max\n", V1: f"{2 * GIB}\n"}, 2 * GIB),
        ({V2: "0\n"}, 16 * GIB),
        ({V2: "-1\n"}, 16 * GIB),
        ({V2: "a lot\n"}, 16 * GIB),
        ({V2: ""}, 16 * GIB),
    ],
)
def test_the_lower_of_the_machines_ram_and_the_containers_limit(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.total_ram_bytes(tmp_path) == expected


def test_a_limit_that_is_no_text_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / V2).parent.mkdir(parents=True)
    (tmp_path / V2).write_bytes(b"\xff\xfe")
    assert machine.total_ram_bytes(tmp_path) == 16 * GIB
    (tmp_path / V2).unlink()
    (tmp_path / V2).mkdir()
    assert machine.total_ram_bytes(tmp_path) == 16 * GIB


def test_unknown_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_physical_ram", lambda: None)
    assert machine.total_ram_bytes(tmp_path) is None


@pytest.mark.skipif(sys.platform == "win32", reason="asks sysconf, which Windows has not")
@pytest.mark.parametrize("error", [OSError, ValueError, AttributeError])
def test_a_system_without_that_answer(error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def fails(_name: str) -> int:
        raise error

    monkeypatch.setattr(os, "sysconf", fails)
    assert machine.total_ram_bytes(tmp_path) is None


def test_this_machine_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    total = machine.total_ram_bytes()
    assert total is not None
    assert 2**28 < total < 2**50
