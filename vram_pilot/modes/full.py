"""Every component stays on the device."""

from __future__ import annotations

from vram_pilot.hosts.base import Host
from vram_pilot.modes.moving import MovingMode
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank


class Full(MovingMode):
    name = "full"
    serial_previews = False

    def place(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        bank.load_all()
