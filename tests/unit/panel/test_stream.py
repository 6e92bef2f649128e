"""The events stream, read over a socket from a real server behind the middleware that hosts use."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI, Request
from starlette.middleware.gzip import GZipMiddleware

from tests.fakes.panel_app import FakeApp
from tests.fakes.panel_server import Served, free_port, serving
from tests.fakes.sse import Listener
from vram_pilot.panel import stream
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.routes import register

SESSION = "20260101-000000-00000001"
#: The promise to who watches.
SOON_S = 0.5


def until(reached: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Looks until it is so; what is waited for has no event to wait on."""
    end = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < end, "it did not come to that"
        threading.Event().wait(0.01)


@pytest.fixture
def app(tmp_path: Path) -> FakeApp:
    return FakeApp(tmp_path)


@pytest.fixture
def served(app: FakeApp) -> Iterator[Served]:
    """Both middlewares of a WebUI: the compressing one, and the API's own that wraps every answer."""
    target = FastAPI()
    panel = register(target, app, Auth(lambda: None))

    @target.middleware("http")
    async def around(request: Request, go_on: Any) -> Any:
        return await go_on(request)

    target.add_middleware(GZipMiddleware, minimum_size=1000)
    with serving(target, panel) as running:
        yield running


def listen(served: Served, query: str = "", **headers: str) -> Listener:
    return Listener(f"{served.url}/vram-pilot/v1/events{query}", **headers)


def hub(served: Served) -> stream.Hub:
    return served.panel.hub


@pytest.mark.slow
def test_each_event_arrives_within_half_a_second_through_the_compressing_middleware(app: FakeApp, served: Served) -> None:
    with listen(served) as listener:
        assert listener.response.headers["Content-Encoding"] == "identity"
        assert listener.response.headers["Cache-Control"] == "no-store"
        assert listener.response.headers["X-Accel-Buffering"] == "no"
        assert listener.response.headers["Content-Type"].startswith("text/event-stream")
        events = listener.events()
        assert next(events).name == "hello"
        for index in range(20):
            sent = time.monotonic()
            app.step(SESSION, index)
            event = next(events)
            assert (event.name, event.id, event.data["index"]) == ("record", str(index + 1), index)
            assert event.at - sent < SOON_S


def test_a_stream_goes_on_after_a_drop_without_gap_or_double(app: FakeApp, served: Served) -> None:
    for index in range(5):
        app.step(SESSION, index)
    with listen(served, "?since=0") as listener:
        seen = listener.take(3)
    app.step(SESSION, 5)
    with listen(served, "?since=0", Last_Event_ID=seen[-1].id) as listener:
        seen += listener.take(3)
    assert [event.data["index"] for event in seen] == list(range(6))
    with listen(served, f"?since={seen[-1].id}") as listener:
        app.step(SESSION, 6)
        assert [event.data["index"] for event in listener.take(1)] == [6]


def test_a_client_of_another_process_is_told_to_begin_anew(app: FakeApp, served: Served) -> None:
    app.step(SESSION, 0)
    with listen(served, "?since=1&stream=other") as listener:
        events = listener.events()
        hello, record = next(events), next(events)
    assert hello.data["reset"] is True and hello.data["cursor"] == 0 and record.id == "1"


def test_what_fell_out_is_said_before_what_is_left(app: FakeApp, served: Served) -> None:
    for index in range(20_010):
        app.step(SESSION, index)
    with listen(served, "?since=4") as listener:
        events = listener.events()
        next(events)
        lost, record = next(events), next(events)
    assert (lost.name, lost.data, record.id) == ("lost", {"count": 6}, "11")


def test_a_burst_arrives_whole_and_in_order(app: FakeApp, served: Served) -> None:
    with listen(served) as listener:
        writer = threading.Thread(target=lambda: [app.step(SESSION, index) for index in range(5000)])
        writer.start()
        assert [int(event.id) for event in listener.take(5000)] == list(range(1, 5001))
        writer.join()


def test_the_maps_columns_come_to_who_asks_for_them_alone(app: FakeApp, served: Served) -> None:
    with listen(served, "?map=1") as drawing, listen(served) as plain:
        for listener in (drawing, plain):
            next(listener.events())
        assert app.map_watchers == 1
        for index in range(3):
            app.column([255, 128], [128])
            app.step(SESSION, index)
        assert [(event.id, event.data["type"]) for event in drawing.take(6)][::2] == [(str(n), "MapColumn") for n in (1, 3, 5)]
        assert [(event.id, event.data["type"]) for event in plain.take(3)] == [(str(n), "StepFinished") for n in (2, 4, 6)]
    until(lambda: app.map_watchers == 0)


def test_a_stream_that_is_told_nothing_of_many_records_is_still_alive(
    app: FakeApp, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.2)
    with listen(served) as listener:
        events = listener.events()
        assert next(events).name == "hello"
        for _ in range(2 * stream.BATCH):
            app.column([255], [255])
        assert next(events).data == "heartbeat"
        app.step(SESSION, 0)
        record = next(event for event in events if event.name)
        assert (record.id, record.data["index"]) == (str(2 * stream.BATCH + 1), 0)


def test_silence_is_broken_by_heartbeats(app: FakeApp, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.2)
    with listen(served) as listener:
        events = listener.events()
        hello, first, second = next(events), next(events), next(events)
    assert (first.name, first.data) == ("", "heartbeat")
    assert 0.15 < second.at - first.at < 0.2 + SOON_S and hello.name == "hello"


def test_the_heartbeat_is_every_ten_seconds() -> None:
    assert stream.HEARTBEAT_S == 10


def test_a_client_that_is_gone_leaves_nothing_behind(app: FakeApp, served: Served) -> None:
    with listen(served) as listener:
        next(listener.events())
        assert hub(served).streams == 1
    until(lambda: hub(served).streams == 0)
    until(lambda: not any(thread.name == "vram-pilot-streams" for thread in threading.enumerate()))


def test_one_thread_serves_all_streams_and_there_is_a_limit(app: FakeApp, served: Served) -> None:
    before = set(threading.enumerate())
    with ExitStack() as stack:
        listeners = [stack.enter_context(listen(served)) for _ in range(stream.MAX_STREAMS)]
        for listener in listeners:
            next(listener.events())
        watching = [thread for thread in threading.enumerate() if thread.name == "vram-pilot-streams"]
        assert len(watching) == 1
        assert set(threading.enumerate()) - before == set(watching), "a host generates in its worker threads"
        with listen(served, Accept_Encoding="identity") as refused:
            assert refused.response.status == 429 and "poll=1" in json.loads(refused.response.read())["do"]
        with urllib.request.urlopen(f"{served.url}/vram-pilot/v1/events?poll=1") as polled:
            assert json.load(polled)["records"] == []
        listeners[0].close()
        until(lambda: hub(served).streams == stream.MAX_STREAMS - 1)
        with listen(served) as again:
            assert again.response.status == 200
        app.step(SESSION, 0)
        assert all(len(listener.take(1)) == 1 for listener in listeners[1:])


def test_streams_end_at_once_when_the_application_stops(app: FakeApp, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told, not found out at the watching thread's next look."""
    monkeypatch.setattr(stream, "TICK_S", 3.0)
    with listen(served) as listener:
        events = listener.events()
        next(events)
        served.panel.close()
        start = time.monotonic()
        assert [event.name for event in events] == ["end"]
        assert time.monotonic() - start < SOON_S


def test_e19_a_reload_of_the_page_is_not_held_up_by_a_stream(app: FakeApp) -> None:
    """gradio's own close() waits for every connection to end, before it calls anybody."""
    with gr.Blocks(analytics_enabled=False) as blocks:
        gr.Markdown("page")
    application, *_ = blocks.launch(prevent_thread_lock=True, server_port=free_port(), quiet=True, show_api=False)
    register(application, app, Auth(lambda: application))
    with Listener(f"{blocks.local_url}vram-pilot/v1/events") as listener:
        events = listener.events()
        next(events)
        server = blocks.server.thread
        closer = threading.Thread(target=blocks.close, kwargs={"verbose": False})
        closer.start()
        assert [event.name for event in events] == ["end"]
        closer.join(4)
        assert not closer.is_alive() and not server.is_alive()


@pytest.mark.slow
def test_idle_streams_cost_less_than_one_hundredth_of_a_core(app: FakeApp, served: Served) -> None:
    """Beyond what the server costs that nobody asks anything."""

    def busy_s() -> float:
        before = time.process_time()
        threading.Event().wait(2)
        return time.process_time() - before

    alone_s = busy_s()
    with listen(served) as listener:
        next(listener.events())
        assert (busy_s() - alone_s) / 2 < 0.01
