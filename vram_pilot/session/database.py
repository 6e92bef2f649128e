"""The file that sessions are kept in: how it is opened, brought up to date, and replaced when it is damaged.

A connection lives for one piece of work. Jobs are seconds apart and opening costs a millisecond; in return no process holds on
to a file that another one has moved away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from vram_pilot.errors import StoreError

log = logging.getLogger(__name__)

FILE_NAME = "sessions.sqlite3"
_SIDE_FILES = ("-wal", "-shm", "-journal")

#: Each entry brings the file from one schema version (PRAGMA user_version) to the next. Only ever add at the end.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            started_at TEXT NOT NULL,
            started_unix REAL NOT NULL,
            status TEXT NOT NULL,
            host TEXT, family TEXT, model TEXT,
            width INTEGER, height INTEGER, batch_size INTEGER, n_iter INTEGER, steps INTEGER, sampler TEXT,
            mode TEXT,
            duration_s REAL, image_count INTEGER,
            steps_per_s REAL, images_per_s REAL, step_p50_s REAL, step_p95_s REAL,
            peak_allocated_bytes INTEGER, peak_reserved_bytes INTEGER,
            owner_machine TEXT, owner_boot TEXT, owner_pid INTEGER, owner_started TEXT,
            body BLOB NOT NULL
        )
        """,
        "CREATE INDEX sessions_status ON sessions (status)",
    ),
)

_DAMAGE = ("malformed", "not a database", "unsupported file format")
#: Words in a message of SQLite's or the system's, what they mean, and what to do about it.
_FAULTS = (
    (
        ("locked", "busy"),
        "The session store is held by another program",
        "Close what has it open; new sessions wait in memory until then.",
    ),
    (
        ("full", "no space", "too large", "quota"),
        "There is no room for the session store",
        "Free space in the data folder, or delete sessions.",
    ),
    (
        ("readonly", "read-only", "permission", "unable to open", "not a directory", "file exists"),
        "The session store cannot be written",
        "Allow writing to the data folder, or name another one.",
    ),
    (
        ("no such",),
        "The file in the data folder is not a session store",
        f"Move {FILE_NAME} away, or name another folder.",
    ),
)


class DamagedError(StoreError):
    """The file is no store of ours any more. Kept within session/: the store moves the file aside and begins a new one."""


@contextlib.contextmanager
def connection(path: Path, *, timeout_s: float, journal: str | None) -> Iterator[sqlite3.Connection]:
    """A connection to an up-to-date store; what the block does is one transaction.

    journal: "WAL" or "DELETE" to write, creating the file; None to read only, which must find it.
    Raises StoreError that says what to do; DamagedError when the file itself is at fault.
    """
    try:
        with contextlib.closing(_connect(path, timeout_s, journal)) as opened:
            _migrate(opened)
            opened.execute("BEGIN" if journal is None else "BEGIN IMMEDIATE")
            yield opened
            opened.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise store_error(error) from error


def move_aside(path: Path) -> Path | None:
    """Renames a damaged file and what belongs to it; the answer is its new path. None when another process has done so."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}-{os.getpid()}{path.suffix}")
    try:
        os.replace(path, aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_error(error) from error
    for ending in _SIDE_FILES:
        with contextlib.suppress(OSError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    return aside


def is_sound(path: Path) -> bool:
    """Whether SQLite finds no damage; a file that is gone or held by somebody is none to move away either."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=1)) as opened:
            return bool(opened.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.Error as error:
        return not isinstance(store_error(error), DamagedError)


def salvage(path: Path) -> list[tuple[str, bytes]]:
    """(id, body) of every row of a damaged file that can still be read, oldest first: from both ends towards the damage."""
    rows: dict[int, tuple[str, bytes]] = {}
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.Error, OSError):
            with contextlib.closing(sqlite3.connect(path, timeout=1)) as opened:
                for seq, session_id, body in opened.execute(f"SELECT seq, id, body FROM sessions ORDER BY seq {order}"):
                    rows[seq] = (session_id, body)
    return [rows[seq] for seq in sorted(rows)]


def store_error(error: Exception) -> StoreError:
    """What went wrong, in words that say what to do. SQLite's own codes are not to be had before Python 3.11."""
    text = str(error).lower()
    if any(word in text for word in _DAMAGE):
        return DamagedError("The session store is damaged", found=str(error), do="It is moved aside and a new one is begun.")
    for words, what, do in _FAULTS:
        if any(word in text for word in words):
            return StoreError(what, found=_reason(error), do=do)
    return StoreError("The session store cannot be used", found=_reason(error), do="Check the disk that the data folder is on.")


def _reason(error: Exception) -> str:
    """Without the folder that an OSError names: this text may reach a page."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def _connect(path: Path, timeout_s: float, journal: str | None) -> sqlite3.Connection:
    if journal is None:
        return _connect_to_read(path, timeout_s)
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = _opened(path.absolute().as_uri(), timeout_s)
    try:
        if opened.execute("PRAGMA user_version").fetchone()[0] == 0:
            opened.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the first table
        if opened.execute("PRAGMA journal_mode").fetchone()[0].upper() != journal:
            opened.execute(f"PRAGMA journal_mode = {journal}")
        opened.execute("PRAGMA synchronous = FULL")
    except BaseException:
        opened.close()
        raise
    return opened


def _connect_to_read(path: Path, timeout_s: float) -> sqlite3.Connection:
    """On a folder that cannot be written, a store that nobody is writing to is read as it lies."""
    opened = _opened(f"{path.absolute().as_uri()}?mode=rw", timeout_s)
    try:
        opened.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return opened
    except sqlite3.OperationalError as error:
        opened.close()
        log_file = Path(f"{path}-wal")
        if "locked" in str(error) or not path.is_file() or (log_file.exists() and log_file.stat().st_size > 0):
            raise
    return _opened(f"{path.absolute().as_uri()}?immutable=1", timeout_s)


def _opened(uri: str, timeout_s: float) -> sqlite3.Connection:
    opened = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
    opened.row_factory = sqlite3.Row
    return opened


def _migrate(opened: sqlite3.Connection) -> None:
    """Brings the schema up to this version's. A file of a newer version is left alone."""
    if _version(opened) == len(MIGRATIONS):
        return
    opened.execute("BEGIN IMMEDIATE")  # another process may be at it too
    try:
        for number in range(_version(opened), len(MIGRATIONS)):
            for statement in MIGRATIONS[number]:
                opened.execute(statement)
            opened.execute(f"PRAGMA user_version = {number + 1}")
        opened.execute("COMMIT")
    except BaseException:
        if opened.in_transaction:  # SQLite ends it by itself where there is no room
            opened.execute("ROLLBACK")
        raise


def _version(opened: sqlite3.Connection) -> int:
    version = int(opened.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise StoreError(
            "The session store was written by a newer version of VRAM Pilot",
            found=f"schema {version}, this version knows {len(MIGRATIONS)}",
            do="Update VRAM Pilot, or name another data folder. Nothing in it was changed.",
        )
    return version
