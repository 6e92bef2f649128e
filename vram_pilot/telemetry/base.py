"""What an instrument is. A failing reading hides only itself, and comes back by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Sampler(Protocol):
    """One source of readings. Its methods run on the one poller thread; `note` may be read from any."""

    name: str
    period_s: float

    @property
    def note(self) -> str | None:
        """Why something is missing, None when all is there."""

    def sample(self) -> Mapping[str, float | None]:
        """Metric name (docs/metrics.md) to value. What is not supported, or failed this time, is None; never raises."""

    def close(self) -> None:
        """Gives back what it holds; the next `sample` takes it again. Idempotent."""
