"""The allocator's snapshot: taken for those who ask, in PyTorch's own form, without folders, and never at a job's cost."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from tests.fakes.allocator_snapshot import BASE, snapshot
from vram_pilot.telemetry import snapshot as module
from vram_pilot.telemetry.snapshot import MAX_EVENTS, SnapshotTaker, packed

ID = "20260131-120000-ab12cd34"
#: What the viewer's own reader of pickles knows.
KNOWN = {
    *("APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "EMPTY_DICT"),
    *("EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO"),
    *("SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
}


class Memory:
    """Stands in for torch.cuda.memory."""

    def __init__(self) -> None:
        self.recording: dict[str, Any] | None = None
        self.calls: list[str] = []
        self.fails: set[str] = set()

    def _record_memory_history(self, **words: Any) -> None:
        self._note("stop" if words["enabled"] is None else "start")
        self.recording = None if words["enabled"] is None else words

    def _snapshot(self) -> dict[str, Any]:
        self._note("snapshot")
        return snapshot()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.fails:
            raise TypeError(f"no such word in {call}")


class Bench:
    def __init__(self, device: str = "cuda:0") -> None:
        self.memory = Memory()
        self.kept: dict[str, Callable[[], bytes]] = {}
        self.taker = SnapshotTaker(torch.device(device), self.kept.__setitem__, self.memory)
        self.taker.enabled = True

    def job(self) -> None:
        self.taker.job_started()
        self.taker.job_finished(ID)


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A CUDA that has started, with torch's own allocator; what a test changes here holds."""
    state: dict[str, Any] = {"started": True, "backend": "native", "recorded": False}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: state["started"])
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: state["backend"])
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: state["recorded"], raising=False)
    return state


def test_a_job_is_recorded_and_its_snapshot_kept() -> None:
    bench = Bench()
    bench.taker.job_started()
    assert bench.memory.recording == {"enabled": "all", "context": None, "stacks": "python", "max_entries": MAX_EVENTS}
    bench.taker.job_started()  # a job within the job
    bench.taker.job_finished(ID)
    assert bench.memory.calls == ["start", "snapshot", "stop"]
    assert bench.memory.recording is None
    assert pickle.loads(bench.kept[ID]())["segments"][0]["address"] == BASE


def test_nothing_is_done_unless_it_is_asked_for() -> None:
    bench = Bench()
    bench.taker.enabled = False
    bench.job()
    assert (bench.memory.calls, bench.kept) == ([], {})


@pytest.mark.parametrize("change", [{"started": False}, {"backend": "cudaMallocAsync"}])
def test_where_there_is_no_such_allocator_nothing_is_touched(change: dict[str, Any], cuda: dict[str, Any]) -> None:
    cuda.update(change)
    bench = Bench()
    bench.job()
    assert (bench.memory.calls, bench.kept) == ([], {})


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_another_device_has_no_such_allocator(device: str) -> None:
    bench = Bench(device)
    bench.job()
    assert (bench.memory.calls, bench.kept) == ([], {})


def test_another_ones_recording_goes_on(cuda: dict[str, Any]) -> None:
    cuda["recorded"] = True
    bench = Bench()
    bench.job()
    assert bench.memory.calls == ["snapshot"]
    assert list(bench.kept) == [ID]


def test_turned_off_in_mid_job_the_recording_ends_and_nothing_is_kept() -> None:
    bench = Bench()
    bench.taker.job_started()
    bench.taker.enabled = False
    bench.taker.job_finished(ID)
    assert (bench.memory.calls, bench.kept) == (["start", "stop"], {})


def test_a_job_that_is_not_kept_leaves_no_snapshot() -> None:
    bench = Bench()
    bench.taker.job_started()
    bench.taker.job_finished(None)
    assert (bench.memory.calls, bench.kept) == (["start", "stop"], {})


@pytest.mark.parametrize(
    ("fails", "calls"),
    [("start", ["start", "snapshot"]), ("snapshot", ["start", "snapshot", "stop"]), ("stop", ["start", "snapshot", "stop"])],
)
def test_a_torch_that_knows_other_words_costs_no_job(fails: str, calls: list[str]) -> None:
    bench = Bench()
    bench.memory.fails = {fails}
    bench.job()
    assert bench.memory.calls == calls
    assert list(bench.kept) == ([] if fails == "snapshot" else [ID])


class TestPacked:
    def test_pytorchs_own_tools_read_it(self) -> None:
        read = pickle.loads(packed(snapshot(30)))
        assert "20.0MiB" in _memory_viz.segsum(read)
        assert "b = a[0:12.0MiB]" in _memory_viz.trace(read)
        for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
            assert "MemoryViz" in plot(read)

    def test_its_viewer_in_the_browser_knows_every_word(self) -> None:
        used = {code.name for code, _, _ in pickletools.genops(packed(snapshot(3000)))}
        assert used <= KNOWN
        assert "STACK_GLOBAL" not in used  # nothing is called when somebody loads it

    def test_no_folder_is_in_it_and_nothing_else_is_lost(self) -> None:
        content = packed(snapshot())
        assert b"/home" not in content
        assert b"webui" not in content
        read, original = pickle.loads(content), snapshot()
        for trace in (read["segments"][0]["blocks"][0], original["segments"][0]["blocks"][0]):
            trace["frames"][0]["filename"] = "sd_models.py"
        read["device_traces"][0][1]["frames"][0]["filename"] = original["device_traces"][0][1]["frames"][0]["filename"]
        assert read == original

    def test_the_oldest_events_give_way_to_the_limit(self) -> None:
        whole = packed(snapshot(3000))
        less = packed(snapshot(3000), limit=len(whole) // 3)
        assert len(less) <= len(whole) // 3
        kept, all_events = pickle.loads(less)["device_traces"][0], pickle.loads(whole)["device_traces"][0]
        assert 0 < len(kept) < len(all_events)
        assert kept == all_events[-len(kept) :]
        assert pickle.loads(less)["segments"] == pickle.loads(whole)["segments"]

    def test_a_limit_below_everything_ends(self) -> None:
        read = pickle.loads(packed(snapshot(3000), limit=1))
        assert read["device_traces"] == [[]]

    def test_what_is_packed_is_not_changed(self) -> None:
        given = snapshot(300)
        packed(given, limit=2000)
        assert given == snapshot(300)

    def test_a_hundred_thousand_events_are_well_below_the_limit(self) -> None:
        assert len(packed(snapshot(MAX_EVENTS))) < module.MAX_BYTES / 2
