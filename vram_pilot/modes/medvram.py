"""One component on the device at a time."""

from __future__ import annotations

from vram_pilot.hosts.base import Host
from vram_pilot.modes.moving import MovingMode
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank


class MedVram(MovingMode):
    name = "medvram"

    def place(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        bank.swap([component.name for component in host.components()])
