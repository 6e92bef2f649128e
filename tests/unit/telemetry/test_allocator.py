"""What is read of torch's allocator, and that reading starts no context."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vram_pilot.telemetry.allocator import AllocatorPeaks, memory

CUDA = torch.device("cuda", 0)
STATS = {
    "allocated_bytes": {"all": {"current": 100, "peak": 300, "allocated": 900, "freed": 800}},
    "reserved_bytes": {"all": {"current": 200, "peak": 400, "allocated": 900, "freed": 700}},
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """torch with a CUDA context; the answer is on which devices the peaks were reset."""
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: STATS)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    return reset


def test_current_and_peak(started: list[torch.device]) -> None:
    peaks = AllocatorPeaks(CUDA)
    peaks.reset()
    assert started == [CUDA]
    assert memory(CUDA) == (100, 200)
    assert peaks.read() == (300, 400)


def test_a_backend_without_figures(started: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: {})
    assert memory(CUDA) == (None, None)
    assert AllocatorPeaks(CUDA).read() == (None, None)


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda"])
def test_nothing_without_a_context(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: pytest.fail("asked"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: pytest.fail("asked"))
    peaks = AllocatorPeaks(torch.device(device))
    peaks.reset()
    assert memory(torch.device(device)) == (None, None)
    assert peaks.read() == (None, None)


def test_no_context_is_started() -> None:
    code = (
        "import torch; from vram_pilot.telemetry.allocator import AllocatorPeaks, memory; "
        "from vram_pilot.telemetry.steps import step_clock; device = torch.device('cuda', 0); "
        "clock = step_clock(device); clock.resolve(clock.mark(), clock.mark()); memory(device); "
        "AllocatorPeaks(device).reset(); assert not torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
