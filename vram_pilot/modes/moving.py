"""What the modes that move weights have in common."""

from __future__ import annotations

from vram_pilot.hosts.base import Host
from vram_pilot.modes.base import ModeReport, Refusal
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank


class MovingMode:
    """serial_previews: components are not always on the device, so previews must be decoded on the sampling thread."""

    name = ""
    serial_previews = True

    def check(self, host: Host, request: ModeRequest, bank: WeightBank) -> Refusal | None:
        reason = host.obstacle()
        if reason is None:
            reason = bank.obstacle(host.components())
        return None if reason is None else Refusal(reason)

    def activate(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        host.take_over_offload(self.serial_previews)
        bank.attach(host)
        try:
            self.place(host, request, bank)
        except BaseException:
            bank.park()
            raise

    def place(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        """Brings the parked components to where this mode wants them."""
        raise NotImplementedError

    def deactivate(self, host: Host, bank: WeightBank) -> None:
        bank.park()

    def report(self, bank: WeightBank) -> ModeReport:
        memory = bank.memory
        return ModeReport(
            resident_bytes=bank.resident_denoiser_bytes(),
            slot_bytes=bank.slot_bytes,
            streamed_bytes=bank.streamed_bytes,
            prefetch_misses=bank.prefetch_misses,
            pinned_bytes=memory.pinned_bytes,
            pageable_bytes=memory.pageable_bytes,
            notes=() if memory.note is None else (memory.note,),
        )
