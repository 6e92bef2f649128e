"""Ties a pipeline to VRAM Pilot, and unties it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from vram_pilot.app import App
from vram_pilot.control import ModeAnswer
from vram_pilot.errors import HostError, RefusedError
from vram_pilot.hosts.diffusers.checks import check_free, check_kind
from vram_pilot.hosts.diffusers.host import DiffusersHost
from vram_pilot.paths import default_state_dir
from vram_pilot.settings import ModeRequest, parse_mode_request


def attach(
    pipe: Any,
    *,
    mode: str = "as-launched",
    budget_mib: int | None = None,
    accelerate: str = "off",
    device: str | torch.device | None = None,
    state_dir: Path | str | None = None,
    settings: dict[str, Any] | None = None,
) -> Attachment:
    """Puts `pipe` under VRAM Pilot's modes until `detach`.

    mode, budget_mib, accelerate: the standing mode to begin with. device: where to compute, the pipeline's own by default; with
    "cuda" and a pipeline in main memory, a lean mode never needs room for the whole model. state_dir: where sessions are kept,
    by default the platform's folder for a program's data. settings: see `vram_pilot.settings`, for example
    {"record_sessions": False}.
    Raises UsageError for another kind of pipeline or a bad option, RefusedError for a pipeline that cannot be attached, and
    then nothing has changed.
    """
    check_kind(pipe)
    check_free(pipe)
    request = _request(mode, budget_mib, accelerate)
    host = DiffusersHost(pipe, torch.device(device) if device is not None else pipe.device)
    app = App(host, Path(state_dir) if state_dir is not None else default_state_dir(), settings=settings)
    host.attach()
    try:
        app.start()
        app.controller.request(request, "standing")
    except BaseException:
        app.stop()
        host.detach()
        raise
    return Attachment(host, app)


def _request(mode: str, budget_mib: int | None, accelerate: str) -> ModeRequest:
    return parse_mode_request({"mode": mode, "budget_mib": budget_mib, "accelerate": accelerate})


class Attachment:
    """A pipeline under VRAM Pilot. Also a context manager that detaches at its end."""

    def __init__(self, host: DiffusersHost, app: App) -> None:
        self.host = host
        self.app = app
        self._attached = True

    def request(
        self, mode: str, budget_mib: int | None = None, *, accelerate: str = "off", scope: str | None = None
    ) -> ModeAnswer:
        """Changes the mode: at once between jobs, else at the next step. scope: "job" or "standing". Any thread.

        Raises UsageError, RefusedError or ActivationError, and then the mode in force has not changed.
        """
        if not self._attached:
            raise RefusedError("The pipeline is detached", do="Attach it again.")
        return self.app.controller.request(_request(mode, budget_mib, accelerate), scope)

    def last_session(self) -> dict[str, Any] | None:
        """The record of the newest job that is kept, None when there is none."""
        self.app.store.flush()
        found = self.app.store.list(limit=1)
        return self.app.store.get(found[0]["id"]) if found else None

    def detach(self) -> None:
        """Gives the pipeline back as it was. Idempotent.

        Raises RefusedError while a job runs, HostError when the weights cannot go back to where they were; it stays attached
        then.
        """
        if not self._attached:
            return
        if not self.host.run_when_idle(lambda: None):
            raise RefusedError("A generation is running", do="Detach when it has ended.")
        self.app.stop()
        if self.app.controller.effective().mode != "as-launched":
            raise HostError(
                "The weights could not be put back to where they were",
                found=self.app.controller.refusal(),
                do="Free memory and try again.",
            )
        self.host.detach()
        self._attached = False

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()
