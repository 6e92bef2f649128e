"""How the recorder tells time: marks that are set now and read later, so that no step waits for the device."""

from __future__ import annotations

import time
from typing import Any, Protocol


class StepClock(Protocol):
    """Marks belong to the thread that samples; `resolve` may be called from any thread, one call at a time."""

    def mark(self) -> Any:
        """A token for "here, in the order of the work". Costs microseconds and never waits."""

    def resolve(self, earlier: Any, later: Any) -> float | None:
        """Seconds from one token to the other, None while the work before `later` is not done.

        An answer uses `earlier` up: it must not be passed again. `later` may be passed once more, as `earlier`.
        """

    def settle(self) -> bool:
        """Waits, for a bounded time, until every token so far can be resolved. Not for the step path."""


class HostStepClock:
    """The host's own clock: right where work is done when the call returns (CPU), and for marks without a device."""

    def mark(self) -> float:
        return time.perf_counter()

    def resolve(self, earlier: float, later: float) -> float | None:
        return later - earlier

    def settle(self) -> bool:
        return True
