"""Raw snapshots of torch's allocator, one file a session, the newest few. Standard library only.

They are pickles, made here for PyTorch's own viewer. Nothing of ours ever loads one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from vram_pilot.errors import StoreError
from vram_pilot.session.ids import validate_id

FOLDER_NAME = "snapshots"
MAX_COUNT = 5
MAX_BYTES = 50 * 2**20


class Snapshots:
    """Any thread, several processes. Nothing is created before the first snapshot. state_dir: where the sessions are, too."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = Path(state_dir) / FOLDER_NAME

    def keep(self, session_id: str, content: bytes) -> None:
        """Writes one, whole or not at all, and forgets the oldest beyond `MAX_COUNT`. Raises UsageError, StoreError."""
        path = self._path(session_id)
        if len(content) > MAX_BYTES:
            raise StoreError("The allocator's snapshot is too large to be kept", found=f"{len(content):,} bytes")
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_bytes(content)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreError(
                f"The allocator's snapshot cannot be kept: {reason}", do="Make room in the data folder."
            ) from error
        self._prune(path)

    def read(self, session_id: str) -> bytes | None:
        """The snapshot of a session, None when there is none. Raises UsageError, StoreError."""
        try:
            return self._path(session_id).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError("The allocator's snapshot cannot be read", found=error.strerror) from error

    def has(self, session_id: str) -> bool:
        return self._path(session_id).is_file()

    def delete(self, session_id: str) -> None:
        """Idempotent, and silent when the file cannot be deleted."""
        with contextlib.suppress(OSError):
            self._path(session_id).unlink(missing_ok=True)

    def _path(self, session_id: str) -> Path:
        return self._folder / f"{validate_id(session_id)}.pickle"

    def _prune(self, newest: Path) -> None:
        """By their names, which begin with the time; the one just written stays, whatever the clock says."""
        others = sorted(path for path in self._folder.glob("*.pickle") if path != newest)
        for path in others[: max(len(others) - (MAX_COUNT - 1), 0)]:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
