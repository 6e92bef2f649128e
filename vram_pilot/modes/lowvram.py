"""The denoiser's weights pass through slots while it runs, the other components come in one at a time."""

from __future__ import annotations

from vram_pilot.errors import RefusedError
from vram_pilot.hosts.base import Host
from vram_pilot.modes.moving import MovingMode
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank
from vram_pilot.units import MIB


class LowVram(MovingMode):
    name = "lowvram"

    def place(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        components = host.components()
        denoiser = next((component for component in components if component.role == "denoiser"), None)
        if denoiser is None:
            raise RefusedError("This model has no denoiser that could be streamed")
        bank.swap([component.name for component in components if component is not denoiser], beside=denoiser.name)
        bank.stream(denoiser.name, (request.budget_mib or 0) * MIB, captured=request.accelerate == "graph")
