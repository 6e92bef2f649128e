"""What a mode is.

Between two modes the weights are *parked*: no hook of ours is installed, and every component is whole, either on the device or
in its host copy. `activate` starts from there and `deactivate` ends there, so that a switch between two lean modes never passes
through a state that needs the whole model on the card. Going back to what the host does by itself is a mode too: `as-launched`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vram_pilot.hosts.base import Host
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank


@dataclass(frozen=True)
class Refusal:
    """Why a mode cannot be entered here now. reason: one clause; do: what the user can do about it, or None."""

    reason: str
    do: str | None = None

    def __str__(self) -> str:
        return self.reason if self.do is None else f"{self.reason}. {self.do}"


@dataclass(frozen=True)
class ModeReport:
    """Bytes of weights, as of now. resident: denoiser weights that stay on the device; slots: device buffers that streamed
    weights pass through; streamed: copied to the device since the mode was entered; graph: memory that captured calls keep,
    and how often one was replayed; pinned, pageable: host copies kept."""

    resident_bytes: int | None = None
    slot_bytes: int = 0
    streamed_bytes: int = 0
    prefetch_misses: int = 0
    graph_bytes: int = 0
    graph_replays: int = 0
    pinned_bytes: int = 0
    pageable_bytes: int = 0
    notes: tuple[str, ...] = ()


class Mode(Protocol):
    """Every method runs on the sampling thread, or on another one that holds the host's queue."""

    name: str

    def check(self, host: Host, request: ModeRequest, bank: WeightBank) -> Refusal | None:
        """Whether `activate` can work here. Changes nothing. Any thread."""

    def activate(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        """Enters the mode. After an exception the model is parked, as before."""

    def deactivate(self, host: Host, bank: WeightBank) -> None:
        """Leaves the mode; the model is parked. Never raises for a mode that was not entered."""

    def report(self, bank: WeightBank) -> ModeReport: ...
