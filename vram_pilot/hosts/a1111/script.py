"""The WebUI's view of us: one always-visible script with the accordion, the infotext field and the job's own arguments."""

from __future__ import annotations

import logging
from typing import Any

from modules import scripts

from vram_pilot.errors import VramPilotError
from vram_pilot.hosts.a1111 import entry
from vram_pilot.panel import options, view
from vram_pilot.panel.fields import request_from_fields, takes_accelerate, takes_budget
from vram_pilot.settings import ACCELERATE, BUDGET, MODE, ModeRequest, parse_mode_request

log = logging.getLogger(__name__)

#: Where an X/Y/Z axis leaves its values on the job.
AXIS_VALUES = "vram_pilot_axis"


class VramPilotScript(scripts.Script):
    """`alwayson_scripts`: {"VRAM Pilot": {"args": [{"mode": "lowvram", "budget_mib": 512}]}}, or the accordion's values."""

    def title(self) -> str:
        return "VRAM Pilot"

    def show(self, is_img2img: bool) -> Any:
        return scripts.AlwaysVisible if not entry.app().off else False

    def ui(self, is_img2img: bool) -> list[Any]:
        controls = view.accordion(is_img2img)
        self.infotext_fields = options.infotext_fields(controls)
        self.paste_field_names = [MODE.infotext]
        return controls

    def before_process(self, p: Any, *args: Any) -> None:
        app = entry.app()
        mode, refusal = None, None
        try:
            mode = job_request(p, args, app.controller.standing_here())
        except VramPilotError as error:
            refusal = f"{error} The job runs in the standing mode."
        except Exception as error:  # the gate to the WebUI: whatever a caller sent, the job is still told of
            log.exception("VRAM Pilot: the job's arguments could not be read")
            refusal = f"The job's arguments could not be read ({type(error).__name__}). The job runs in the standing mode."
        entry.host().jobs.before_process(p, mode)
        if refusal is not None:
            app.controller.refuse(refusal)
            _say(p, refusal)

    def process(self, p: Any, *args: Any) -> None:
        entry.host().jobs.prepared()  # first: a mode may be entered by it that had no model before
        refusal = entry.app().controller.refusal()
        if refusal is not None:
            _say(p, refusal)

    def before_process_batch(self, p: Any, *args: Any, **kwargs: Any) -> None:
        entry.host().jobs.before_batch(int(kwargs.get("batch_number", 0)))

    def post_sample(self, p: Any, *args: Any) -> None:
        entry.host().jobs.after_sampling()

    def postprocess_batch(self, p: Any, *args: Any, **kwargs: Any) -> None:
        text = entry.app().infotext()
        if text is None:
            p.extra_generation_params.pop(MODE.infotext, None)  # an X/Y/Z cell shares the mapping with the one before it
        else:
            p.extra_generation_params[MODE.infotext] = text
        entry.host().jobs.after_batch()


def _say(p: Any, text: str) -> None:
    """Below the pictures, once however often it is said."""
    p.comment(f"VRAM Pilot: {text}")


def job_request(p: Any, args: tuple[Any, ...], standing: ModeRequest) -> ModeRequest | None:
    """What this job asks for: an X/Y/Z axis, then the arguments; None when it asks for nothing.

    Raises UsageError or RefusedError.
    """
    axis: dict[str, Any] = getattr(p, AXIS_VALUES, {})
    if args and isinstance(args[0], dict):
        wanted = {**args[0], **axis}
    else:
        asked = request_from_fields(*args[:3]) if args else None
        if not axis:
            return asked
        wanted = {**(asked.to_json() if asked is not None else {}), **axis}
    if "budget_mib" in wanted and "mode" not in wanted and standing.mode != "lowvram":
        wanted["mode"] = "lowvram"  # a budget axis alone
    if axis:
        _drop_what_is_not_taken(wanted, wanted.get("mode", standing.mode))
    return parse_mode_request(wanted, standing)


def _drop_what_is_not_taken(wanted: dict[str, Any], mode: object) -> None:
    """A cell of a plot leaves out what the other axis or the accordion chose for another mode."""
    if not takes_budget(mode):
        wanted.pop(BUDGET.key, None)
    if not takes_accelerate(mode):
        wanted.pop(ACCELERATE.key, None)
