"""What the accordion's fields mean. Pure: also a host without a page uses it."""

from __future__ import annotations

from vram_pilot.settings import NOT_ACCELERATED, ModeRequest, parse_mode_request

#: The accordion's first choice: the job asks for nothing itself.
STANDING = "(standing mode)"


def request_from_fields(mode: object, budget: object = None, accelerate: object = "off") -> ModeRequest | None:
    """What a job asks for by its accordion, None for the standing mode.

    What is left over from another mode is ignored, as its field is hidden then. Raises UsageError or RefusedError.
    """
    if mode in (None, "", STANDING):
        return None
    asked = {"mode": mode}
    if takes_budget(mode):
        asked["budget_mib"] = budget
    if takes_accelerate(mode):
        asked["accelerate"] = accelerate or "off"
    return parse_mode_request(asked)


def takes_budget(mode: object) -> bool:
    """Whether the mode has a budget to choose."""
    return _name(mode) == "lowvram"


def takes_accelerate(mode: object) -> bool:
    """Whether a way to execute the denoiser can be chosen beside the mode."""
    return _name(mode) not in (None, "", STANDING, *NOT_ACCELERATED)


def _name(mode: object) -> object:
    """As `Setting.parse` reads it: a plot's axis and the API take what somebody has typed."""
    return mode.strip().lower() if isinstance(mode, str) else mode
