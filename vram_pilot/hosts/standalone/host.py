"""The `Host` of the program's own page and command line.

One job at a time, whoever asks for it (page, API, command line): all of them wait in one queue. Weights are loaded to main
memory and go to the device when a job or a mode needs them there, so that a lean mode never needs room for the whole model.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vram_pilot import __version__
from vram_pilot.errors import HostError, UsageError, VramPilotError
from vram_pilot.hosts.base import Capabilities, Component, HostListener, JobInfo, ModelInfo
from vram_pilot.hosts.standalone import checkpoint
from vram_pilot.hosts.standalone.architectures import BUILT_IN
from vram_pilot.hosts.standalone.models import Model, build_random
from vram_pilot.hosts.standalone.pipeline import InterruptedJob, Run, txt2img
from vram_pilot.hosts.standalone.request import ImageRequest, infotext
from vram_pilot.hosts.telling import Teller
from vram_pilot.oom import describe, is_out_of_memory
from vram_pilot.settings import ModeRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """images and infotexts go together; of a job that did not come to its end, the batches that did are there.

    status: "ok", "interrupted", "oom" or "error". error: what to tell the user, None unless status is "oom" or "error".
    """

    images: tuple[Image.Image, ...]
    infotexts: tuple[str, ...]
    status: str = "ok"
    error: VramPilotError | None = None


@dataclass
class _Found:
    images: list[Image.Image] = field(default_factory=list)
    infotexts: list[str] = field(default_factory=list)


def choose_device(wanted: str | None) -> torch.device:
    """The named device, or the best one that this machine has. Raises UsageError when it has no such device."""
    if wanted is None:
        found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(found, 0) if found == "cuda" else torch.device(found)
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError("There is no such device", found=wanted, do="Use cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda":
        index, count = device.index or 0, torch.cuda.device_count()
        if index >= count:
            raise UsageError("There is no such CUDA device here", found=f"{wanted}, {count} devices", do="Use --device cpu.")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("MPS is not available here", found=wanted, do="Use --device cpu.")
    if device.type not in ("cpu", "mps"):
        raise UsageError("This device is not supported", found=wanted, do="Use cpu, cuda, cuda:N or mps.")
    return device


def check_model_name(name: str) -> None:
    """Raises UsageError unless `name` is a built-in model or a checkpoint that can be loaded; reads at most a file's header."""
    if name not in BUILT_IN:
        checkpoint.inspect(Path(name))


class StandaloneHost:
    """extra_infotext: fields to add to the parameters of each image. on_note: told what the user should know about an image."""

    name = "standalone"
    version = __version__

    def __init__(self, device: str | None = None) -> None:
        self._device = choose_device(device)
        self._queue = threading.Lock()
        self._tell = Teller()
        self._stop = threading.Event()
        self._model: Model | None = None
        self._running = False
        self._placed = False  # every component was moved to the device by this host, and no mode has taken over since
        self._taken_over = False
        self.extra_infotext: Callable[[], Mapping[str, str]] = dict
        self.on_note: Callable[[str], None] = log.warning

    # ------------------------------------------------------------------------------------------------ as a Host

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def device(self) -> torch.device:
        return self._device

    def model(self) -> ModelInfo | None:
        model = self._model
        return None if model is None else model.info

    def components(self) -> tuple[Component, ...]:
        model = self._model
        return () if model is None else model.components()

    def obstacle(self) -> str | None:
        return None

    def computation_state(self) -> None:
        """The denoiser reads nothing besides its inputs and weights."""

    def take_over_offload(self, serial_previews: bool) -> None:
        """This host moves nothing by itself once a mode has taken over."""
        self._taken_over, self._placed = True, False

    def give_back_offload(self) -> None:
        """Everything goes to the device, which is how this host works by itself: at once within a job, else when one starts, so
        that leaving a lean mode needs no room for the whole model."""
        self._taken_over = False
        if self._running:
            self._place()

    def subscribe(self, listener: HostListener) -> Callable[[], None]:
        return self._tell.subscribe(listener)

    def run_when_idle(self, work: Callable[[], None]) -> bool:
        if not self._queue.acquire(blocking=False):
            return False
        try:
            work()
        finally:
            self._queue.release()
        return True

    def interrupt(self) -> None:
        self._stop.set()

    # ------------------------------------------------------------------------------------------------ what it offers

    def load(self, name: str) -> tuple[str, ...]:
        """Loads a built-in model or a .safetensors file in place of the present one, when no job runs; gives notes on the file.

        Any thread; waits for a running job. Raises UsageError before anything has changed, UsageError or HostError later, and
        then no model is loaded.
        """
        check_model_name(name)
        dtype = torch.float32 if self._device.type == "cpu" else torch.float16
        with self._queue:
            self._tell.model_changing()
            self._model, self._placed, self._taken_over = None, False, False
            try:
                self._model = build_random(name, dtype) if name in BUILT_IN else checkpoint.load(Path(name), dtype)
            finally:
                self._tell.model_changed()
            return self._model.notes

    def generate(self, request: ImageRequest, mode: ModeRequest | None = None) -> Result:
        """Runs one job and waits for it. mode: what this job asks for, None for the standing mode. Any thread.

        Raises HostError without a model. A job that fails does not raise, and its memory is free when this returns.
        """
        with self._queue:
            if self._model is None:
                raise HostError("No model is loaded", do="Load one first.")
            self._stop.clear()
            status, failure, text, found = "ok", None, None, _Found()
            self._running = True
            self._tell.job_started(JobInfo(request.to_job(), mode))
            try:
                self._generate(request, found)
            except InterruptedJob:
                status = "interrupted"
            except Exception as error:
                status = "oom" if is_out_of_memory(error) else "error"
                failure, text = _for_user(error, status), describe(error)
            except BaseException:
                self._running = False
                self._tell.job_finished("interrupted")
                raise
            self._running = False
            # here the exception is gone, and with it the frames that held the job's tensors
            if failure is not None and self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._tell.job_finished(status, text)
            return Result(tuple(found.images), tuple(found.infotexts), status, failure)

    # ------------------------------------------------------------------------------------------------ inside

    def _generate(self, request: ImageRequest, found: _Found) -> None:
        model = self._model
        assert model is not None
        if not self._taken_over and not self._placed:
            self._tell.phase_started("load")
            self._place()
        with _deterministic():
            for images in txt2img(Run(model, request, self._device, self._tell, self._stop.is_set, self.on_note)):
                for image in images:
                    index = len(found.images)
                    found.images.append(image)
                    found.infotexts.append(infotext(request, index, model.info.name, model.info.digest, self.extra_infotext()))

    def _place(self) -> None:
        if self._model is None or self._placed:
            return
        for component in self._model.components():
            component.module.to(self._device)
        self._placed = True


def _for_user(error: Exception, status: str) -> VramPilotError:
    """The error as one of ours, without the frames that `error` holds."""
    if isinstance(error, VramPilotError):
        return type(error)(error.what, found=error.found, do=error.do)
    if status == "oom":
        advice = "Use a leaner mode (medvram, lowvram) or a smaller size."
        return VramPilotError("The generation ran out of memory", found=describe(error), do=advice)
    log.error("VRAM Pilot: the generation failed", exc_info=error)
    return VramPilotError("The generation failed", found=describe(error), do="The log has the details.")


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """cuDNN must not choose kernels by a race, or the same seed could give other pixels in the next run."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def png_bytes(image: Image.Image, parameters: str) -> bytes:
    """The image as a PNG with its parameters, as WebUIs write it; the same for the same image and parameters."""
    info = PngInfo()
    info.add_text("parameters", parameters)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()
