"""What the modes that move weights have in common."""

from __future__ import annotations

from vram_pilot.hosts.base import Host
from vram_pilot.modes.base import ModeReport, Refusal
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.bank import WeightBank

#: Kinds of devices whose tensors a weight in main memory may be pointed at, and back. ROCm counts as cuda.
KINDS = ("cpu", "cuda", "mps", "xpu")


class MovingMode:
    """serial_previews: components are not always on the device, so previews must be decoded on the sampling thread."""

    name = ""
    serial_previews = True

    def check(self, host: Host, request: ModeRequest, bank: WeightBank) -> Refusal | None:
        reason, kind = host.obstacle(), host.device().type
        if reason is None and kind not in KINDS:
            reason = f"weights on a device of the kind {kind} cannot be moved by us"
        if reason is None and request.accelerate == "graph" and kind != "cuda":
            reason = f"CUDA graphs need a CUDA device, and this host computes on {kind}"
        if reason is None:
            reason = bank.obstacle(host.components())
        return None if reason is None else Refusal(reason)

    def activate(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        host.take_over_offload(self.serial_previews)
        bank.attach(host)
        try:
            self.place(host, request, bank)
            if request.accelerate == "graph":
                bank.capture(host)
        except BaseException:
            bank.park()
            raise

    def place(self, host: Host, request: ModeRequest, bank: WeightBank) -> None:
        """Brings the parked components to where this mode wants them."""
        raise NotImplementedError

    def deactivate(self, host: Host, bank: WeightBank) -> None:
        bank.park()

    def report(self, bank: WeightBank) -> ModeReport:
        memory, runner = bank.memory, bank.runner
        notes: tuple[str, ...] = () if memory.note is None else (memory.note,)
        if runner is not None and runner.reason is not None:
            notes += (f"The denoiser runs without its graph: {runner.reason}.",)
        return ModeReport(
            resident_bytes=bank.resident_denoiser_bytes(),
            slot_bytes=bank.slot_bytes,
            streamed_bytes=bank.streamed_bytes,
            prefetch_misses=bank.prefetch_misses,
            graph_bytes=0 if runner is None else runner.pool_bytes,
            graph_replays=0 if runner is None else runner.replays,
            pinned_bytes=memory.pinned_bytes,
            pageable_bytes=memory.pageable_bytes,
            notes=notes,
        )
