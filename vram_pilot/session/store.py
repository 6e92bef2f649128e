"""The sessions that are kept, in one SQLite file in the state folder. Standard library only.

Several processes may use one folder. Each has one writer thread; whoever finishes a job hands the session over and goes on.
What cannot be written stays in memory, is listed all the same, and is written as soon as that works again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from vram_pilot.errors import NotFoundError, RefusedError, StoreError
from vram_pilot.session import database, rows, upkeep
from vram_pilot.session.ids import validate_id
from vram_pilot.session.netfs import is_network_folder
from vram_pilot.session.owner import Processes
from vram_pilot.session.snapshots import Snapshots
from vram_pilot.session.upkeep import Retention

__all__ = ["Retention", "SessionStore"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Session = dict[str, Any]
Summaries = list[dict[str, Any]]

#: Sessions that wait in memory while the store cannot be written, and while the writer is merely behind.
KEPT_UNWRITTEN = 20
QUEUED = 200
_WAIT_S = 30.0


class SessionStore:
    """Any thread may call anything. Nothing is opened, created or started before the first call that needs it."""

    def __init__(
        self,
        folder: Path,
        *,
        retention: Retention | None = None,
        processes: Processes | None = None,
        busy_timeout_s: float = 5.0,
        now: Callable[[], float] = time.time,
        is_network: Callable[[Path], bool] = is_network_folder,
    ) -> None:
        self.snapshots = Snapshots(folder)
        self._path = Path(folder) / database.FILE_NAME
        self._processes = processes or Processes()
        self._busy_timeout_s = busy_timeout_s
        self._now = now
        self._is_network = is_network
        self._repairing = threading.Lock()
        self._lock = threading.Lock()  # guards what follows, never held while a disk is waited for
        self._retention = retention or Retention()
        self._unwritten: dict[str, Session] = {}
        self._fault: str | None = None
        self._notes: list[str] = []
        self._logged: set[str] = set()
        self._journal: str | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._closed = False

    # ------------------------------------------------------------------------------------------------ recording

    def begin(self, header: Session) -> None:
        """Notes a session as running. Returns at once and never raises for a disk."""
        self._hand_over(header)

    def finish(self, session: Session) -> None:
        """Keeps a finished session. Returns at once and never raises for a disk; `status_note` tells of failures."""
        self._hand_over(session)

    def keep_snapshot(self, session_id: str, make: Callable[[], bytes]) -> None:
        """Keeps the allocator's snapshot that `make` gives, which the writer's thread calls. Returns at once, never raises."""
        self._submit(lambda: self._keep_snapshot(session_id, make))

    def set_retention(self, retention: Retention) -> None:
        """Holds from the next session that is written."""
        with self._lock:
            self._retention = retention

    # ------------------------------------------------------------------------------------------------ reading

    def list(self, limit: int = 100, offset: int = 0) -> Summaries:
        """Summaries (see rows.LISTED), newest first. Raises StoreError when nothing at all can be read."""
        memory = self._in_memory()
        start, stop = max(offset, 0), max(offset, 0) + max(limit, 0)
        waiting = [rows.listed(session) for session in reversed(memory.values())]
        try:
            self._abort_dead()
            stored = self._read(lambda opened: rows.select(opened, stop + len(memory))) or []
        except StoreError as error:
            self._note_fault(error)
            if not memory:
                raise
            return waiting[start:stop]
        if not memory:
            self._clear_fault()
        return (waiting + [row for row in stored if row["id"] not in memory])[start:stop]

    def get(self, session_id: str) -> Session:
        """The whole session. Raises UsageError for what is no id, NotFoundError, StoreError."""
        validate_id(session_id)
        waiting = self._in_memory().get(session_id)
        if waiting is not None:
            return waiting
        self._abort_dead()
        body = self._read(lambda opened: rows.body(opened, session_id))
        if body is None:
            raise NotFoundError("There is no such session", found=session_id, do="List the sessions to see which there are.")
        return rows.decode(session_id, body)

    @property
    def status_note(self) -> str | None:
        """What is wrong with the store and what to do about it, None when all is well."""
        with self._lock:
            parts = [*self._notes, *([self._fault] if self._fault else [])]
        return " ".join(parts) or None

    # ------------------------------------------------------------------------------------------------ deleting

    def delete(self, session_id: str) -> None:
        """Forgets one session. Raises UsageError, NotFoundError, RefusedError while it is being recorded, StoreError."""
        if self._is_running(session_id):
            raise RefusedError("This session is still being recorded", found=session_id, do="Delete it when its job has ended.")
        with self._lock:
            self._unwritten.pop(session_id, None)
        self._in_writer(lambda opened: rows.delete(opened, session_id))
        self.snapshots.delete(session_id)

    def prune(self) -> int:
        """Deletes what the retention does not keep; the answer is how many. Raises StoreError."""
        return self._in_writer(self._prune) or 0

    # ------------------------------------------------------------------------------------------------ the thread's life

    def flush(self, timeout_s: float = _WAIT_S) -> bool:
        """Waits until what was handed over has been written or has failed; False when that takes longer."""
        task = self._submit(lambda: None)
        try:
            if task is not None:
                task.result(timeout_s)
            return True
        except FutureTimeoutError:
            return False

    def close(self) -> None:
        """Writes what waits and ends the thread. Idempotent; what comes later stays in memory."""
        if self._in_memory():
            self._submit(self._write_waiting)
        with self._lock:
            self._closed, writer, self._writer = True, self._writer, None
        if writer is not None:
            writer.shutdown(wait=True)

    # ------------------------------------------------------------------------------------------------ writing

    def _hand_over(self, session: Session) -> None:
        validate_id(session["id"])
        with self._lock:
            self._unwritten.pop(session["id"], None)
            self._unwritten[session["id"]] = session
            self._drop_oldest(QUEUED)
        self._submit(self._write_waiting)

    def _submit(self, work: Callable[[], T]) -> Future[T] | None:
        """Runs `work` on the writer thread; None when the store is closed."""
        with self._lock:
            if self._closed:
                return None
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, thread_name_prefix="vram-pilot-store")
            return self._writer.submit(work)

    def _write_waiting(self) -> None:
        """Writes every session that waits, each whole or not at all."""
        for session in self._in_memory().values():
            try:
                self._write(lambda opened, session=session: self._save(opened, session))  # type: ignore[misc]
            except StoreError as error:
                self._note_fault(error)
                with self._lock:
                    self._drop_oldest(KEPT_UNWRITTEN)
                return
            except Exception:  # one session that cannot be written must not keep the others from it
                log.exception("VRAM Pilot: session %s could not be kept", session["id"])
            self._clear_fault()
            with self._lock:
                if self._unwritten.get(session["id"]) is session:
                    del self._unwritten[session["id"]]

    def _keep_snapshot(self, session_id: str, make: Callable[[], bytes]) -> None:
        try:
            self.snapshots.keep(session_id, make())
        except StoreError as error:
            self._add_note(str(error))
        except Exception:
            log.exception("VRAM Pilot: the allocator's snapshot of session %s could not be kept", session_id)

    def _save(self, opened: sqlite3.Connection, session: Session) -> None:
        running = session["status"] == "running"
        rows.upsert(opened, session, self._processes.this() if running else None)
        upkeep.abort_dead(opened, self._processes, self._now())
        if not running:
            self._prune(opened)

    def _prune(self, opened: sqlite3.Connection) -> int:
        with self._lock:
            keep = self._retention
        return upkeep.prune(opened, keep, self._now())

    def _drop_oldest(self, kept: int) -> None:
        while len(self._unwritten) > kept:
            del self._unwritten[next(iter(self._unwritten))]

    def _abort_dead(self) -> None:
        """Marks what dead processes left running. On a folder that cannot be written, nothing is marked."""
        try:
            if self._read(lambda opened: upkeep.dead(opened, self._processes, self._now())):
                self._write(lambda opened: upkeep.abort_dead(opened, self._processes, self._now()))
        except StoreError as error:
            log.debug("VRAM Pilot: running sessions could not be checked: %s", error)

    def _is_running(self, session_id: str) -> bool:
        """Raises UsageError and NotFoundError. A session whose record is damaged is none that runs."""
        try:
            return bool(self.get(session_id)["status"] == "running")
        except NotFoundError:
            raise
        except StoreError:
            return False

    # ------------------------------------------------------------------------------------------------ the file

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """`work` on the store as it is; None when there is none yet: reading creates nothing."""
        return self._work(work, None) if self._path.is_file() else None

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._work(work, self._journal_mode())

    def _in_writer(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """`work` behind everything that was handed over before; None when there is no file then."""
        task = self._submit(lambda: self._write(work) if self._path.is_file() else None)
        if task is None:
            raise StoreError("The session store is closed", do="Start the program again.")
        try:
            return task.result(_WAIT_S)
        except FutureTimeoutError as error:
            raise StoreError("The session store does not answer", do="Check the disk that the data folder is on.") from error

    def _work(self, work: Callable[[sqlite3.Connection], T], journal: str | None) -> T:
        """Once more on a new file when the one there is damaged."""
        try:
            with self._open(journal) as opened:
                return work(opened)
        except database.DamagedError:
            self._replace_damaged()
        with self._open(journal or self._journal_mode()) as opened:
            return work(opened)

    def _open(self, journal: str | None) -> AbstractContextManager[sqlite3.Connection]:
        return database.connection(self._path, timeout_s=self._busy_timeout_s, journal=journal)

    def _replace_damaged(self) -> None:
        """Begins a new file with what can be read of the old one, unless another thread or process has done so."""
        with self._repairing:
            aside = None if database.is_sound(self._path) else database.move_aside(self._path)
            if aside is None:
                return
            with self._open(self._journal_mode()) as opened:
                saved = sum(rows.restore(opened, *row) for row in database.salvage(aside))
        self._add_note(f"The session store was damaged: it is kept as {aside.name}, and {saved} sessions were saved from it.")

    def _journal_mode(self) -> str:
        if self._journal is None:
            network = self._is_network(self._path.parent)
            self._journal = "DELETE" if network else "WAL"
            if network:
                self._add_note("The data folder is on a network file system: the slower, safe journal is used.")
        return self._journal

    # ------------------------------------------------------------------------------------------------ what is said

    def _in_memory(self) -> dict[str, Session]:
        with self._lock:
            return dict(self._unwritten)

    def _clear_fault(self) -> None:
        with self._lock:
            self._fault = None

    def _note_fault(self, error: StoreError) -> None:
        with self._lock:
            self._fault = str(error)
        self._log_once(str(error))

    def _add_note(self, text: str) -> None:
        with self._lock:
            self._notes = [*self._notes, text][-5:]
        self._log_once(text)

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.warning("VRAM Pilot: %s", text)
