"""The route that hands out a session's report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.panel_app import FakeApp, session
from tests.unit.panel.test_routes import FIRST, Asked, is_clear


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(FakeApp(tmp_path))


def test_every_offered_format_is_written(asked: Asked) -> None:
    asked.app.keep(session(FIRST))
    for name in asked.get("state").json()["offers"]["reports"]:
        answer = asked.get(f"sessions/{FIRST}/report?format={name}")
        assert answer.status_code == 200 and answer.content
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert ("attachment" in answer.headers.get("Content-Disposition", "")) is (name != "html")
    assert json.loads(asked.get(f"sessions/{FIRST}/report?format=json").content)["id"] == FIRST


def test_the_report_is_shown_or_saved_and_reaches_nothing(asked: Asked) -> None:
    asked.app.keep(session(FIRST))
    shown = asked.get(f"sessions/{FIRST}/report")
    assert shown.headers["Content-Type"].startswith("text/html") and "Content-Disposition" not in shown.headers
    policy = shown.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "sandbox" in policy and "allow-same-origin" not in policy
    saved = asked.get(f"sessions/{FIRST}/report?format=html&download=1")
    assert saved.headers["Content-Disposition"] == f'attachment; filename="vram-pilot-{FIRST}.html"'


def test_the_allocators_snapshot_is_handed_out_or_refused_with_what_to_do(asked: Asked) -> None:
    asked.app.keep(session(FIRST))
    assert [row["snapshot"] for row in asked.get("sessions").json()["sessions"]] == [False]
    refused = asked.get(f"sessions/{FIRST}/report?format=memory_viz")
    assert is_clear(refused, 409, "RefusedError")
    assert "CUDA" in refused.json()["message"]
    asked.app.store.snapshots.keep(FIRST, b"pickled")
    assert [row["snapshot"] for row in asked.get("sessions").json()["sessions"]] == [True]
    answer = asked.get(f"sessions/{FIRST}/report?format=memory_viz")
    assert (answer.status_code, answer.content) == (200, b"pickled")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="vram-pilot-{FIRST}.pickle"'
    assert answer.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("name", ["parquet", "markdown"])
def test_a_format_to_come_is_refused_by_name(asked: Asked, name: str) -> None:
    asked.app.keep(session(FIRST))
    answer = asked.get(f"sessions/{FIRST}/report?format={name}")
    assert is_clear(answer, 409, "RefusedError") and name in answer.json()["message"]


def test_a_format_that_nobody_knows_is_bad_input(asked: Asked) -> None:
    assert is_clear(asked.get(f"sessions/{FIRST}/report?format=../etc"), 400, "UsageError")
