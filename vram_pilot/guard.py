"""Remembers on disk that a mode is being entered, so that a start after a crash in there can do without it. Standard library
only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vram_pilot.session.owner import Owner, Processes

log = logging.getLogger(__name__)


class ActivationGuard:
    """One marker file for each process, in the state folder, with who wrote it. A folder that cannot be written costs the
    protection, never the activation."""

    def __init__(self, state_dir: Path, processes: Processes | None = None) -> None:
        self._marker = state_dir / f"entering-{os.getpid()}.json"
        self._folder = state_dir
        self._processes = processes or Processes()

    @contextlib.contextmanager
    def entering(self, mode: str) -> Iterator[None]:
        """Marks `mode` as being entered while the block runs. The marker survives only when the process dies inside."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._marker.with_suffix(".tmp")
            draft.write_text(json.dumps({"mode": mode, "owner": asdict(self._processes.this())}), encoding="utf-8")
            draft.replace(self._marker)  # another process never reads half of it
        except OSError as error:
            log.debug("VRAM Pilot: no crash protection, %s", error)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._marker.unlink()

    def crashed_in(self) -> str | None:
        """The mode that a dead process was entering, None when none was."""
        return next((mode for mode in map(self._crash, self._markers()) if mode is not None), None)

    def clear(self) -> None:
        """Forgets every crash of a dead process. What another process is entering right now stays marked."""
        for marker in self._markers():
            if self._crash(marker) is not None:
                with contextlib.suppress(OSError):
                    marker.unlink()

    def _markers(self) -> list[Path]:
        try:
            return sorted(self._folder.glob("entering-*.json")) if self._folder.is_dir() else []
        except OSError:
            return []

    def _crash(self, marker: Path) -> str | None:
        """The mode whose entering ended with its process, None while that process lives, be it this one. What cannot be told
        counts as a crash: a damaged marker, or one of another machine, since a container comes back as another one."""
        try:
            found: Any = json.loads(marker.read_text(encoding="utf-8"))
            mode, owner = str(found["mode"]), Owner(**{**found["owner"], "pid": int(found["owner"]["pid"])})
            dead = self._processes.is_dead(owner)
        except FileNotFoundError:  # its process has just come through
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return "a mode"
        return None if dead is False else mode
