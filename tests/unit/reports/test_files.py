"""A file is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.jobs import plain_session
from vram_pilot.errors import RefusedError, UsageError, VramPilotError
from vram_pilot.reports.base import ENDINGS, FORMATS, REPORTERS, TO_COME, file_name, format_of, reporter, write_report
from vram_pilot.reports.files import write_whole


def test_every_format_writes_a_file(tmp_path: Path) -> None:
    session = plain_session()
    for made in REPORTERS:
        path = tmp_path / f"report.{made.format}"
        write_report(session, made.format, path)
        assert session["id"] in path.read_text(encoding="utf-8")
        assert "/" in made.media_type
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.csv", "report.html", "report.json", "report.trace"]


def test_formats_are_each_their_own() -> None:
    names = [made.format for made in REPORTERS]
    assert len(set(names)) == len(names)
    assert reporter("html") is REPORTERS[names.index("html")]


@pytest.mark.parametrize("name", ["", "HTML", "../html", "pickle"])
def test_an_unknown_format_names_those_that_there_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="html, json, csv, trace, memory_viz"):
        write_report(plain_session(), name, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TO_COME)
def test_a_format_to_come_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=f"not in this version .found '{name}'"):
        write_report(plain_session(), name, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_names_of_files() -> None:
    identity = "20260131-120000-ab12cd34"
    assert file_name(identity, "trace") == f"vram-pilot-{identity}.trace.json"
    assert file_name(identity, "memory_viz") == f"vram-pilot-{identity}.pickle"
    assert file_name("../x y", "html") == "vram-pilot-___x_y.html"
    assert len({file_name(identity, name) for name in FORMATS}) == len(FORMATS)
    assert set(ENDINGS) <= set(FORMATS)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.html", "html"),
        ("a.JSON", "json"),
        ("a.trace.json", "trace"),
        ("trace.json", "json"),
        ("a.csv", "csv"),
        ("a", "html"),
        ("a.htm", "html"),
    ],
)
def test_a_files_name_asks_for_a_format(name: str, format: str) -> None:
    assert format_of(Path(name)) == format


@pytest.mark.parametrize(("name", "said"), [("a.pickle", ".trace.json"), ("a.pdf", ".html"), ("a.parquet", "not in this")])
def test_an_ending_of_no_report_is_refused(name: str, said: str) -> None:
    with pytest.raises(VramPilotError, match=said):
        format_of(Path(name))


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    write_whole(path, b"new")
    assert path.read_text() == "new"


def test_a_failure_leaves_the_older_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_whole(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder") as caught:
        write_whole(tmp_path, b"x")
    assert caught.value.exit_status == 2
    with pytest.raises(UsageError, match="does not exist"):
        write_whole(tmp_path / "no" / "x", b"x")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError):
        write_whole(tmp_path / "file" / "x", b"x")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 240 + ".json")
    write_whole(path, b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.skipif(os.name == "nt", reason="links and pipes are POSIX here")
class TestPosix:
    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "real")
        write_whole(tmp_path / "link", b"x")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_bytes() == b"x"

    def test_a_device_stays_one(self) -> None:
        """As root, replacing /dev/null by a file would break the machine."""
        write_whole(Path("/dev/null"), b"x")
        assert Path("/dev/null").is_char_device()

    def test_the_file_has_the_rights_of_any_new_file(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_bytes(b"")
        write_whole(tmp_path / "report", b"x")
        assert (tmp_path / "report").stat().st_mode == (tmp_path / "plain").stat().st_mode
