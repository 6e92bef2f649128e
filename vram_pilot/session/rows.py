"""A session as a row of the store: the columns that a list shows, and the whole as compressed JSON. Standard library only."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from vram_pilot.errors import StoreError
from vram_pilot.session.owner import Owner

_REQUEST = ("width", "height", "batch_size", "n_iter", "steps", "sampler")
_SUMMARY = (
    "duration_s",
    "image_count",
    "steps_per_s",
    "images_per_s",
    "step_p50_s",
    "step_p95_s",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
)
#: What a list shows of a session, in this order.
LISTED = ("id", "started_at", "status", "host", "family", "model", "mode", *_REQUEST, *_SUMMARY)
_OWNER = ("owner_machine", "owner_boot", "owner_pid", "owner_started")
_WRITTEN = (*LISTED, "started_unix", *_OWNER, "body")

_UPSERT = (
    f"INSERT INTO sessions ({', '.join(_WRITTEN)}) VALUES ({', '.join('?' * len(_WRITTEN))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _WRITTEN[1:])}"
)


def listed(session: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of one session, as a list shows it."""
    host, model = session.get("host") or {}, session.get("model") or {}
    request, summary = session.get("request") or {}, session.get("summary") or {}
    return {
        "id": session["id"],
        "started_at": session["started_at"],
        "status": session["status"],
        "host": host.get("name"),
        "family": model.get("family"),
        "model": model.get("name"),
        "mode": mode_text((session.get("mode") or {}).get("effective")),
        **{name: _scalar(request.get(name)) for name in _REQUEST},
        **{name: _scalar(summary.get(name)) for name in _SUMMARY},
    }


def mode_text(mode: Mapping[str, Any] | None) -> str | None:
    """A mode object as one reads it: "lowvram, budget 512 MiB"."""
    if not mode or not mode.get("mode"):
        return None
    parts = [str(mode["mode"])]
    if mode.get("budget_mib") is not None:
        parts.append(f"budget {mode['budget_mib']} MiB")
    if mode.get("accelerate") not in (None, "off"):
        parts.append(str(mode["accelerate"]))
    return ", ".join(parts)


def _scalar(value: object) -> object:
    """`value` where a column can hold it, else None."""
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    return value if isinstance(value, (float, str)) else None


def select(opened: sqlite3.Connection, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` summaries. In the order of recording: a clock that is set back does not shuffle them."""
    columns = ", ".join(LISTED)
    return [dict(row) for row in opened.execute(f"SELECT {columns} FROM sessions ORDER BY seq DESC LIMIT ?", (limit,))]


def body(opened: sqlite3.Connection, session_id: str) -> bytes | None:
    """What `decode` reads; None when there is no such session."""
    row = opened.execute("SELECT body FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return None if row is None else bytes(row["body"])


def delete(opened: sqlite3.Connection, session_id: str) -> None:
    opened.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


def restore(opened: sqlite3.Connection, session_id: str, packed: bytes) -> bool:
    """Writes a row saved from a damaged file; False when its body is damaged too."""
    try:
        upsert(opened, decode(session_id, packed), None)
        return True
    except (StoreError, KeyError, TypeError, AttributeError):
        return False


def upsert(opened: sqlite3.Connection, session: Mapping[str, Any], owner: Owner | None) -> None:
    """Writes the session's row, over one with the same id. owner: who records it, None when nobody does any more."""
    row: dict[str, Any] = {
        **listed(session),
        "started_unix": unix_time(session["started_at"]),
        "owner_machine": owner and owner.machine,
        "owner_boot": owner and owner.boot,
        "owner_pid": owner and owner.pid,
        "owner_started": owner and owner.started,
        "body": encode(session),
    }
    opened.execute(_UPSERT, [row[name] for name in _WRITTEN])


def encode(session: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(session, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())


def decode(session_id: str, body: bytes) -> dict[str, Any]:
    """Raises StoreError when the bytes are not what was written."""
    try:
        session = json.loads(zlib.decompress(body))
        if session["id"] == session_id:
            return dict(session)
    except (zlib.error, ValueError, TypeError, KeyError):
        pass
    raise StoreError("This session's record is damaged", found=session_id, do="Delete it; the others are not affected.")


def unix_time(started_at: str) -> float:
    """Seconds since 1970 of an ISO 8601 time; now, when it is none."""
    try:
        return datetime.fromisoformat(started_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time()


def owner_of(row: sqlite3.Row) -> Owner | None:
    if row["owner_pid"] is None:
        return None
    return Owner(row["owner_machine"], row["owner_boot"], row["owner_pid"], row["owner_started"])
