"""Errors that only an HTTP caller can meet.

UsageError
├── LoginNeededError   the host's login was not passed            HTTP 401
├── ForbiddenError     not allowed for this caller                HTTP 403
├── MethodError        the address is right, the method is not    HTTP 405
├── TooLargeError      the body is larger than any request of ours HTTP 413
├── ContentTypeError   not sent as JSON                           HTTP 415
└── BusyError          all streams are taken                      HTTP 429
"""

from __future__ import annotations

from vram_pilot.errors import UsageError


class LoginNeededError(UsageError):
    """challenge: the WWW-Authenticate header to answer with, None where a page does the login."""

    http_status = 401

    def __init__(self, what: str, *, do: str, challenge: str | None) -> None:
        super().__init__(what, do=do)
        self.challenge = challenge


class ForbiddenError(UsageError):
    """The caller is known, or need not be, and still may not do this."""

    http_status = 403


class MethodError(UsageError):
    """No such method at this address."""

    http_status = 405


class TooLargeError(UsageError):
    """Nothing that is sent here needs that much."""

    http_status = 413


class ContentTypeError(UsageError):
    """A form of another site could send this type; JSON it could not."""

    http_status = 415


class BusyError(UsageError):
    """Too many at once; the polling form still answers."""

    http_status = 429
