"""Every error that VRAM Pilot raises on purpose.

VramPilotError
├── UsageError          the caller's input is wrong            CLI exit 2, HTTP 400
│   └── NotFoundError   no such session, job, engine           CLI exit 2, HTTP 404
├── RefusedError        right words, but not possible here now CLI exit 2, HTTP 409
├── ActivationError     a mode could not be entered; the mode before it is in force again
├── HostError           the host program is not as this version of VRAM Pilot knows it
└── StoreError          the session store cannot be read or written

Each says what failed, what was found, and what to do about it.
"""

from __future__ import annotations


class VramPilotError(Exception):
    """Base of all errors of this package.

    what: one clause, no full stop. found: the offending value or state, None when there is none to show.
    do: one sentence of advice, None when nothing can be done.
    """

    exit_status = 1
    http_status = 500

    def __init__(self, what: str, *, found: object = None, do: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.found = found
        self.do = do

    def __str__(self) -> str:
        found = "" if self.found is None else f" (found {_shown(self.found)})"
        advice = "" if self.do is None else f" {self.do}"
        return f"{self.what}{found}.{advice}"

    def to_json(self) -> dict[str, object]:
        """A mapping for HTTP answers: error (class name), message, found, do."""
        return {
            "error": type(self).__name__,
            "message": str(self),
            "found": None if self.found is None else _shown(self.found),
            "do": self.do,
        }


class UsageError(VramPilotError):
    """The input is wrong; nothing was changed."""

    exit_status = 2
    http_status = 400


class NotFoundError(UsageError):
    """The named thing does not exist."""

    http_status = 404


class RefusedError(VramPilotError):
    """The request is well formed but cannot be met by this host, model or machine now; nothing was changed."""

    exit_status = 2
    http_status = 409


class ActivationError(VramPilotError):
    """Entering a mode failed; the mode that was in force before is in force again."""


class HostError(VramPilotError):
    """The host program lacks something that its adapter relies on."""


class StoreError(VramPilotError):
    """The session store failed; generation goes on without it."""

    http_status = 503


def _shown(value: object) -> str:
    """The value as text of at most 120 characters, for an error message."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
