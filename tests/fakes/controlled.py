"""A host with its controller, and what both wrote down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.fakes.blocks import BLOCKS
from tests.fakes.host import FakeHost
from tests.fakes.state import differences, state_of
from vram_pilot.control import Controller
from vram_pilot.session.records import Note
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import ModeRequest

AS_LAUNCHED, FULL, MEDVRAM, LOWVRAM = ModeRequest(), ModeRequest("full"), ModeRequest("medvram"), ModeRequest("lowvram", 0)


class Controlled:
    """A host, its controller, and what they wrote down."""

    def __init__(self, state_dir: Path) -> None:
        self.timeline = Timeline()
        self.host = FakeHost(BLOCKS.make(0), BLOCKS)
        self.controller = Controller(self.host, self.timeline, state_dir)
        self.host.subscribe(self.controller)
        self.plain = self.host.generate()
        self.own = self.host.components()
        self.before = state_of(self.own)

    def records(self, kind: type) -> list[Any]:
        return [record for record in self.timeline.after(0).records if isinstance(record, kind)]

    def notes(self) -> str:
        return "\n".join(note.text for note in self.records(Note))

    def restored(self) -> bool:
        return differences(self.before, state_of(self.own)) == []

    def in_force_at_each_step(
        self, steps: int = 4, at_step: Callable[[int], None] = lambda step: None, **job: Any
    ) -> list[str]:
        """The modes under which the steps of a job were computed; the image must be the right one."""
        seen: list[str] = []
        denoiser = self.host.module("denoiser")
        look = denoiser.register_forward_pre_hook(lambda _module, _args: seen.append(self.controller.effective().mode))
        image = self.host.generate(steps, at_step=at_step, **job)
        look.remove()
        if steps == 3:
            assert torch.equal(image, self.plain)
        return seen


def at(number: int, work: Callable[[], object]) -> Callable[[int], None]:
    """`work` at the boundary of one step."""
    return lambda step: work() if step == number else None  # type: ignore[return-value]
