"""The host does what its own flags say; nothing of ours touches a weight."""

from __future__ import annotations

from vram_pilot.hosts.base import Host
from vram_pilot.modes.base import ModeReport, Refusal
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank


class AsLaunched:
    name = "as-launched"

    def check(self, host: Host, request: ModeRequest, bank: WeightBank) -> Refusal | None:
        return None

    def activate(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        bank.release()
        host.give_back_offload()

    def deactivate(self, host: Host, bank: WeightBank) -> None:
        return None

    def report(self, bank: WeightBank) -> ModeReport:
        return ModeReport()
