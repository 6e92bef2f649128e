"""What the accordion's fields mean. Pure: also a host without a page uses it."""

from __future__ import annotations

from vram_pilot.settings import ModeRequest, parse_mode_request

#: The accordion's first choice: the job asks for nothing itself.
STANDING = "(standing mode)"


def request_from_fields(mode: object, budget: object = None, accelerate: object = "off") -> ModeRequest | None:
    """What a job asks for by its accordion, None for the standing mode.

    A budget left over from another mode is ignored, as its field is hidden then. Raises UsageError or RefusedError.
    """
    if mode in (None, "", STANDING):
        return None
    asked = {"mode": mode, "accelerate": accelerate or "off"}
    return parse_mode_request({**asked, "budget_mib": budget} if mode == "lowvram" else asked)
