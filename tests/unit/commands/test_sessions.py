"""`python -m vram_pilot sessions`."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.jobs import rich_session
from tests.unit.session.test_store import header, session
from vram_pilot.cli import main
from vram_pilot.session import database
from vram_pilot.session.snapshots import Snapshots
from vram_pilot.session.store import SessionStore


def run(*words: object) -> int:
    return main(["sessions", *map(str, words)])


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Three sessions, oldest first, in the folder that the command finds by itself."""
    monkeypatch.setenv("VRAM_PILOT_DATA_DIR", str(tmp_path / "state"))
    made = [session(0), session(1), {**rich_session(), "notes": [{"t_s": 0.0, "text": "medvram was refused"}]}]
    store = SessionStore(tmp_path / "state")
    for one in made:
        store.finish(one)
    store.close()
    return made


def test_list(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    shown = capsys.readouterr()
    head, *lines = shown.out.splitlines()
    assert head.split() == ["ID", "STARTED", "(UTC)", "STATUS", "MODEL", "SIZE", "MODE", "STEPS/S", "PEAK"]
    assert [line.split()[0] for line in lines] == [one["id"] for one in reversed(kept)]
    assert "512x512" in lines[0]
    assert "lowvram, budget 0 MiB" in lines[0]
    assert shown.err == ""


def test_list_a_page_as_json(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--limit", 1, "--offset", 1, "--json") == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == [kept[1]["id"]]


@pytest.mark.parametrize("number", ["many", "1.5", "nan", "-1", "9" * 30, "9" * 400])
@pytest.mark.parametrize("words", [("list", "--limit"), ("list", "--offset"), ("prune", "--keep"), ("prune", "--max-age-days")])
def test_a_number_that_is_none_is_refused_with_what_is_allowed(
    kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], words: tuple[str, str], number: str
) -> None:
    assert run(words[0], f"{words[1]}={number}") == 2
    said = capsys.readouterr().err
    assert number[:20] in said and "to 1000000000" in said and "Traceback" not in said
    assert run("list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == len(kept)


def test_a_data_folder_that_is_a_file_is_not_taken_for_an_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("list", "--data-dir", tmp_path / "file") == 2
    shown = capsys.readouterr()
    assert shown.out == "" and str(tmp_path / "file") in shown.err and "folder" in shown.err


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--data-dir", tmp_path / "none") == 0
    assert "No session is recorded here." in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_show(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", kept[2]["id"]) == 0
    shown = capsys.readouterr().out
    assert "2 images and 56 steps in lowvram" in shown
    assert "Note: medvram was refused" in shown
    assert run("show", kept[2]["id"], "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == kept[2]


def test_json_into_a_file(kept: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", kept[0]["id"], "--json", tmp_path / "one.json") == 0
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "one.json").read_text()) == kept[0]


def test_export(kept: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts = {"html": "<!DOCTYPE html>", "json": "{", "csv": "t_s,metric,value", "trace": '{"displayTimeUnit"'}
    for name, begins in starts.items():
        path = tmp_path / f"report.{name}"
        assert run("export", kept[2]["id"], "--format", name, "--out", path) == 0
        assert path.read_text(encoding="utf-8").startswith(begins)
        assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(("name", "ending"), [("html", "html"), ("json", "json"), ("csv", "csv"), ("trace", "trace.json")])
def test_export_without_a_name_for_the_file(
    name: str, ending: str, kept: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run("export", kept[2]["id"], "--format", name) == 0
    assert run("export", kept[2]["id"], "--format", name, "--out", tmp_path / "there") == 0
    for folder in ("here", "there"):
        assert [path.name for path in (tmp_path / folder).iterdir()] == [f"vram-pilot-{kept[2]['id']}.{ending}"]


def test_export_of_a_snapshot(
    kept: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    identity = kept[2]["id"]
    assert run("export", identity, "--format", "memory_viz") == 2
    assert "keep_snapshots" in capsys.readouterr().err
    Snapshots(tmp_path / "state").keep(identity, b"pickled")
    assert run("export", identity, "--format", "memory_viz", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "id": identity,
        "format": "memory_viz",
        "out": f"vram-pilot-{identity}.pickle",
    }
    assert (tmp_path / f"vram-pilot-{identity}.pickle").read_bytes() == b"pickled"


@pytest.mark.parametrize("name", ["parquet", "markdown"])
def test_a_format_to_come_is_refused_by_name(
    name: str, kept: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", kept[0]["id"], "--format", name, "--out", tmp_path / "x") == 2
    said = capsys.readouterr().err
    assert f"This report format is not in this version (found '{name}')" in said
    assert "Use one of: html, json, csv, trace, memory_viz." in said
    assert not (tmp_path / "x").exists()


def test_a_format_that_nobody_knows(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", kept[0]["id"], "--format", "docx", "--out", "x") == 2
    assert "There is no such report format" in capsys.readouterr().err


def test_export_to_standard_output(kept: list[dict[str, Any]], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("export", kept[0]["id"], "--format", "csv", "--out", "-") == 0
    rows = list(csv.reader(io.StringIO(capfdbinary.readouterr().out.decode(), newline="")))
    assert rows[1][1:3] == ["id", kept[0]["id"]]


def test_compare(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", kept[0]["id"], kept[2]["id"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [kept[0]["id"], kept[2]["id"], "CHANGE"]
    assert any(line.startswith("Median step") and "%" in line for line in lines)
    assert run("compare", kept[0]["id"], kept[2]["id"], "--json") == 0
    assert json.loads(capsys.readouterr().out)["a"]["id"] == kept[0]["id"]


def test_prune(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prune") == 0
    assert "Deleted 0 sessions." in capsys.readouterr().out
    assert run("prune", "--keep", 2) == 0
    assert "Deleted 1 session." in capsys.readouterr().out
    assert run("list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_delete(kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("delete", kept[1]["id"], "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": kept[1]["id"]}
    assert run("show", kept[1]["id"]) == 2
    assert "There is no such session" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nonsense"], "not the id of a session"),
        (["show", "20200101-000000-00000000"], "List the sessions"),
        (["delete", "20200101-000000-00000000"], "There is no such session"),
        (["compare", "20200101-000000-00000000", "x"], "There is no such session"),
    ],
)
def test_wrong_ids(kept: list[dict[str, Any]], words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["baseline", "set"],
        ["check"],
        ["list", "--limit", "-1"],
        ["prune", "--keep", "0"],
        ["show"],
        ["export", "x", "--format", "parquet"],
    ],
)
def test_wrong_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert capsys.readouterr().err


def test_paths_that_cannot_be(kept: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", kept[0]["id"], "--out", tmp_path / "no" / "x.html") == 2
    assert "does not exist" in capsys.readouterr().err
    assert run("export", kept[0]["id"], "--out", "-", "--json", "-") == 2
    assert "both write to standard output" in capsys.readouterr().err


def test_a_session_that_runs_is_not_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, running = SessionStore(tmp_path), header()
    store.begin(running)
    store.flush()
    assert run("delete", running["id"], "--data-dir", tmp_path) == 2
    assert "still being recorded" in capsys.readouterr().err
    store.close()


def test_a_store_of_a_newer_version(kept: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(tmp_path / "state" / database.FILE_NAME)) as opened, opened:
        opened.execute("PRAGMA user_version = 99")
    assert run("list") == 1
    shown = capsys.readouterr()
    assert "newer version" in shown.err
    assert shown.out == ""
