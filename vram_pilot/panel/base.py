"""What the panel needs of the application. Everything here may be called from any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from vram_pilot.session.snapshots import Snapshots
from vram_pilot.session.timeline import Timeline

if TYPE_CHECKING:
    from vram_pilot.control import Controller
    from vram_pilot.hosts.base import Host


class SessionStore(Protocol):
    """The sessions that are kept. All calls may block on a disk and run in a worker thread."""

    @property
    def status_note(self) -> str | None:
        """What is wrong with the store and what to do about it, None when all is well."""

    @property
    def snapshots(self) -> Snapshots:
        """The allocator's, where one was kept with a session."""

    def list(self, limit: int, offset: int) -> Sequence[Mapping[str, Any]]:
        """Summaries, newest first."""

    def get(self, session_id: str) -> Mapping[str, Any]:
        """One session as JSON. Raises UsageError for what is no id, NotFoundError."""

    def delete(self, session_id: str) -> None:
        """Forgets one session. Raises UsageError, NotFoundError, RefusedError while it is being recorded."""


class PanelApp(Protocol):
    """The application as the panel sees it. When `off` is true nothing else of it is touched."""

    off: bool
    controller: Controller
    timeline: Timeline
    host: Host

    @property
    def store(self) -> SessionStore: ...

    def watching(self, memory_map: bool = False) -> AbstractContextManager[None]:
        """The instruments are read while the block runs, and a little after. memory_map: columns of it are taken too."""

    def telemetry_state(self) -> dict[str, Any] | None:
        """What the instruments are, and why something of them is missing; None when there are none."""

    def remote_control_allowed(self) -> bool:
        """Whether a caller may change what holds for everybody: the standing mode, deletions."""
