"""The store where all is well."""

from __future__ import annotations

import copy
import sqlite3
import threading
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.jobs import plain_session, rich_session
from vram_pilot.errors import NotFoundError, RefusedError, StoreError, UsageError
from vram_pilot.session import database
from vram_pilot.session.ids import new_id
from vram_pilot.session.rows import LISTED
from vram_pilot.session.store import Retention, SessionStore

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
PLAIN = plain_session()


def session(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A session of its own, begun `number` hours after START."""
    moment = START + timedelta(hours=number)
    made = copy.deepcopy(PLAIN)
    made.update({"id": new_id(moment), "started_at": moment.isoformat(timespec="milliseconds"), **changes})
    return made


def header(number: int = 0) -> dict[str, Any]:
    return session(number, status="running", steps=[], phases=[])


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = SessionStore(tmp_path / "state", now=lambda: START.timestamp())
    yield made
    made.close()


def written(folder: Path) -> list[sqlite3.Row]:
    """What is in the file, read by SQLite itself."""
    with closing(sqlite3.connect(folder / "state" / database.FILE_NAME)) as opened:
        opened.row_factory = sqlite3.Row
        return opened.execute("SELECT * FROM sessions ORDER BY seq").fetchall()


class TestKeeping:
    def test_a_finished_session_comes_back_whole(self, store: SessionStore) -> None:
        kept = rich_session()
        store.begin({**kept, "status": "running"})
        store.finish(kept)
        assert store.get(kept["id"]) == kept  # at once, whether written or not
        assert store.flush()
        assert store.get(kept["id"]) == kept
        assert store.status_note is None

    def test_another_process_reads_it(self, store: SessionStore, tmp_path: Path) -> None:
        kept = session()
        store.finish(kept)
        store.flush()
        other = SessionStore(tmp_path / "state")
        assert other.get(kept["id"]) == kept
        assert [row["id"] for row in other.list()] == [kept["id"]]
        other.close()

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        extra=st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**70), 2**70)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(blacklist_categories=("Cs",))),
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
            ),
            max_leaves=12,
        ),
        width=st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.none() | st.lists(st.integers(), max_size=2),
    )
    def test_any_json_comes_back(self, tmp_path_factory: pytest.TempPathFactory, extra: Any, width: Any) -> None:
        folder = tmp_path_factory.mktemp("round") / "state"
        kept = session(findings=[{"anything": extra}])
        kept["request"]["width"] = width
        store = SessionStore(folder)
        store.finish(kept)
        store.close()
        other = SessionStore(folder)
        assert other.get(kept["id"]) == kept
        other.close()

    def test_nothing_is_created_by_reading(self, tmp_path: Path) -> None:
        store = SessionStore(tmp_path / "state")
        assert store.list() == []
        assert store.prune() == 0
        with pytest.raises(NotFoundError):
            store.get(session()["id"])
        store.close()
        assert list(tmp_path.iterdir()) == []

    def test_recording_starts_no_thread_before_it_must(self, tmp_path: Path) -> None:
        before = threading.active_count()
        store = SessionStore(tmp_path)
        assert threading.active_count() == before
        store.finish(session())
        store.close()
        assert threading.active_count() == before

    def test_after_close_sessions_stay_in_memory(self, store: SessionStore) -> None:
        store.close()
        store.close()
        kept = session()
        store.finish(kept)
        assert store.get(kept["id"]) == kept
        assert store.flush()

    @pytest.mark.parametrize("bad", ["", "../x", None, 5, "20260131-235959-ab12cd34'--"])
    def test_only_ids_are_taken(self, store: SessionStore, bad: Any) -> None:
        for call in (store.get, store.delete):
            with pytest.raises(UsageError):
                call(bad)
        with pytest.raises(UsageError):
            store.finish({**session(), "id": bad})

    def test_a_session_that_json_cannot_carry_keeps_none_of_the_others(self, store: SessionStore) -> None:
        poisoned, kept = session(1, findings=[{"x": float("nan")}]), session(2)
        store.finish(poisoned)
        store.finish(kept)
        store.flush()
        assert [row["id"] for row in store.list()] == [kept["id"]]


class TestListing:
    def test_newest_first_in_pages(self, store: SessionStore) -> None:
        sessions = [session(number) for number in range(7)]
        for made in sessions:
            store.finish(made)
        store.flush()
        ids = [made["id"] for made in reversed(sessions)]
        assert [row["id"] for row in store.list()] == ids
        assert [row["id"] for row in store.list(3, 2)] == ids[2:5]
        assert store.list(3, 100) == []
        assert store.list(0) == []
        assert [row["id"] for row in store.list(-5, -5)] == []

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8), st.integers(0, 8))
    def test_pages_join_memory_and_disk(
        self, tmp_path_factory: pytest.TempPathFactory, on_disk: int, in_memory: int, limit: int, offset: int
    ) -> None:
        store = SessionStore(tmp_path_factory.mktemp("pages") / "state")
        sessions = [session(number) for number in range(on_disk + in_memory)]
        for made in sessions[:on_disk]:
            store.finish(made)
        store.close()
        for made in sessions[on_disk:]:
            store.finish(made)
        ids = [made["id"] for made in reversed(sessions)]
        assert [row["id"] for row in store.list(limit, offset)] == ids[offset : offset + limit]

    def test_a_clock_that_is_set_back_shuffles_nothing(self, store: SessionStore) -> None:
        later, earlier = session(1000), session(0)
        store.finish(later)
        store.finish(earlier)
        store.flush()
        assert [row["id"] for row in store.list()] == [earlier["id"], later["id"]]

    def test_a_summary_is_the_same_from_memory_and_from_disk(self, store: SessionStore) -> None:
        kept = rich_session()
        store.close()
        store.finish(kept)
        (from_memory,) = store.list()
        other = SessionStore(store._path.parent)
        other.finish(kept)
        other.close()
        (from_disk,) = SessionStore(store._path.parent).list()
        assert from_memory == from_disk
        assert tuple(from_disk) == LISTED
        assert from_disk["model"] == "dream.safetensors"
        assert from_disk["mode"] == "lowvram, budget 0 MiB"
        assert from_disk["steps_per_s"] == kept["summary"]["steps_per_s"]

    def test_a_running_session_is_listed_and_then_replaced(self, store: SessionStore) -> None:
        running = header()
        store.begin(running)
        store.flush()
        assert [row["status"] for row in store.list()] == ["running"]
        store.finish({**running, "status": "interrupted"})
        store.flush()
        assert [row["status"] for row in store.list()] == ["interrupted"]
        assert store.get(running["id"])["status"] == "interrupted"


class TestDeleting:
    def test_delete(self, store: SessionStore) -> None:
        one, other = session(0), session(1)
        store.finish(one)
        store.finish(other)
        store.flush()
        store.delete(one["id"])
        assert [row["id"] for row in store.list()] == [other["id"]]
        with pytest.raises(NotFoundError) as caught:
            store.delete(one["id"])
        assert caught.value.http_status == 404
        assert caught.value.exit_status == 2

    def test_delete_before_it_is_written(self, store: SessionStore) -> None:
        kept = session()
        store.finish(kept)
        store.delete(kept["id"])
        store.flush()
        assert store.list() == []

    def test_a_running_session_is_not_deleted(self, store: SessionStore) -> None:
        running = header()
        store.begin(running)
        store.flush()
        with pytest.raises(RefusedError, match="still being recorded"):
            store.delete(running["id"])

    def test_a_damaged_session_can_be_deleted_and_harms_no_other(self, store: SessionStore, tmp_path: Path) -> None:
        one, other = session(0), session(1)
        for made in (one, other):
            store.finish(made)
        store.flush()
        with closing(sqlite3.connect(tmp_path / "state" / database.FILE_NAME)) as opened, opened:
            opened.execute("UPDATE sessions SET body = x'00' WHERE id = ?", (one["id"],))
        with pytest.raises(StoreError, match="damaged"):
            store.get(one["id"])
        assert store.get(other["id"]) == other
        assert len(store.list()) == 2
        store.delete(one["id"])
        assert [row["id"] for row in store.list()] == [other["id"]]


class TestRetention:
    def keep(self, tmp_path: Path, retention: Retention, sessions: list[dict[str, Any]], now: datetime = START) -> list[str]:
        store = SessionStore(tmp_path / "state", retention=retention, now=now.timestamp)
        for made in sessions:
            store.finish(made)
        store.close()
        return [row["id"] for row in written(tmp_path)]

    def test_by_count(self, tmp_path: Path) -> None:
        sessions = [session(number) for number in range(6)]
        assert self.keep(tmp_path, Retention(count=4), sessions) == [made["id"] for made in sessions[2:]]

    def test_by_age(self, tmp_path: Path) -> None:
        sessions = [session(number) for number in range(6)]
        kept = self.keep(tmp_path, Retention(age_s=3 * 3600.0), sessions, START + timedelta(hours=6.5))
        assert kept == [made["id"] for made in sessions[4:]]

    def test_by_bytes(self, tmp_path: Path) -> None:
        sessions = [session(number) for number in range(6)]
        self.keep(tmp_path, Retention(), sessions)
        size = max(len(row["body"]) for row in written(tmp_path))
        store = SessionStore(tmp_path / "state", retention=Retention(size_bytes=3 * size))
        assert store.prune() == 3
        store.close()
        assert [row["id"] for row in written(tmp_path)] == [made["id"] for made in sessions[3:]]

    @pytest.mark.parametrize("retention", [Retention(count=0), Retention(age_s=0.0), Retention(size_bytes=0)])
    def test_the_newest_stays(self, tmp_path: Path, retention: Retention) -> None:
        sessions = [session(number) for number in range(3)]
        assert self.keep(tmp_path, retention, sessions, START + timedelta(days=999)) == [sessions[2]["id"]]

    def test_a_running_session_stays(self, tmp_path: Path) -> None:
        store = SessionStore(tmp_path / "state", retention=Retention(count=1), now=START.timestamp)
        running = header(0)
        store.begin(running)
        for number in range(1, 4):
            store.finish(session(number))
        store.close()
        assert [row["status"] for row in written(tmp_path)] == ["running", "ok"]

    def test_the_file_shrinks(self, tmp_path: Path) -> None:
        sessions = [session(number, findings=[{"noise": str(list(range(number * 1000, 30_000)))}]) for number in range(8)]
        self.keep(tmp_path, Retention(count=None), sessions)
        before = (tmp_path / "state" / database.FILE_NAME).stat().st_size
        store = SessionStore(tmp_path / "state", retention=Retention(count=1))
        assert store.prune() == 7
        store.close()
        assert (tmp_path / "state" / database.FILE_NAME).stat().st_size < before / 3

    def test_a_new_limit_holds_from_the_next_session(self, store: SessionStore, tmp_path: Path) -> None:
        for number in range(4):
            store.finish(session(number))
        store.flush()
        store.set_retention(Retention(count=2))
        store.finish(session(4))
        store.flush()
        assert len(written(tmp_path)) == 2
