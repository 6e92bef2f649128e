"""Names of sessions: sortable by time, safe in a URL, not to be guessed. Pure."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

from vram_pilot.errors import UsageError

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


def new_id(now: datetime | None = None) -> str:
    """'20260131-235959-ab12cd34': UTC date and time, and 32 random bits."""
    moment = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return f"{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def validate_id(text: object) -> str:
    """`text`, when it has the form of a session id.

    Raises UsageError for anything else; whether such a session exists is the store's to say.
    """
    if isinstance(text, str) and _ID.fullmatch(text):
        return text
    raise UsageError("This is not the id of a session", found=text, do="Take an id from the list of sessions.")
