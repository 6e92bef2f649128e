"""The allocator's snapshots: few, bounded, whole or not at all, and never opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.session.test_store import session
from vram_pilot.errors import StoreError, UsageError
from vram_pilot.session import snapshots
from vram_pilot.session.snapshots import MAX_COUNT, Snapshots
from vram_pilot.session.store import SessionStore

ID = "20260131-120000-ab12cd34"


def ids(count: int) -> list[str]:
    return [f"20260131-1200{number:02}-00000000" for number in range(count)]


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    assert kept.read(ID) is None
    assert not kept.has(ID)
    assert list(tmp_path.iterdir()) == []
    kept.keep(ID, b"one")
    kept.keep(ID, b"two")
    assert kept.read(ID) == b"two"
    assert kept.has(ID)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [f"{ID}.pickle"]
    kept.delete(ID)
    kept.delete(ID)
    assert kept.read(ID) is None


def test_the_newest_few_stay(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    for name in ids(MAX_COUNT + 3):
        kept.keep(name, b"x")
    assert [name for name in ids(MAX_COUNT + 3) if kept.has(name)] == ids(MAX_COUNT + 3)[-MAX_COUNT:]


def test_the_one_just_written_stays_when_the_clock_was_set_back(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    for name in ids(MAX_COUNT):
        kept.keep(name, b"x")
    kept.keep("20200101-000000-00000000", b"now")
    assert kept.read("20200101-000000-00000000") == b"now"
    assert len(list((tmp_path / "snapshots").iterdir())) == MAX_COUNT


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "x", ID + "/..", "sessions"])
def test_only_the_id_of_a_session_names_a_file(name: str, tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    for work in (kept.read, kept.has, kept.delete, lambda text: kept.keep(text, b"x")):
        with pytest.raises(UsageError):
            work(name)
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 10)
    with pytest.raises(StoreError, match="too large"):
        Snapshots(tmp_path).keep(ID, b"x" * 11)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Snapshots(tmp_path)
    kept.keep(ID, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="No space left on device"):
        kept.keep(ID, b"new")
    assert kept.read(ID) == b"old"
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


class TestInTheStore:
    def test_it_is_made_on_the_writers_thread_and_goes_with_its_session(self, tmp_path: Path) -> None:
        store, one = SessionStore(tmp_path), session(0)
        store.finish(one)
        store.keep_snapshot(one["id"], lambda: b"content")
        assert store.flush()
        assert store.snapshots.read(one["id"]) == b"content"
        store.delete(one["id"])
        assert store.snapshots.read(one["id"]) is None
        store.close()

    def test_a_failure_is_told_and_fails_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "snapshots").write_text("in the way")
        store, one = SessionStore(tmp_path), session(0)
        store.keep_snapshot(one["id"], lambda: b"content")
        store.finish(one)
        assert store.flush()
        assert "snapshot cannot be kept" in (store.status_note or "")
        assert store.get(one["id"])["id"] == one["id"]
        store.close()

    def test_one_that_cannot_be_made_fails_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        store, one = SessionStore(tmp_path), session(0)

        def broken() -> bytes:
            raise RuntimeError("no memory")

        store.keep_snapshot(one["id"], broken)
        store.finish(one)
        assert store.flush()
        assert "could not be kept" in caplog.text
        assert store.get(one["id"])["id"] == one["id"]
        store.close()
