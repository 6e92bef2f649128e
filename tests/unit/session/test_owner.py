"""Whether the process that records a session still lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vram_pilot.session.owner import Owner, Processes

#: As Linux shows it; the command's name holds what breaks a naive split.
STAT = "{pid} (python (3) x) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 {start} 20 21\n"


class Linux:
    """A /proc of files, as recorded."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        boot = folder / "sys/kernel/random"
        boot.mkdir(parents=True)
        (boot / "boot_id").write_text("aaaa-1\n")
        (folder / "self/ns").mkdir(parents=True)
        os.symlink("pid:[4026531836]", folder / "self/ns/pid")
        self.process(os.getpid(), start=500)

    def process(self, pid: int, start: int, state: str = "S") -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "stat").write_text(STAT.format(pid=pid, state=state, start=start))

    def owner(self, pid: int, started: str) -> Owner:
        return replace(Processes(self.proc, "linux").this(), pid=pid, started=started)


@pytest.fixture
def linux(tmp_path: Path) -> Linux:
    return Linux(tmp_path)


def test_alive(linux: Linux) -> None:
    linux.process(77, start=1234)
    assert Processes(linux.proc, "linux").is_dead(linux.owner(77, "1234")) is False


def test_gone(linux: Linux) -> None:
    assert Processes(linux.proc, "linux").is_dead(linux.owner(77, "1234")) is True


def test_another_process_has_its_id(linux: Linux) -> None:
    linux.process(77, start=9999)
    assert Processes(linux.proc, "linux").is_dead(linux.owner(77, "1234")) is True


def test_killed_but_not_yet_waited_for(linux: Linux) -> None:
    linux.process(77, start=1234, state="Z")
    assert Processes(linux.proc, "linux").is_dead(linux.owner(77, "1234")) is True


def test_the_machine_was_started_anew(linux: Linux) -> None:
    owner = linux.owner(os.getpid(), "500")
    assert Processes(linux.proc, "linux").is_dead(owner) is False
    (linux.proc / "sys/kernel/random/boot_id").write_text("bbbb-2\n")
    assert Processes(linux.proc, "linux").is_dead(owner) is True


def test_nothing_is_known_of_another_machine_or_container(linux: Linux) -> None:
    owner = linux.owner(77, "1234")
    (linux.proc / "self/ns/pid").unlink()
    os.symlink("pid:[4026532999]", linux.proc / "self/ns/pid")
    assert Processes(linux.proc, "linux").is_dead(owner) is None


def test_no_host_name_is_kept(linux: Linux) -> None:
    import socket

    assert socket.gethostname() not in Processes(linux.proc, "linux").this().machine


class TestHere:
    """On the system that the tests run on."""

    def test_this_process_lives(self) -> None:
        processes = Processes()
        assert processes.this().pid == os.getpid()
        assert processes.this().started is not None
        assert processes.is_dead(processes.this()) is False

    def test_a_killed_child_is_dead(self) -> None:
        code = "import sys, time; print('up', flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        processes = Processes()
        owner = replace(processes.this(), pid=child.pid, started=processes._started(child.pid))
        assert processes.is_dead(owner) is False
        child.kill() if os.name == "nt" else child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert processes.is_dead(owner) is True

    @pytest.mark.skipif(os.name == "nt", reason="ps is not on Windows, which has its own way")
    def test_the_way_of_macos_gives_the_same_verdict(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path, "darwin")
        this = processes.this()
        if this.started is None:
            pytest.fail("ps is missing: install procps")
        assert processes.is_dead(this) is False
        assert processes.is_dead(replace(this, pid=2**22 + 1)) is True
