"""The host's own login, obeyed by every route: the page's cookie or the API's Basic credentials."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from starlette.requests import Request

from vram_pilot.panel.errors import LoginNeededError

COOKIES = ("access-token", "access-token-unsecure")


@dataclass(frozen=True)
class Auth:
    """How the host guards itself.

    gradio_app: gives the host's gradio application, None as long as (or when) there is none.
    api_credentials: user to password of the host's API, None when the API needs none.
    gradio_auth_enabled: the host's page needs a login.
    allowed_hosts: further names that this server may be called by in requests that change something; "*" for any.
    """

    gradio_app: Callable[[], Any]
    api_credentials: Mapping[str, str] | None = None
    gradio_auth_enabled: bool = False
    allowed_hosts: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return self.gradio_auth_enabled or bool(self.api_credentials)

    def check(self, request: Request) -> None:
        """Returns when the caller has passed the host's login or none is needed. Raises LoginNeededError."""
        if not self.needed or self._has_cookie(request) or self._has_credentials(request):
            return
        ways = []
        if self.gradio_auth_enabled:
            ways.append("Log in on the page")
        if self.api_credentials:
            ways.append(("or send" if ways else "Send") + " the API's user and password as Basic credentials")
        # with a login page there must be no challenge, or the browser would open its own prompt over it
        challenge = None if self.gradio_auth_enabled else 'Basic realm="VRAM Pilot"'
        raise LoginNeededError("A login is needed here", do=", ".join(ways) + ".", challenge=challenge)

    def server_is_stopping(self) -> bool:
        """Whether the host's own server waits for its connections to end."""
        blocks = getattr(self.gradio_app(), "blocks", None)
        return bool(getattr(getattr(blocks, "server", None), "should_exit", False))

    def _has_cookie(self, request: Request) -> bool:
        app = self.gradio_app() if self.gradio_auth_enabled else None
        if app is None:
            return False
        dependency = getattr(app, "auth_dependency", None)  # gradio 4: the program around gradio knows its users
        if dependency is not None:
            return dependency(request) is not None
        suffix = f"-{app.cookie_id}" if hasattr(app, "cookie_id") else ""
        shown = next((value for value in (request.cookies.get(name + suffix) for name in COOKIES) if value), None)
        return shown is not None and _any_equal(shown, list(app.tokens))

    def _has_credentials(self, request: Request) -> bool:
        shown = _basic(request.headers.get("authorization", ""))
        pairs = [f"{user}:{password}" for user, password in (self.api_credentials or {}).items()]
        return shown is not None and _any_equal(shown, pairs)


def _basic(header: str) -> str | None:
    """ "user:password" of an Authorization header, None when it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def _any_equal(shown: str, known: list[str]) -> bool:
    """Whether `shown` is one of `known`, in a time that depends on neither."""
    found = False
    for secret in known:
        found |= compare_digest(shown.encode(), str(secret).encode())
    return found
