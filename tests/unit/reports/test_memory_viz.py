"""The allocator's snapshot of a session: handed out as it is, or refused with what to do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.jobs import plain_session
from vram_pilot.errors import RefusedError
from vram_pilot.reports.base import reporter, write_report
from vram_pilot.session.snapshots import Snapshots


def refused(session: dict[str, Any], tmp_path: Path, snapshots: Snapshots | None) -> str:
    with pytest.raises(RefusedError) as caught:
        write_report(session, "memory_viz", tmp_path / "report.pickle", snapshots)
    assert not (tmp_path / "report.pickle").exists()
    assert caught.value.http_status == 409
    return str(caught.value)


def test_what_was_kept_is_handed_out_byte_by_byte(tmp_path: Path) -> None:
    session, kept = plain_session(), Snapshots(tmp_path)
    content = b"\x80\x04never loaded here."
    kept.keep(session["id"], content)
    write_report(session, "memory_viz", tmp_path / "report.pickle", kept)
    assert (tmp_path / "report.pickle").read_bytes() == content
    assert reporter("memory_viz", kept).media_type == "application/octet-stream"


def test_where_none_was_taken_it_says_how_to_get_one(tmp_path: Path) -> None:
    for snapshots in (None, Snapshots(tmp_path)):
        said = refused(plain_session(), tmp_path, snapshots)
        assert "keep_snapshots" in said
        assert "pytorch.org/memory_viz" in said


def test_without_cuda_it_says_that_there_is_none_to_take(tmp_path: Path) -> None:
    session = copy.deepcopy(plain_session())
    session["gpus"], session["settings"]["allocator"] = [], None
    said = refused(session, tmp_path, Snapshots(tmp_path))
    assert "did not run on a CUDA device" in said
    assert "keep_snapshots" not in said


def test_another_allocator_is_named(tmp_path: Path) -> None:
    session = copy.deepcopy(plain_session())
    session["settings"]["allocator"] = "cudaMallocAsync"
    said = refused(session, tmp_path, Snapshots(tmp_path))
    assert "keeps no list of its blocks (found 'cudaMallocAsync')" in said
