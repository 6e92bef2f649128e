"""The picture of torch's address space, column by column, while somebody watches it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from vram_pilot.session.records import MapColumn
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.backoff import Backoff
from vram_pilot.telemetry.columns import Layout, column, encode, lay_out
from vram_pilot.telemetry.segments import light_snapshot

log = logging.getLogger(__name__)

#: A column may be taken this often, and all columns together may take this share of the time.
PERIOD_S = 0.25
_SHARE = 0.0025
#: How much the newest column counts in the average cost of one when it was cheaper: some systems' clocks are coarser than that.
_NEWEST = 0.2
#: How long columns are taken after the last one who watched: a page that polls comes again before that.
_LINGER_S = 5.0
_NOT_STARTED = "Torch has not used the card yet."
_OTHER_BACKEND = "The allocator {} keeps no list of its blocks, so there is no map of them."
_NO_LIST = "This torch gives no list of its blocks ({}), so there is no map of them."


class MapSampler:
    """Writes its columns into the timeline itself and has no readings. Never raises. `watching`: any thread."""

    name = "allocator-map"
    note: str | None = None

    def __init__(
        self,
        device: torch.device,
        timeline: Timeline,
        *,
        snapshot: Callable[[], list[dict[str, Any]]] = light_snapshot,
        started: Callable[[], bool] = torch.cuda.is_initialized,
        backend: Callable[[], str] = torch.cuda.get_allocator_backend,
        monotonic: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        self.period_s = PERIOD_S
        self._index, self._timeline = device.index or 0, timeline
        self._snapshot, self._started, self._backend = snapshot, started, backend
        self._monotonic, self._busy = monotonic, busy
        self._lock = threading.Lock()
        self._watchers = 0
        self._wanted_until_s = 0.0
        self._not_before_s = 0.0
        self._cost_s = 0.0
        self._layout: Layout | None = None
        self._why = ""  # there is no list of blocks
        self._said: str | None = None
        self._troubles = Backoff()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody looks at the map while the block runs, and perhaps again soon after."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def sample(self) -> Mapping[str, float | None]:
        now_s = self._monotonic()
        if self._is_watched(now_s) and now_s >= self._not_before_s:
            if self._troubles.ready(now_s):
                self._take(now_s)
            else:
                self._say(now_s, self._why)
        return {}

    def close(self) -> None:
        self._layout = None
        self._troubles.worked()

    # ------------------------------------------------------------------------------------------------------------------

    def _change(self, watchers: int) -> None:
        with self._lock:
            self._watchers += watchers
            self._wanted_until_s = self._monotonic() + _LINGER_S
            self._said = None  # whoever has come now has not read it

    def _is_watched(self, now_s: float) -> bool:
        with self._lock:
            return self._watchers > 0 or now_s < self._wanted_until_s

    def _take(self, now_s: float) -> None:
        before_s = self._busy()
        try:
            if not self._started():
                self._say(now_s, _NOT_STARTED)
            elif self._backend() != "native":
                self._say(now_s, _OTHER_BACKEND.format(self._backend()))
            else:
                self._timeline.append(self._column(now_s))
                self._said = None
        except (RuntimeError, TypeError, LookupError, AttributeError, ValueError) as error:
            log.debug("VRAM Pilot: no map of torch's blocks", exc_info=error)
            self._troubles.failed(now_s, unsupported=True)
            self._why = _NO_LIST.format(type(error).__name__)
            self._say(now_s, self._why)
        else:
            self._troubles.worked()
        newest_s = self._busy() - before_s
        self._cost_s = max(newest_s, self._cost_s + _NEWEST * (newest_s - self._cost_s))
        self._not_before_s = now_s + max(PERIOD_S / 2, self._cost_s / _SHARE)

    def _column(self, now_s: float) -> MapColumn:
        segments = [segment for segment in self._snapshot() if segment.get("device", self._index) == self._index]
        self._layout = layout = lay_out(segments, self._layout)
        rows = column(segments, layout)
        held, active = encode(rows.held, layout.row_bytes), encode(rows.active, layout.row_bytes)
        return MapColumn(now_s, layout.row_bytes, layout.number, sum(rows.held), sum(rows.active), held, active)

    def _say(self, now_s: float, note: str) -> None:
        """Why there is no column, once for each who comes."""
        if note != self._said:
            self._said = note
            self._timeline.append(MapColumn(now_s, note=note))
