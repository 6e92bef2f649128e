"""The store where something is wrong: nothing finished is lost, the note says what to do, and nobody waits."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.session.test_store import session
from vram_pilot.errors import NotFoundError, StoreError
from vram_pilot.session import database
from vram_pilot.session.store import KEPT_UNWRITTEN, Retention, SessionStore

ROOT = Path(__file__).parents[3]


def file_of(folder: Path) -> Path:
    return folder / database.FILE_NAME


def ids(store: SessionStore) -> list[str]:
    return [row["id"] for row in store.list(1000)]


def filled(folder: Path, count: int = 3, **changes: Any) -> list[dict[str, Any]]:
    """A store that an earlier process has left behind."""
    sessions = [session(number, **changes) for number in range(count)]
    store = SessionStore(folder, retention=Retention(count=None))
    for made in sessions:
        store.finish(made)
    store.close()
    return sessions


class TestLocked:
    def test_a_session_waits_in_memory_and_is_written_later(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        filled(tmp_path)
        store = SessionStore(tmp_path, busy_timeout_s=0.05)
        first, second = session(10), session(11)
        with closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            with caplog.at_level(logging.WARNING):
                start = time.perf_counter()
                store.finish(first)
                assert time.perf_counter() - start < 0.05  # the generation does not wait for it
                store.flush()
                store.finish(session(12))
                store.flush()
            assert "held by another program" in (store.status_note or "")
            assert "wait in memory" in (store.status_note or "")
            assert store.get(first["id"]) == first
            assert first["id"] in ids(store)
            assert len([record for record in caplog.records if "held by" in record.message]) == 1
        store.finish(second)
        store.flush()
        assert store.status_note is None
        store.close()
        assert {first["id"], second["id"]} <= set(ids(SessionStore(tmp_path)))

    def test_closing_writes_what_waits(self, tmp_path: Path) -> None:
        filled(tmp_path)
        store = SessionStore(tmp_path, busy_timeout_s=0.05)
        kept = session(10)
        with closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            store.finish(kept)
            store.flush()
        store.close()
        assert SessionStore(tmp_path).get(kept["id"]) == kept

    def test_no_more_than_the_last_ones_wait(self, tmp_path: Path) -> None:
        filled(tmp_path)
        store = SessionStore(tmp_path, busy_timeout_s=0.001)
        sessions = [session(number) for number in range(KEPT_UNWRITTEN + 5)]
        with closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            for made in sessions:
                store.finish(made)
                store.flush()
            for made in sessions[5:]:
                assert store.get(made["id"]) == made
            for made in sessions[:5]:
                with pytest.raises(NotFoundError):
                    store.get(made["id"])
        store.close()

    def test_deleting_and_pruning_say_so(self, tmp_path: Path) -> None:
        (kept, *_) = filled(tmp_path)
        store = SessionStore(tmp_path, busy_timeout_s=0.05)
        with closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="held by another program"):
                store.delete(kept["id"])
            with pytest.raises(StoreError, match="held by another program"):
                store.prune()
        store.delete(kept["id"])
        store.close()


class TestFull:
    @pytest.fixture
    def small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A disk with room for a few sessions: SQLite's own limit of pages gives the error that a full disk gives."""
        real = database._opened

        def limited(uri: str, timeout_s: float) -> sqlite3.Connection:
            opened = real(uri, timeout_s)
            opened.execute("PRAGMA max_page_count = 24")
            return opened

        monkeypatch.setattr(database, "_opened", limited)
        return tmp_path

    def test_a_transaction_that_sqlite_has_ended_by_itself_does_not_hide_why(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a disk without room it ends one that makes the tables; here a constraint lets it do so."""
        ended = ("CREATE TABLE kept (id NOT NULL)", "INSERT OR ROLLBACK INTO kept VALUES (NULL)")
        monkeypatch.setattr(database, "MIGRATIONS", (ended,))
        store = SessionStore(tmp_path)
        store.finish(session(1))
        store.flush()
        assert "NOT NULL constraint failed" in (store.status_note or "")
        store.close()

    def test_what_fits_is_kept_and_the_rest_waits(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sessions = [session(number, findings=[{"noise": os.urandom(6000).hex()}]) for number in range(12)]
        store = SessionStore(small)
        for made in sessions:
            store.finish(made)
        store.flush()
        assert "no room" in (store.status_note or "")
        assert "Free space" in (store.status_note or "")
        assert ids(store) == [made["id"] for made in reversed(sessions)]
        monkeypatch.undo()  # somebody has made room
        store.finish(session(20))
        store.flush()
        assert store.status_note is None
        store.close()
        assert len(ids(SessionStore(small))) == 13

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="file size limits are POSIX")
    def test_the_system_refuses_to_write(self, tmp_path: Path) -> None:
        """In a process of its own whose files must not grow past 64 KiB."""
        code = """
            import os, resource, signal, sys
            from pathlib import Path
            from tests.unit.session.test_store import session
            from vram_pilot.session.store import SessionStore
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
            store = SessionStore(Path(sys.argv[1]))
            kept = [session(n, findings=[{"noise": os.urandom(6000).hex()}]) for n in range(12)]
            for made in kept:
                store.finish(made)
            store.flush()
            assert len(store.list()) == 12, store.list()
            assert all(store.get(made["id"]) == made for made in kept)
            print(store.status_note)
        """
        shown = run_python(code, tmp_path)
        assert "The session store" in shown
        assert ids(SessionStore(tmp_path))  # what fitted is whole


class TestReadOnly:
    def test_a_folder_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        store = SessionStore(tmp_path / "file" / "state")
        kept = session()
        store.begin({**kept, "status": "running"})
        store.finish(kept)
        store.flush()
        assert store.get(kept["id"]) == kept
        assert ids(store) == [kept["id"]]
        assert "cannot be written" in (store.status_note or "")
        assert "name another one" in (store.status_note or "")
        store.close()

    @pytest.mark.skipif(os.name == "nt", reason="permissions are POSIX")
    @pytest.mark.parametrize("journal", ["WAL", "DELETE"])
    def test_a_folder_without_the_right_to_write(self, tmp_path: Path, journal: str) -> None:
        """Another user's store can be read, and a session of one's own stays in memory."""
        folder = tmp_path / "state"
        seed = SessionStore(folder, is_network=lambda _: journal == "DELETE")
        kept = session()
        seed.finish(kept)
        seed.close()
        for parent in (tmp_path, *list(tmp_path.parents)[:3]):
            with contextlib.suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o055)
        file_of(folder).chmod(0o444)
        folder.chmod(0o555)
        code = """
            import os, sys
            from pathlib import Path
            from tests.unit.session.test_store import session
            from vram_pilot.session.store import SessionStore
            if os.getuid() == 0:
                os.setgid(65534); os.setuid(65534)
            store = SessionStore(Path(sys.argv[1]))
            assert [row["status"] for row in store.list()] == ["ok"]
            old = store.list()[0]["id"]
            own = session(5)
            store.finish(own)
            store.flush()
            assert store.get(own["id"]) == own
            assert [row["id"] for row in store.list()] == [own["id"], old]
            print(store.status_note)
        """
        try:
            assert "cannot be written" in run_python(code, folder)
        finally:
            folder.chmod(0o755)
        assert ids(SessionStore(folder)) == [kept["id"]]


class TestForeign:
    def test_a_newer_version_s_file_is_left_alone(self, tmp_path: Path) -> None:
        (kept, *_) = filled(tmp_path)
        newer = len(database.MIGRATIONS) + 1
        with closing(sqlite3.connect(file_of(tmp_path))) as opened, opened:
            opened.execute(f"PRAGMA user_version = {newer}")
        before = file_of(tmp_path).read_bytes()
        store = SessionStore(tmp_path)
        with pytest.raises(StoreError, match="newer version") as caught:
            store.list()
        assert "Update VRAM Pilot" in str(caught.value)
        assert caught.value.http_status == 503
        for call in (store.get, store.delete):
            with pytest.raises(StoreError, match="newer version"):
                call(kept["id"])
        with pytest.raises(StoreError, match="newer version"):
            store.prune()
        own = session(9)
        store.finish(own)
        store.flush()
        assert ids(store) == [own["id"]]
        assert "newer version" in (store.status_note or "")
        store.close()
        assert file_of(tmp_path).read_bytes() == before
        assert not list(tmp_path.glob("*damaged*"))

    def test_some_other_database(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(file_of(tmp_path))) as opened, opened:
            opened.execute("CREATE TABLE cats (name)")
            opened.execute(f"PRAGMA user_version = {len(database.MIGRATIONS)}")
        store = SessionStore(tmp_path)
        with pytest.raises(StoreError, match="not a session store"):
            store.list()
        store.close()

    def test_every_schema_version_is_brought_up_to_date(self, tmp_path: Path) -> None:
        for version in range(len(database.MIGRATIONS) + 1):
            folder = tmp_path / str(version)
            folder.mkdir()
            with closing(sqlite3.connect(file_of(folder))) as opened, opened:
                for statements in database.MIGRATIONS[:version]:
                    for statement in statements:
                        opened.execute(statement)
                opened.execute(f"PRAGMA user_version = {version}")
            kept = session()
            store = SessionStore(folder)
            store.finish(kept)
            store.close()
            assert SessionStore(folder).get(kept["id"]) == kept

    def test_a_migration_that_fails_leaves_the_file_as_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (kept, *_) = filled(tmp_path)
        broken = (*database.MIGRATIONS, ("ALTER TABLE sessions ADD COLUMN more TEXT", "NO SUCH STATEMENT"))
        monkeypatch.setattr(database, "MIGRATIONS", broken)
        with pytest.raises(StoreError):
            SessionStore(tmp_path).get(kept["id"])
        monkeypatch.undo()
        assert SessionStore(tmp_path).get(kept["id"]) == kept


class TestDamaged:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"this is no database at all, but long enough to be taken for one" * 40,
            lambda content: b"\0" * len(content),
            lambda content: content[: len(content) // 2],
            lambda content: content[:8192] + b"\xff" * 16384 + content[24576:],
        ],
        ids=["text", "zeros", "half", "pages"],
    )
    @pytest.mark.parametrize("first", ["write", "read"])
    def test_it_is_moved_aside_and_a_new_one_begun(self, tmp_path: Path, damage: Any, first: str) -> None:
        filled(tmp_path, 40, findings=[{"noise": "x" * 500}])
        content = file_of(tmp_path).read_bytes()
        file_of(tmp_path).write_bytes(damage(content))
        store = SessionStore(tmp_path)
        if first == "read":
            store.list()
        kept = session(50)
        store.finish(kept)
        store.flush()
        assert store.get(kept["id"]) == kept
        assert re.search(r"is kept as sessions-damaged-\d{8}-\d{6}-\d+\.sqlite3", store.status_note or "")
        (aside,) = tmp_path.glob("sessions-damaged-*.sqlite3")
        assert aside.read_bytes() == damage(content)
        store.close()
        assert kept["id"] in ids(SessionStore(tmp_path))

    def test_what_can_be_read_of_it_is_saved(self, tmp_path: Path) -> None:
        sessions = filled(tmp_path, 60, findings=[{"noise": os.urandom(1500).hex()}])
        content = bytearray(file_of(tmp_path).read_bytes())
        middle = len(content) // 2 // 4096 * 4096
        content[middle : middle + 4096] = b"\xff" * 4096
        file_of(tmp_path).write_bytes(content)
        store = SessionStore(tmp_path, retention=Retention(count=None))
        for made in sessions:  # reading reaches the damage sooner or later
            with contextlib.suppress(StoreError, NotFoundError):
                store.get(made["id"])
        kept = ids(store)
        store.close()
        assert len(kept) >= 50
        assert set(kept) <= {made["id"] for made in sessions}

    def test_an_empty_file_is_a_new_store(self, tmp_path: Path) -> None:
        file_of(tmp_path).write_bytes(b"")
        store = SessionStore(tmp_path)
        assert store.list() == []
        assert store.status_note is None
        store.close()

    def test_a_sound_file_is_never_moved(self, tmp_path: Path) -> None:
        """Another process has replaced the damaged one in the meantime."""
        filled(tmp_path)
        store = SessionStore(tmp_path)
        store._replace_damaged()
        assert store.status_note is None
        assert not list(tmp_path.glob("*damaged*"))
        store.close()

    def test_a_file_that_is_deleted_while_it_is_used(self, tmp_path: Path) -> None:
        store = SessionStore(tmp_path / "state")
        store.finish(session(0))
        store.flush()
        shutil.rmtree(tmp_path / "state")
        kept = session(1)
        store.finish(kept)
        store.flush()
        assert ids(store) == [kept["id"]]
        store.close()


class TestNetworkFolder:
    def test_the_safe_journal_is_used_and_said(self, tmp_path: Path) -> None:
        store = SessionStore(tmp_path, is_network=lambda _: True)
        store.finish(session())
        store.flush()
        assert "network file system" in (store.status_note or "")
        store.close()
        assert journal(tmp_path) == "delete"

    def test_a_local_one_has_the_fast_journal(self, tmp_path: Path) -> None:
        filled(tmp_path)
        assert journal(tmp_path) == "wal"

    def test_a_folder_that_was_moved_to_the_network(self, tmp_path: Path) -> None:
        (kept, *_) = filled(tmp_path)
        store = SessionStore(tmp_path, is_network=lambda _: True)
        store.finish(session(9))
        store.close()
        assert journal(tmp_path) == "delete"
        assert SessionStore(tmp_path).get(kept["id"]) == kept


def journal(folder: Path) -> str:
    with closing(sqlite3.connect(file_of(folder))) as opened:
        return str(opened.execute("PRAGMA journal_mode").fetchone()[0])


def run_python(code: str, folder: Path) -> str:
    """Standard output of `code`, run on `folder` in a process of its own from the repository's root."""
    import textwrap

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
