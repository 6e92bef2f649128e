"""Who listens to the events wakes the instruments, for as long as it listens."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.fakes.panel_app import FakeApp
from tests.fakes.panel_server import Served, serving
from tests.fakes.sse import Listener
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.routes import register

LONG_S = 10.0


class WatchedApp(FakeApp):
    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.came, self.left = threading.Event(), threading.Event()
        self.maps: list[bool] = []

    @contextlib.contextmanager
    def watching(self, memory_map: bool = False) -> Iterator[None]:
        self.maps.append(memory_map)
        self.came.set()
        try:
            yield
        finally:
            self.left.set()


@pytest.fixture
def app(tmp_path: Path) -> WatchedApp:
    return WatchedApp(tmp_path)


@pytest.fixture
def served(app: WatchedApp) -> Iterator[Served]:
    target = FastAPI()
    with serving(target, register(target, app, Auth(lambda: None))) as running:
        yield running


def test_a_stream_watches_from_its_first_byte_until_the_client_is_gone(app: WatchedApp, served: Served) -> None:
    assert not app.came.is_set()
    with Listener(f"{served.url}/vram-pilot/v1/events") as listener:
        next(listener.events())
        assert app.came.is_set()
        assert not app.left.is_set()
    assert app.left.wait(LONG_S)


def test_a_page_that_polls_watches_with_each_time(app: WatchedApp, served: Served) -> None:
    urllib.request.urlopen(f"{served.url}/vram-pilot/v1/events?poll=1").close()
    assert app.came.is_set()
    assert app.left.is_set()


def test_the_map_is_watched_only_where_it_is_asked_for(app: WatchedApp, served: Served) -> None:
    for query in ("poll=1", "poll=1&map=1", "poll=1&map=0", "poll=1&map="):
        urllib.request.urlopen(f"{served.url}/vram-pilot/v1/events?{query}").close()
    with Listener(f"{served.url}/vram-pilot/v1/events?map=1") as listener:
        next(listener.events())
    assert app.maps == [False, True, False, False, True]


@pytest.mark.parametrize("path", ["state", "sessions"])
def test_other_questions_wake_nothing(app: WatchedApp, served: Served, path: str) -> None:
    urllib.request.urlopen(f"{served.url}/vram-pilot/v1/{path}").close()
    assert not app.came.is_set()
