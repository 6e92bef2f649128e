"""When to ask again for what failed. Standard library only."""

from __future__ import annotations

#: Errors in a row that are taken for passing ones: the next reading is tried as if nothing had been.
PATIENCE = 3
FIRST_S = 1.0
LONGEST_S = 30.0
#: What is not supported may be so after a driver's update or another mode: asked again, rarely.
UNSUPPORTED_S = 60.0


class Backoff:
    """One thing's troubles. Belongs to one thread; times are monotonic seconds."""

    def __init__(self) -> None:
        self._errors = 0
        self._not_before_s = 0.0

    def ready(self, now_s: float) -> bool:
        return now_s >= self._not_before_s

    def failed(self, now_s: float, *, unsupported: bool = False) -> None:
        """Three errors in a row cost nothing; from then on the wait doubles, up to half a minute."""
        self._errors += 1
        if unsupported:
            self._not_before_s = now_s + UNSUPPORTED_S
        elif self._errors > PATIENCE:
            self._not_before_s = now_s + min(FIRST_S * 2 ** (self._errors - PATIENCE - 1), LONGEST_S)

    def worked(self) -> None:
        self._errors = 0
        self._not_before_s = 0.0
