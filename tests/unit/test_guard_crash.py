"""A process that dies while it enters a mode: the next one starts as launched and says why. Neighbours are left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.fakes.blocks import BLOCKS
from tests.fakes.host import FakeHost
from tests.project import ROOT
from vram_pilot.control import Controller
from vram_pilot.guard import ActivationGuard
from vram_pilot.session.records import Note
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import ModeRequest

pytestmark = pytest.mark.slow  # each case crashes a process of its own

#: Dies, or waits for a word, at the first unit that is moved: in the middle of entering the mode.
CHILD = """
    import os, pathlib, sys
    import torch
    torch.set_num_threads(1)
    from tests.fakes.blocks import BLOCKS
    from tests.fakes.host import FakeHost
    from vram_pilot.control import Controller
    from vram_pilot.session.timeline import Timeline
    from vram_pilot.settings import ModeRequest
    from vram_pilot.streaming.units import Unit

    def stop(*_):
        if sys.argv[3] == "dies":
            os._exit(9)
        print("inside", flush=True)
        sys.stdin.readline()
        raise RuntimeError("enough")

    Unit.take_home = stop
    host = FakeHost(BLOCKS.make(0), BLOCKS)
    controller = Controller(host, Timeline(), pathlib.Path(sys.argv[1]))
    host.subscribe(controller)
    if sys.argv[4] == "idle":
        controller.request(ModeRequest(sys.argv[2]))
    else:
        host.generate(2, at_step=lambda step: controller.request(ModeRequest(sys.argv[2])))
"""


def child(state: Path, mode: str, end: str, when: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(CHILD), str(state), mode, end, when]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def started(state: Path, standing: ModeRequest) -> tuple[FakeHost, Controller, list[str]]:
    """The next start of the program: host, controller, and what was noted."""
    timeline = Timeline()
    host = FakeHost(BLOCKS.make(0), BLOCKS)
    controller = Controller(host, timeline, state)
    host.subscribe(controller)
    controller.start(standing)
    return host, controller, [record.text for record in timeline.after(0).records if isinstance(record, Note)]


@pytest.mark.parametrize(("mode", "when"), [("lowvram", "idle"), ("medvram", "in a job")])
def test_after_a_crash_in_there_the_next_start_is_as_launched_and_says_why(mode: str, when: str, tmp_path: Path) -> None:
    died = subprocess.run(child(tmp_path, mode, "dies", when), cwd=ROOT, env=environment(), timeout=60, check=False)
    assert died.returncode == 9
    host, controller, notes = started(tmp_path, ModeRequest(mode))
    assert controller.standing() == ModeRequest()
    assert len(notes) == 1
    assert mode in notes[0]
    assert "begins as launched" in notes[0]
    host.generate(1)
    assert controller.effective() == ModeRequest()
    assert controller.request(ModeRequest(mode)).applies == "now", "it may be tried once more"
    assert started(tmp_path, ModeRequest(mode))[1].standing() == ModeRequest(mode), (
        "and the start after that is an ordinary one"
    )


def test_a_neighbour_that_is_entering_a_mode_is_neither_a_crash_nor_forgotten(tmp_path: Path) -> None:
    """Two WebUIs share one state folder; one of them crashed before, the other is entering a mode right now."""
    subprocess.run(child(tmp_path, "medvram", "dies", "idle"), cwd=ROOT, env=environment(), timeout=60, check=False)
    command = child(tmp_path, "lowvram", "waits", "idle")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, **pipes) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdin is not None
        assert neighbour.stdout.readline() == "inside\n"
        notes = started(tmp_path, ModeRequest("full"))[2]
        assert "medvram" in notes[0]
        markers = list(tmp_path.glob("entering-*.json"))
        assert [json.loads(marker.read_text())["owner"]["pid"] for marker in markers] == [neighbour.pid]
        assert started(tmp_path, ModeRequest("full"))[1].standing() == ModeRequest("full")
        neighbour.kill()
        neighbour.wait(10)
    assert ActivationGuard(tmp_path).crashed_in() == "lowvram", "killed in there, it is one after all"


def test_a_marker_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing is the moment at which a neighbour may look."""
    guard, neighbour = ActivationGuard(tmp_path), ActivationGuard(tmp_path)
    write, seen = Path.write_text, []

    def look_meanwhile(self: Path, text: str, **options: str) -> int:
        write(self, text[: len(text) // 2], **options)
        seen.append(neighbour.crashed_in())
        return write(self, text, **options)

    monkeypatch.setattr(Path, "write_text", look_meanwhile)
    with guard.entering("medvram"):
        pass
    assert seen == [None]


@pytest.mark.parametrize("spoil", ["a file in its place", "a folder in the marker's place"])
def test_a_folder_that_cannot_be_used_costs_no_switch(spoil: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    if spoil == "a file in its place":
        state.touch()
    else:
        (state / f"entering-{os.getpid()}.json").mkdir(parents=True)
    timeline = Timeline()
    host = FakeHost(BLOCKS.make(0), BLOCKS)
    controller = Controller(host, timeline, state)
    host.subscribe(controller)
    plain = host.generate()
    assert controller.request(ModeRequest("lowvram", 0)).applies == "now"
    assert torch.equal(host.generate(), plain)
    assert controller.stop() is True
