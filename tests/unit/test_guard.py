"""A process that dies while it enters a mode is remembered; one that lives, or leaves in order, is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.project import ROOT
from vram_pilot.guard import ActivationGuard
from vram_pilot.session.owner import Processes

DIES_INSIDE = """
import os, pathlib, sys
from vram_pilot.guard import ActivationGuard
with ActivationGuard(pathlib.Path(sys.argv[1])).entering("lowvram"):
    os._exit(9)
"""
LIVES_INSIDE = """
import pathlib, sys
from vram_pilot.guard import ActivationGuard
with ActivationGuard(pathlib.Path(sys.argv[1])).entering("medvram"):
    print("inside", flush=True)
    sys.stdin.read()
"""


def child(code: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), str(folder)]


def test_a_death_in_there_is_remembered_until_it_is_cleared(tmp_path: Path) -> None:
    subprocess.run(child(DIES_INSIDE, tmp_path), cwd=ROOT, check=False)
    guard = ActivationGuard(tmp_path)
    assert guard.crashed_in() == "lowvram"
    guard.clear()
    assert guard.crashed_in() is None


def test_another_process_that_lives_in_there_is_no_crash(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(child(LIVES_INSIDE, tmp_path), cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "inside\n"
        assert ActivationGuard(tmp_path).crashed_in() is None
        process.communicate()
    assert ActivationGuard(tmp_path).crashed_in() is None


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_leaving_in_order_or_by_an_exception_leaves_nothing(error: type[BaseException] | None, tmp_path: Path) -> None:
    guard = ActivationGuard(tmp_path / "state")
    try:
        with guard.entering("full"):
            assert list((tmp_path / "state").iterdir())
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert not list((tmp_path / "state").iterdir())


def test_a_folder_that_cannot_be_made_costs_the_protection_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    guard = ActivationGuard(tmp_path / "file" / "state")
    entered = []
    with guard.entering("full"):
        entered.append(True)
    assert entered
    assert guard.crashed_in() is None
    guard.clear()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"mode": "full"}', '{"mode": "full", "owner": {"pid": "x"}}', '{"mode": "full", "owner": {"pid": 1}}'],
)
def test_a_damaged_marker_is_a_crash_in_some_mode(text: str, tmp_path: Path) -> None:
    (tmp_path / "entering-1.json").write_text(text)
    assert ActivationGuard(tmp_path).crashed_in() == "a mode"


def marker(folder: Path, mode: str, **different: object) -> None:
    """As left by a process like this one, but for what is said to be different."""
    owner = {**asdict(Processes().this()), **different}
    (folder / "entering-1.json").write_text(json.dumps({"mode": mode, "owner": owner}))


@pytest.mark.parametrize("pid", [os.getpid(), os.getppid()], ids=["this process's", "another living process's"])
@pytest.mark.parametrize("different", [{"started": "1"}, {"boot": "another"}, {"machine": "another"}], ids=str)
def test_a_process_id_that_has_come_again_is_no_sign_of_life(pid: int, different: dict[str, str], tmp_path: Path) -> None:
    """After a reboot, or in a container, process ids come again."""
    marker(tmp_path, "medvram", pid=pid, **different)
    guard = ActivationGuard(tmp_path)
    assert guard.crashed_in() == "medvram"
    guard.clear()
    assert not list(tmp_path.iterdir())


def test_what_this_process_is_entering_is_no_crash_of_it(tmp_path: Path) -> None:
    """Reload UI starts us anew while a job's thread is entering a mode."""
    with ActivationGuard(tmp_path).entering("lowvram"):
        again = ActivationGuard(tmp_path)
        assert again.crashed_in() is None
        again.clear()
        assert list(tmp_path.iterdir())
