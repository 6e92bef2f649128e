"""The timeline as server-sent events, and in the plain form that a page polls.

One thread watches the timeline for all streams: a stream holds none of the host's worker threads, in which it generates.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from vram_pilot.panel.errors import BusyError
from vram_pilot.panel.running import NewestJob
from vram_pilot.session.plain import plain
from vram_pilot.session.records import MapColumn, to_json
from vram_pilot.session.timeline import Slice, Timeline

#: A proxy or a compressing middleware must pass each event on at once, and nothing may keep one.
HEADERS = {"Content-Encoding": "identity", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
HEARTBEAT_S = 10.0
MAX_STREAMS = 16
#: Records in one write, and in one polled answer.
BATCH = 500
#: How soon a stream notices that its server is stopping.
TICK_S = 0.25
#: Between two writes: waking a stream for each of forty steps a second took six percent of a generation's speed.
GATHER_S = 0.2


class Subscription:
    """One stream's place. `wait` belongs to its event loop, `wake` to any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed: the stream is gone
            self._loop.call_soon_threadsafe(self._news.set)

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_s)
        self._news.clear()


class Hub:
    """Wakes every stream when the timeline grows or the server stops. Its thread lives while there is a stream."""

    def __init__(
        self,
        timeline: Timeline,
        stopping: Callable[[], bool],
        limit: int = MAX_STREAMS,
        watching: Callable[[bool], AbstractContextManager[None]] = lambda memory_map: contextlib.nullcontext(),
    ) -> None:
        self.timeline = timeline
        #: Cursors of another one mean nothing here: the process was started anew.
        self.stream_id = secrets.token_hex(4)
        #: The instruments are read while somebody is in here; given True, the map of torch's memory is drawn too.
        self.watching = watching
        self.job = NewestJob(timeline)
        self._stopping = stopping
        self._limit = limit
        self._lock = threading.Lock()
        self._streams: set[Subscription] = set()
        self._thread: threading.Thread | None = None

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def ended(self) -> bool:
        return self._stopping()

    def join(self) -> Subscription:
        """A place among the streams, to be given back with `leave`. Raises BusyError."""
        with self._lock:
            if len(self._streams) >= self._limit:
                raise BusyError(
                    "All event streams are taken", found=self._limit, do="Poll instead: add ?poll=1 to the address."
                )
            place = Subscription()
            self._streams.add(place)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="vram-pilot-streams", daemon=True)
                self._thread.start()
        return place

    def leave(self, place: Subscription) -> None:
        with self._lock:
            self._streams.discard(place)

    def _watch(self) -> None:
        cursor = self.timeline.cursor
        while self._anyone_left():
            if self.timeline.wait(cursor, TICK_S):
                cursor = self.timeline.cursor
                self.wake_all()
                time.sleep(GATHER_S)
            elif self.ended:
                self.wake_all()

    def _anyone_left(self) -> bool:
        with self._lock:
            if not self._streams:
                self._thread = None
            return bool(self._streams)

    def wake_all(self) -> None:
        """Every stream looks for news, and whether it has ended."""
        with self._lock:
            places = list(self._streams)
        for place in places:
            place.wake()


class EventStream(StreamingResponse):
    """The records behind `cursor`, as long as the client listens and the server runs. Raises BusyError when `hub` is full.

    memory_map: whether the client draws the map, and wants its columns among the records.
    """

    def __init__(self, hub: Hub, cursor: int, reset: bool, memory_map: bool = False) -> None:
        self._hub, self._place, self._memory_map = hub, hub.join(), memory_map
        events = _events(hub, self._place, cursor, reset, memory_map)
        super().__init__(events, headers=HEADERS, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._hub.watching(self._memory_map):
                await super().__call__(scope, receive, send)
        finally:
            self._hub.leave(self._place)


async def _events(hub: Hub, place: Subscription, cursor: int, reset: bool, memory_map: bool) -> AsyncIterator[bytes]:
    """The stream's bytes: hello, then each record with the cursor behind it as its id, a heartbeat when there is none."""
    yield _hello(hub, cursor, reset)
    last_write = time.monotonic()
    while not hub.ended:
        part = hub.timeline.after(cursor, BATCH)
        if part.records:
            cursor = part.cursor
            text = _records(part, memory_map)
            if text:
                yield text
                last_write = time.monotonic()
            continue
        if time.monotonic() - last_write >= HEARTBEAT_S:
            yield b": heartbeat\n\n"
            last_write = time.monotonic()
        await place.wait(last_write + HEARTBEAT_S - time.monotonic())
    yield b'event: end\ndata: {"reason":"the server is stopping"}\n\n'


def polled(hub: Hub, cursor: int, reset: bool, memory_map: bool = False) -> dict[str, Any]:
    """What a page that polls gets: the records behind `cursor`, each with its cursor, and where to go on."""
    with hub.watching(memory_map):
        part = hub.timeline.after(cursor, BATCH)
    return {
        **_start(hub, part.cursor, reset),
        "since": cursor,
        "lost": part.lost,
        "more": hub.timeline.cursor > part.cursor,
        "records": [{"cursor": at, **record} for at, record in _numbered(part, memory_map)],
    }


def dumps(value: object) -> str:
    """Compact JSON; what is no finite number is null."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def _start(hub: Hub, cursor: int, reset: bool) -> dict[str, Any]:
    return {"stream": hub.stream_id, "cursor": cursor, "reset": reset, "now_s": time.monotonic()}


def _hello(hub: Hub, cursor: int, reset: bool) -> bytes:
    return f"retry: 2000\nevent: hello\ndata: {dumps(_start(hub, cursor, reset))}\n\n".encode()


def _records(part: Slice, memory_map: bool) -> bytes:
    text = f'event: lost\ndata: {{"count":{part.lost}}}\n\n' if part.lost else ""
    text += "".join(f"id: {at}\nevent: record\ndata: {dumps(record)}\n\n" for at, record in _numbered(part, memory_map))
    return text.encode()


def _numbered(part: Slice, memory_map: bool) -> list[tuple[int, dict[str, Any]]]:
    """Each record of a slice with the cursor behind it. The map's columns are for who asked for them."""
    first = part.cursor - len(part.records) + 1
    numbered = enumerate(part.records, first)
    return [(at, to_json(record)) for at, record in numbered if memory_map or not isinstance(record, MapColumn)]
