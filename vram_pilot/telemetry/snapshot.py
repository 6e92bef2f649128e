"""Takes down what torch's CUDA allocator does in a job, for PyTorch's own viewer of it. Only for those who ask for it.

The record is torch's: its last events in order, without the stacks of code that asked, so it names no file and no folder. Torch
records for the whole process; a recording that somebody else has begun is used as it is and left alone.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vram_pilot.session.privacy import base_name
from vram_pilot.session.snapshots import MAX_BYTES

log = logging.getLogger(__name__)

#: Events of the allocator that are kept, the last ones of a job: about 10 MB of a file.
MAX_EVENTS = 100_000
#: What PyTorch's viewer reads, whichever Python makes it.
_PROTOCOL = 4

Keep = Callable[[str, Callable[[], bytes]], None]


class SnapshotTaker:
    """Its methods run on the sampling thread and never raise. keep: gets a session's id, and a function that makes the file's
    content wherever it is called."""

    def __init__(self, device: torch.device, keep: Keep, memory: Any = torch.cuda.memory) -> None:
        self.enabled = False
        self._device, self._keep, self._memory = device, keep, memory
        self._recording = False

    def job_started(self) -> None:
        """Begins to record, unless it is off, CUDA has not started, or somebody records already. Again in a job: ignored."""
        if not self.enabled or self._recording or not self._is_possible() or self._somebody_records():
            return
        try:
            self._memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=MAX_EVENTS)
            self._recording = True
        except Exception:  # an older torch knows other words: then the snapshot is of the end alone
            log.debug("VRAM Pilot: the allocator's events cannot be recorded", exc_info=True)

    def job_finished(self, session_id: str | None) -> None:
        """Takes the snapshot, ends the recording. session_id: None when the job is not kept, and nothing is either."""
        try:
            if self.enabled and session_id is not None and self._is_possible():
                snapshot = self._memory._snapshot()
                self._keep(session_id, lambda: packed(snapshot))
        except Exception:  # the gate: a job must not end in an error of ours
            log.warning("VRAM Pilot: the allocator's snapshot could not be taken", exc_info=True)
        finally:
            self._stop()

    def _stop(self) -> None:
        recording, self._recording = self._recording, False
        if recording:
            try:
                self._memory._record_memory_history(enabled=None)
            except Exception:
                log.warning("VRAM Pilot: the recording of the allocator's events could not be ended", exc_info=True)

    def _is_possible(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.get_allocator_backend() == "native"

    @staticmethod
    def _somebody_records() -> bool:
        ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        return bool(ask is not None and ask())


def packed(snapshot: Mapping[str, Any], limit: int = MAX_BYTES) -> bytes:
    """The snapshot as PyTorch's viewer takes it, of at most `limit` bytes: the oldest events give way. Names of files are
    without their folders."""
    whole = _without_folders(snapshot)
    content = pickle.dumps(whole, protocol=_PROTOCOL)
    while len(content) > limit and any(whole["device_traces"]):
        whole["device_traces"] = [trace[len(trace) - len(trace) // 2 :] for trace in whole["device_traces"]]
        content = pickle.dumps(whole, protocol=_PROTOCOL)
    return content


def _without_folders(value: Any) -> Any:
    """A copy in which each stack frame names its file only."""
    if isinstance(value, Mapping):
        return {
            key: base_name(entry) if key == "filename" and isinstance(entry, str) else _without_folders(entry)
            for key, entry in value.items()
        }
    return [_without_folders(entry) for entry in value] if isinstance(value, list) else value
