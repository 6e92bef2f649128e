"""What keeps the store in order: the retention, and the sessions that dead processes left running. Standard library only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from vram_pilot.errors import StoreError
from vram_pilot.session import rows
from vram_pilot.session.owner import Processes

#: A running session of another machine, of which nothing can be known, counts as aborted after a day.
_FOREIGN_AFTER_S = 86_400.0


@dataclass(frozen=True)
class Retention:
    """What is kept; None is no limit. size_bytes: of the compressed sessions together. The newest session always stays."""

    count: int | None = 500
    age_s: float | None = None
    size_bytes: int | None = None


def prune(opened: sqlite3.Connection, keep: Retention, now: float) -> int:
    """Walks from the newest to the oldest and deletes what a limit excludes. Running sessions are not counted.

    now: seconds since 1970. The answer is how many are gone.
    """
    total, gone = 0, []
    columns = "seq, started_unix, length(body) AS size"
    found = opened.execute(f"SELECT {columns} FROM sessions WHERE status != 'running' ORDER BY seq DESC").fetchall()
    for place, row in enumerate(found):
        total += row["size"]
        too_many = keep.count is not None and place >= keep.count
        too_old = keep.age_s is not None and now - row["started_unix"] > keep.age_s
        too_big = keep.size_bytes is not None and total > keep.size_bytes
        if place > 0 and (too_many or too_old or too_big):
            gone.append((row["seq"],))
    opened.executemany("DELETE FROM sessions WHERE seq = ?", gone)
    for _ in range(opened.execute("PRAGMA freelist_count").fetchone()[0] if gone else 0):
        opened.execute("PRAGMA incremental_vacuum")  # Python's sqlite3 lets it do one page a call
    return len(gone)


def dead(opened: sqlite3.Connection, processes: Processes, now: float) -> list[str]:
    """The ids of running sessions whose process is no more."""
    columns = "id, started_unix, owner_machine, owner_boot, owner_pid, owner_started"
    running = opened.execute(f"SELECT {columns} FROM sessions WHERE status = 'running'").fetchall()
    return [row["id"] for row in running if _is_dead(row, processes, now)]


def abort_dead(opened: sqlite3.Connection, processes: Processes, now: float) -> None:
    """Marks them as aborted. A process that was given up by mistake puts its session right when it finishes."""
    for session_id in dead(opened, processes, now):
        try:
            session = rows.decode(session_id, rows.body(opened, session_id) or b"")
            rows.upsert(opened, {**session, "status": "aborted"}, None)
        except StoreError:  # its body is damaged: what the list shows is all there is
            opened.execute("UPDATE sessions SET status = 'aborted', owner_pid = NULL WHERE id = ?", (session_id,))


def _is_dead(row: sqlite3.Row, processes: Processes, now: float) -> bool:
    owner = rows.owner_of(row)
    verdict = True if owner is None else processes.is_dead(owner)
    return now - row["started_unix"] > _FOREIGN_AFTER_S if verdict is None else verdict
