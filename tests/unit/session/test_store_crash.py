"""Processes that are killed, and several of them on one folder."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.session.test_store import header, session
from vram_pilot.session import database
from vram_pilot.session.store import Retention, SessionStore

pytestmark = pytest.mark.slow  # each case crashes a process of its own

ROOT = Path(__file__).parents[3]

#: One whole job, then a second one that stops before each of its events until it is told to go on.
JOB = """
    import sys
    from pathlib import Path
    from tests.fakes.jobs import Bench
    from vram_pilot.hosts.base import StepInfo
    from vram_pilot.session.store import SessionStore
    store = SessionStore(Path(sys.argv[1]))
    bench = Bench(on_started=store.begin, on_finished=store.finish)

    def events():
        yield bench.start
        yield lambda: bench.phase("encode", 0.01)
        yield lambda: bench.recorder.phase_started("denoise")
        for index in range(7):
            yield lambda index=index: bench.recorder.step_started(StepInfo(index, 7))
            yield bench.recorder.call_started
        yield lambda: bench.phase("decode", 0.1)
        yield lambda: bench.recorder.job_finished("ok")
        yield lambda: None

    for event in events():
        event()
    store.flush()
    for event in events():
        print("next", flush=True)
        sys.stdin.readline()
        event()
        store.flush()
"""
POINTS = 20

#: Writes session after session and says the id of each that is written.
WRITER = """
    import os, sys
    from pathlib import Path
    from tests.unit.session.test_store import session
    from vram_pilot.session.store import Retention, SessionStore
    store = SessionStore(Path(sys.argv[1]), retention=Retention(count=None), busy_timeout_s=30)
    for number in range(int(sys.argv[2])):
        made = session(number, findings=[{"noise": os.urandom(20_000).hex()}])
        store.begin({**made, "status": "running", "findings": []})
        store.finish(made)
        store.flush()
        assert store.status_note is None, store.status_note
        print(made["id"], flush=True)
    store.close()
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def sound(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / database.FILE_NAME)) as opened:
        return bool(opened.execute("PRAGMA integrity_check").fetchone()[0] == "ok")


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_in_mid_job(tmp_path: Path, point: int) -> None:
    """The finished session is whole, the running one is aborted, and nothing is marked while its process lives."""
    process = start(JOB, tmp_path)
    assert process.stdin is not None and process.stdout is not None
    reader = SessionStore(tmp_path)
    try:
        for _ in range(point):
            assert process.stdout.readline() == "next\n"
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "next\n"  # at the point, everything before it written
        begun, over = point >= 1, point >= POINTS - 1
        statuses = [row["status"] for row in reader.list()]
        assert statuses == ([] if not begun else ["ok"] if over else ["running"]) + ["ok"]
    finally:
        end(process)
    rows = reader.list()
    assert [row["status"] for row in rows] == ([] if not begun else ["ok"] if over else ["aborted"]) + ["ok"]
    assert [reader.get(row["id"])["status"] for row in rows] == [row["status"] for row in rows]
    assert len(reader.get(rows[-1]["id"])["steps"]) == 7
    assert reader.status_note is None
    reader.close()
    assert sound(tmp_path)


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.007])
def test_killed_while_it_writes(tmp_path: Path, delay_s: float) -> None:
    process = start(WRITER, tmp_path, 10_000)
    assert process.stdout is not None
    written = [process.stdout.readline().strip() for _ in range(5)]
    time.sleep(delay_s)  # into the middle of a write: the moment is the point here
    process.kill()
    written += process.stdout.read().split()
    end(process)
    store = SessionStore(tmp_path, retention=Retention(count=None))
    for session_id in written:
        assert len(store.get(session_id)["findings"][0]["noise"]) == 40_000
    assert {row["status"] for row in store.list(10_000)} <= {"ok", "aborted"}
    assert store.status_note is None
    store.close()
    assert sound(tmp_path)


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    processes = [start(WRITER, tmp_path, 15) for _ in range(3)]
    own = SessionStore(tmp_path, retention=Retention(count=None), busy_timeout_s=30)
    kept = [session(number) for number in range(15)]
    for made in kept:
        own.finish(made)
        own.list()
    written = [made["id"] for made in kept]
    for process in processes:
        shown, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        written += shown.split()
    own.flush()
    assert len(written) == 60
    assert sorted(row["id"] for row in own.list(1000)) == sorted(written)
    assert {row["status"] for row in own.list(1000)} == {"ok"}
    own.close()
    assert sound(tmp_path)


def test_a_session_of_a_living_process_is_left_running(tmp_path: Path) -> None:
    mine, reader = SessionStore(tmp_path), SessionStore(tmp_path)
    running = header()
    mine.begin(running)
    mine.flush()
    assert [row["status"] for row in reader.list()] == ["running"]
    reader.finish(session(1))
    reader.flush()
    assert reader.get(running["id"])["status"] == "running"
    mine.close()
    reader.close()


def test_a_session_given_up_by_mistake_is_put_right_at_its_end(tmp_path: Path) -> None:
    mine, reader = SessionStore(tmp_path), SessionStore(tmp_path)
    kept = session()
    mine.begin({**kept, "status": "running"})
    mine.flush()
    with closing(sqlite3.connect(tmp_path / database.FILE_NAME)) as opened, opened:
        opened.execute("UPDATE sessions SET owner_started = 'another'")
    assert [row["status"] for row in reader.list()] == ["aborted"]
    mine.finish(kept)
    mine.flush()
    assert reader.get(kept["id"]) == kept
    mine.close()
    reader.close()


@pytest.mark.parametrize(("age_s", "status"), [(3600.0, "running"), (90_000.0, "aborted")])
def test_a_session_of_another_machine(tmp_path: Path, age_s: float, status: str) -> None:
    """Nothing can be known of its process, so only time tells."""
    mine = SessionStore(tmp_path)
    running = header()
    mine.begin(running)
    mine.flush()
    mine.close()
    with closing(sqlite3.connect(tmp_path / database.FILE_NAME)) as opened, opened:
        opened.execute("UPDATE sessions SET owner_machine = 'elsewhere'")
        begun = opened.execute("SELECT started_unix FROM sessions").fetchone()[0]
    reader = SessionStore(tmp_path, now=lambda: begun + age_s)
    assert [row["status"] for row in reader.list()] == [status]
    reader.close()


def test_the_same_id_of_a_process_that_lives_is_not_enough(tmp_path: Path) -> None:
    mine = SessionStore(tmp_path)
    mine.begin(header())
    mine.flush()
    mine.close()
    with closing(sqlite3.connect(tmp_path / database.FILE_NAME)) as opened, opened:
        opened.execute("UPDATE sessions SET owner_pid = ?, owner_started = '1'", (os.getpid(),))
    assert [row["status"] for row in SessionStore(tmp_path).list()] == ["aborted"]
