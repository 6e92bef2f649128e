"""Reading a request: its body, its numbers, and whether it comes from our own page or from a program."""

from __future__ import annotations

import ipaddress
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from vram_pilot.errors import UsageError
from vram_pilot.panel.errors import ContentTypeError, ForbiddenError, TooLargeError

#: No request of ours is longer.
MAX_BODY_BYTES = 64 * 1024
#: A header that another site's page cannot send without being asked first.
OWN_HEADER = "x-vram-pilot"


async def read_json(request: Request) -> dict[str, Any]:
    """The body as an object. Raises TooLargeError or UsageError."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(
                "The request is too large", found=f"more than {MAX_BODY_BYTES} bytes", do='Send for example {"mode": "full"}.'
            )
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "The body is not valid JSON", found=body[:80].decode("utf-8", "replace"), do="Send a JSON object."
        ) from error
    if not isinstance(content, dict):
        raise UsageError("The body must be a JSON object", found=content, do='Send for example {"mode": "full"}.')
    return content


def whole_number(request: Request, name: str, default: int, maximum: int) -> int:
    """The query's `name` as a number from 0 to `maximum`. Raises UsageError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= maximum:
        return int(text)
    raise UsageError(f"{name} has a value that is not allowed", found=text, do=f"Use a whole number from 0 to {maximum}.")


def check_own_request(request: Request, allowed_hosts: tuple[str, ...]) -> None:
    """Lets a request that changes something through when no other site's page can have sent it.

    Raises ContentTypeError or ForbiddenError.
    """
    _check_type(request)
    host = request.headers.get("host", "")
    if not _is_own_name(_host_name(host), allowed_hosts):
        raise ForbiddenError(
            "This server does not know itself by this name",
            found=host,
            do="Use its address (for example 127.0.0.1), or start the host with --vram-pilot-allow-remote-control.",
        )
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site") or (origin is not None and _authority(origin) != host.lower()):
        raise ForbiddenError(
            "The request comes from another site's page",
            found=origin or site,
            do="Use this server's own page. A reverse proxy must pass the Host header on unchanged.",
        )


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or (request.method == "DELETE" and OWN_HEADER in request.headers):
        return
    raise ContentTypeError("The request is not sent as JSON", found=kind, do="Send the header Content-Type: application/json.")


def _authority(origin: str) -> str | None:
    """host[:port] of an Origin header as a Host header would give it; None for "null" and the like."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _host_name(host: str) -> str:
    """The name in a Host header, without its port and an IPv6 address's brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_own_name(name: str, allowed: tuple[str, ...]) -> bool:
    """An address cannot be rebound to another one; a name can, so only those that are ours count."""
    if "*" in allowed or name in allowed:
        return True
    own = socket.gethostname().lower()
    if name in ("localhost", own, own.partition(".")[0] + ".local") or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
