"""benchmarks/a1111.py: what it makes of a WebUI's answers. The WebUI itself is a stand-in here."""

from __future__ import annotations

import base64
import importlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from tests.host.client import AnswerError, Pictures, pixels_of
from tests.project import ROOT

GRAPH = {"mode": "full", "accelerate": "graph"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Three timed images of each configuration."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("a1111").Bench(None, {}, 3, 1, tmp_path)
    for name in set(sys.modules) & {"a1111", "webui", "machine"} - before:
        del sys.modules[name]


class Client:
    """greys: of the pictures that come next, the last one for ever; replays: what the state says of graphs."""

    def __init__(self, *greys: int, replays: int = 0, status: int = 200) -> None:
        self.greys, self.replays, self.status, self.mode = list(greys), replays, status, dict(GRAPH)

    def post(self, path: str, body: Any) -> Any:
        if path == "/vram-pilot/v1/mode" and self.status != 200:
            raise AnswerError(self.status, {"error": "RefusedError"}, {})
        return {"effective": body, "peak_allocated_bytes": None}

    def get(self, _path: str) -> Any:
        return {"peak_allocated_bytes": None, "peak_reserved_bytes": None}

    def state(self) -> Any:
        unknown = dict.fromkeys(("resident_bytes", "slot_bytes", "pinned_bytes", "pageable_bytes", "graph_bytes"))
        counted = {"graph_replays": self.replays, "prefetch_misses": 0}
        return {"mode": {"effective": self.mode, "refusal": None, "notes": ["no graph here"], **unknown, **counted}}

    def newest_session(self) -> Any:
        return {"summary": {}}

    def txt2img(self, **_request: Any) -> Pictures:
        file = io.BytesIO()
        grey = self.greys.pop(0) if len(self.greys) > 1 else self.greys[0]
        Image.new("RGB", (8, 8), (grey, grey, 9)).save(file, "PNG")
        return Pictures((pixels_of(file.getvalue()),), ("",), ("",), (base64.b64encode(file.getvalue()).decode(),), 0.5)


def server(*greys: int, **more: Any) -> Any:
    return SimpleNamespace(client=Client(*greys, **more), tail=lambda: "the log's end")


def test_equal_pixels_are_no_problem(bench: Any) -> None:
    bench.row(server(100), "as launched", 3)
    bench.row(server(100), "--medvram", 3)
    assert [(row["equal"], row["max_abs_difference"], len(row["times_s"])) for row in bench.rows] == [(True, 0, 3)] * 2
    assert not bench.problems


def test_one_picture_that_differs_is_named_with_its_difference(bench: Any) -> None:
    bench.row(server(100), "as launched", 3)
    bench.row(server(100, 100, 97, 100), "VRAM Pilot: full", 3)
    assert not bench.rows[1]["equal"]
    assert bench.rows[1]["max_abs_difference"] == 3
    assert bench.problems == ["VRAM Pilot: full: 1 of 3 images differ from as launched, by at most 3"]


def test_a_refused_mode_is_a_problem_and_gives_no_row(bench: Any) -> None:
    bench.row(server(100, status=409), "VRAM Pilot: medvram", 3, {"mode": "medvram"})
    assert not bench.rows
    assert bench.problems[0].startswith("VRAM Pilot: medvram: 409")


@pytest.mark.parametrize(("replays", "problems"), [(20, 0), (0, 1)])
def test_a_graph_that_never_ran_is_a_problem(bench: Any, replays: int, problems: int) -> None:
    bench.row(server(100, replays=replays), "VRAM Pilot: full, graph", 3, GRAPH)
    assert len(bench.problems) == problems


def test_another_mode_in_force_is_a_problem(bench: Any) -> None:
    other = server(100, replays=20)
    other.client.mode = {"mode": "as-launched", "accelerate": "off"}
    bench.row(other, "VRAM Pilot: full, graph", 3, GRAPH)
    assert "was not in force" in bench.problems[0]
