"""The instruments there are, in one tuple, and the pump that reads them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vram_pilot.session.records import Note
from vram_pilot.session.timeline import Timeline
from vram_pilot.telemetry.allocator import AllocatorSampler
from vram_pilot.telemetry.base import Sampler
from vram_pilot.telemetry.card import CardSampler, CardSession
from vram_pilot.telemetry.cards import Match
from vram_pilot.telemetry.cuda_device import DeviceFacts
from vram_pilot.telemetry.fields import fast_fields, slow_fields
from vram_pilot.telemetry.memory_map import MapSampler
from vram_pilot.telemetry.process import ProcessSampler
from vram_pilot.telemetry.pump import Pump
from vram_pilot.telemetry.segments import SegmentsSampler

log = logging.getLogger(__name__)

#: Seconds between readings: of what is cheap and moves fast, unless the user sets another; and of the rest.
FAST_S = 0.25
SLOW_S = 2.0


@dataclass(frozen=True)
class Telemetry:
    """The instruments of one program. fast: those of the fast tier; card: None when it computes on no NVIDIA card, and then
    without says so; map: None without a card of CUDA's."""

    pump: Pump
    fast: tuple[AllocatorSampler | CardSampler, ...]
    card: CardSession | None
    without: str | None = None
    map: MapSampler | None = None

    @contextlib.contextmanager
    def watching(self, memory_map: bool = False) -> Iterator[None]:
        """Somebody looks at the readings while the block runs, and at the map of torch's blocks too if so said. Any thread."""
        with contextlib.ExitStack() as stack:
            if memory_map and self.map is not None:
                stack.enter_context(self.map.watching())
            stack.enter_context(self.pump.watching())
            yield

    def set_period(self, fast_s: float) -> None:
        """Seconds between readings of the fast tier, from the next one on. Any thread."""
        for sampler in self.fast:
            sampler.period_s = fast_s

    def state(self) -> dict[str, Any]:
        """Whether readings are taken, the card's facts, and why something is missing. Any thread."""
        notes = [self.without, *(sampler.note for sampler in self.pump.samplers)]
        return {
            "running": self.pump.running,
            "card": self.card is not None,
            "facts": {} if self.card is None else dict(self.card.facts),
            "notes": list(dict.fromkeys(note for note in notes if note is not None)),
        }

    def match(self) -> Match | None:
        """Which of the driver's cards is read, None before the first reading. Any thread."""
        return None if self.card is None else self.card.match


def telemetry(
    timeline: Timeline, device: torch.device, *, fast_s: float = FAST_S, pinned: Callable[[], int | None] = lambda: None
) -> Telemetry:
    """The instruments for a program that computes on `device`, writing to `timeline`. Starts nothing."""

    def warn(text: str) -> None:
        log.warning("VRAM Pilot: %s", text)
        timeline.append(Note(time.monotonic(), None, text))

    card, without, memory_map = None, None, None
    allocator = AllocatorSampler(device, fast_s, pinned)
    fast: tuple[AllocatorSampler | CardSampler, ...] = (allocator,)
    samplers: tuple[Sampler, ...] = (allocator, ProcessSampler(SLOW_S))
    if device.type == "cuda":
        memory_map = MapSampler(device, timeline)
        samplers += (SegmentsSampler(device, SLOW_S, warn=warn), memory_map)
    if device.type != "cuda" or torch.version.hip is not None:
        what = "a card of AMD's" if device.type == "cuda" else str(device)
        without = f"This program computes on {what}: there is no NVIDIA card to read."
    else:
        card = CardSession(DeviceFacts(device), os.environ, has_context=torch.cuda.is_initialized, warn=warn)
        fast = (allocator, CardSampler("card", fast_s, fast_fields(), card))
        samplers = (*fast, CardSampler("card-slow", SLOW_S, slow_fields(), card, facts=True), *samplers[1:])
    return Telemetry(Pump(timeline, samplers, derive=outside_torch), fast, card, without, memory_map)


def outside_torch(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """What is in use on the card and is not torch's: other processes and the driver. Nothing where no card was read."""
    if "gpu_used_bytes" not in values:
        return {}
    used, reserved = values["gpu_used_bytes"], values.get("reserved_bytes")
    return {"gpu_outside_torch_bytes": None if used is None or reserved is None else max(used - reserved, 0)}
