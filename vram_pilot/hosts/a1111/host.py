"""The WebUI as a `Host`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch
from modules import devices, lowvram, sd_models, sd_unet, shared
from modules.call_queue import queue_lock

from vram_pilot.hosts.a1111 import computation
from vram_pilot.hosts.a1111 import model as parts
from vram_pilot.hosts.a1111.jobs import Jobs
from vram_pilot.hosts.a1111.offload import NativeOffload
from vram_pilot.hosts.base import Capabilities, Component, HostListener, ModelInfo

log = logging.getLogger(__name__)


class A1111Host:
    """One for the life of the process; `subscribe` and its answer may be called again at each Reload UI."""

    name = "AUTOMATIC1111"

    def __init__(self, version: str) -> None:
        self.version = version
        self._offload = NativeOffload(lowvram, shared)
        self.jobs = Jobs(self._offload.is_taken)

    def capabilities(self) -> Capabilities:
        return Capabilities(native_offload=True, image_to_image=True, settings=True)

    def device(self) -> torch.device:
        device: torch.device = devices.device
        if device == torch.device("cuda"):  # without an index, it is whichever is current
            return torch.device("cuda", torch.cuda.current_device())
        return device

    @staticmethod
    def loaded() -> Any:
        """The model that is loaded; never loads one."""
        model = sd_models.model_data.sd_model
        if model is None or getattr(model, "sd_checkpoint_info", None) is None:
            return None
        return model

    def model(self) -> ModelInfo | None:
        model = self.loaded()
        return None if model is None else parts.describe(model)

    def components(self) -> tuple[Component, ...]:
        model = self.loaded()
        return () if model is None else parts.components(model)

    def obstacle(self) -> str | None:
        if sd_unet.current_unet is not None:
            label = getattr(sd_unet.current_unet_option, "label", None) or "another extension's SD Unet"
            return f"the denoiser is executed by {label} (setting SD Unet)"
        model = self.loaded()
        return None if model is None else self._offload.obstacle(model)

    def computation_state(self) -> Hashable:
        return computation.state(self.loaded())

    def take_over_offload(self, serial_previews: bool) -> None:
        self._offload.take_over(self.loaded(), serial_previews)

    def give_back_offload(self) -> None:
        self._offload.give_back()

    def subscribe(self, listener: HostListener) -> Callable[[], None]:
        return self.jobs.start(listener)

    def run_when_idle(self, work: Callable[[], None]) -> bool:
        loading = sd_models.model_data.lock  # held while the first model is loaded, which is done outside the queue
        if not queue_lock.acquire(blocking=False):
            return False
        try:
            if self.jobs.running() or not loading.acquire(blocking=False):  # a script may generate without the queue
                return False
            try:
                self.jobs.close_lost()
                work()
            finally:
                loading.release()
        finally:
            queue_lock.release()
        return True

    def interrupt(self) -> None:
        shared.state.interrupt()
