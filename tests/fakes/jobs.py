"""A made-up device with its own time, and jobs that the real recorder records on it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from vram_pilot.hosts.base import JobInfo, StepInfo
from vram_pilot.session.recorder import Recorder
from vram_pilot.session.records import ModeChanged
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import ModeRequest
from vram_pilot.units import MIB

REQUEST = {
    "width": 512,
    "height": 512,
    "batch_size": 1,
    "n_iter": 1,
    "steps": 20,
    "sampler": "Euler a",
    "cfg_scale": 7.0,
    "hires": None,
}
IDENTITY = {
    "host": {"name": "AUTOMATIC1111", "version": "1.10.1"},
    "software": {"vram_pilot": "0.1.0", "python": "3.10.13", "torch": "2.1.2+cu121", "cuda": "12.1", "driver": None},
    "gpus": [
        {
            "uuid": "GPU-5ac1a8b2-0000-0000-0000-00000000beef",
            "name": "NVIDIA GeForce RTX 3060",
            "nvml_index": 1,
            "cuda_index": 0,
            "total_bytes": 12 * 1024 * MIB,
            "compute_capability": "8.6",
        }
    ],
    "model": {"family": "sd1", "name": "dream.safetensors", "hash": "4dab1c7e93"},
    "settings": {"dtype": "float16", "attention": "sdp", "accelerate": "off", "budget_bytes": None, "allocator": "native"},
}


class Device:
    """Work is queued with `work`; the host is ahead of the device until it catches up with `wait`. Is the recorder's clock."""

    def __init__(self) -> None:
        self.host_s = 1000.0
        self.queued_s = 1000.0  # when the device will have done all that it was given
        self.done_s = 1000.0  # how far it is
        self.settles = 0
        self.broken = False
        self.stuck = False

    def work(self, duration_s: float, issue_s: float = 0.0001) -> None:
        """The host hands over work of `duration_s` in `issue_s`."""
        self.host_s += issue_s
        self.queued_s = max(self.queued_s, self.host_s) + duration_s

    def wait(self) -> None:
        """The host waits for the device."""
        self.host_s = self.done_s = max(self.host_s, self.queued_s)

    def idle(self, duration_s: float) -> None:
        """The host does something else, while the device works on."""
        self.host_s += duration_s
        self.done_s = min(self.host_s, self.queued_s)

    def monotonic(self) -> float:
        return self.host_s

    def mark(self) -> float:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return max(self.host_s, self.queued_s)

    def resolve(self, earlier: float, later: float) -> float | None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return None if later > self.done_s else later - earlier

    def settle(self) -> bool:
        self.settles += 1
        if not self.stuck:
            self.wait()
        return not self.stuck


class Bench:
    """A recorder on a `Device`, with what it is given to read."""

    def __init__(self, **changes: Any) -> None:
        self.device = Device()
        self.timeline = Timeline()
        self.started: list[dict[str, Any]] = []
        self.finished: list[dict[str, Any]] = []
        self.allocated, self.reserved = 1818 * MIB, 2100 * MIB
        self.effective = ModeRequest("full")
        self.standing = ModeRequest("full")
        self.streamed = 0
        self.identity: dict[str, Any] = dict(IDENTITY)
        given: dict[str, Any] = {
            "clock": self.device,
            "memory": lambda: (self.allocated, self.reserved),
            "mode_state": self.state,
            "identity": lambda: self.identity,
            "on_started": self.started.append,
            "on_finished": self.finished.append,
            "monotonic": self.device.monotonic,
            "utc_now": lambda: datetime(2026, 1, 31, 23, 59, 59, 250_000, tzinfo=timezone.utc),
        }
        self.recorder = Recorder(self.timeline, **{**given, **changes})

    def state(self) -> dict[str, Any]:
        return {
            "standing": self.standing.to_json(),
            "effective": self.effective.to_json(),
            "streamed_bytes": self.streamed,
        }

    def switch(self, to: ModeRequest, step: int | None, duration_s: float = 0.05, reason: str = "asked for in mid-job") -> None:
        """What the controller does at a boundary, after the recorder has heard of it."""
        before, self.effective, self.streamed = self.effective, to, 0
        self.device.wait()
        self.device.idle(duration_s)
        self.device.queued_s = self.device.host_s
        session_id = self.recorder.session_id
        self.timeline.append(
            ModeChanged(self.device.host_s, session_id, step, before.infotext(), to.infotext(), reason, False, duration_s)
        )

    def steps(self, durations_s: list[float], *, pass_name: str = "base", image: int = 0, switches: Any = None) -> None:
        """One pass. switches: step index to the mode that is entered there."""
        self.recorder.phase_started("denoise")
        for index, duration_s in enumerate(durations_s):
            self.recorder.step_started(StepInfo(index, len(durations_s), pass_name, image))
            if switches and index in switches:
                self.switch(switches[index], index)
            self.recorder.call_started()
            self.device.work(duration_s)
            if self.effective.mode == "lowvram":
                self.streamed += 1639 * MIB
                self.allocated, self.reserved = 700 * MIB, 900 * MIB
            else:
                self.allocated, self.reserved = 1818 * MIB + index * MIB, 2100 * MIB

    def phase(self, name: str, duration_s: float) -> None:
        self.recorder.phase_started(name)
        self.device.work(duration_s)

    def start(self, mode: ModeRequest | None = None, **request: Any) -> None:
        self.recorder.job_started(JobInfo({**REQUEST, **request}, mode))

    def finish(self, status: str = "ok", error: str | None = None) -> dict[str, Any]:
        self.recorder.job_finished(status, error)
        return self.finished[-1]


def plain_session(steps: int = 4, step_s: float = 0.05) -> dict[str, Any]:
    """A short job, recorded whole."""
    bench = Bench()
    bench.start(steps=steps)
    bench.phase("encode", 0.02)
    bench.steps([step_s] * steps)
    bench.phase("decode", 0.1)
    return bench.finish()


def rich_session() -> dict[str, Any]:
    """Two batches with a hires pass each and three switches of the mode."""
    lean, free = ModeRequest("lowvram", 0), ModeRequest("full")
    bench = Bench()
    bench.start(n_iter=2, hires={"width": 1024, "height": 1024, "steps": 8, "scale": 2.0})
    for image in range(2):
        bench.phase("encode", 0.04)
        wave = [0.042 + 0.004 * ((7 * index) % 5) / 5 for index in range(20)]
        bench.steps([0.31, *wave[1:]] if image == 0 else wave, image=image, switches={8: lean} if image == 0 else None)
        bench.phase("other", 0.06)
        hires = [0.155 + 0.01 * (index % 3) for index in range(8)]
        bench.steps(hires, pass_name="hires", image=image, switches={4: free if image == 0 else lean})
        bench.phase("decode", 0.35)
    return bench.finish()
