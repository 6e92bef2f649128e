"""A client of server-sent events over a plain socket, as a browser's."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Event:
    """name "" is a comment. at: monotonic seconds of its arrival."""

    name: str
    id: str
    data: Any
    at: float


class Listener:
    """Raises TimeoutError when nothing comes for `timeout_s`."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, **headers: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        asked = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, deflate, br"}
        asked.update({name.replace("_", "-"): value for name, value in headers.items()})
        self._connection.request("GET", parts.path + ("?" + parts.query if parts.query else ""), headers=asked)
        self.response = self._connection.getresponse()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def events(self) -> Iterator[Event]:
        """Until the server ends the stream."""
        fields: dict[str, str] = {}
        for line in iter(self.response.readline, b""):
            text = line.decode().rstrip("\n")
            if text.startswith(":"):
                yield Event("", "", text[1:].strip(), time.monotonic())
            elif text:
                name, _, value = text.partition(":")
                fields[name] = value.strip()
            elif "data" in fields:
                yield Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]), time.monotonic())
                fields = {}

    def take(self, count: int, name: str = "record") -> list[Event]:
        """The next `count` events of that name."""
        found: list[Event] = []
        for event in self.events():
            if event.name == name:
                found.append(event)
            if len(found) == count:
                break
        return found
