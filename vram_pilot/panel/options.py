"""Settings as gradio components of a host's own settings page, and the accordion's fields as infotext fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr

from vram_pilot.errors import VramPilotError
from vram_pilot.panel.fields import STANDING
from vram_pilot.settings import ACCELERATE, MODE, ModeRequest, Setting, parse_infotext


def is_offered(setting: Setting) -> bool:
    """A choice of one thing is no choice."""
    return len(setting.built) != 1


def setting_component(setting: Setting) -> tuple[Any, dict[str, Any]]:
    """The component's class and its arguments besides label and value."""
    if setting.kind == "choice":
        return gr.Dropdown, {"choices": list(setting.built or setting.choices)}
    if setting.kind == "bool":
        return gr.Checkbox, {}
    if setting.nullable:
        return gr.Textbox, {"max_lines": 1, "placeholder": "automatic"}
    step = 1 if setting.kind == "int" else 0.05
    if setting.maximum is not None and setting.maximum <= 1:
        return gr.Slider, {"minimum": setting.minimum, "maximum": setting.maximum, "step": step}
    return gr.Number, {"precision": 0} if setting.kind == "int" else {}


def infotext_fields(fields: list[Any]) -> list[tuple[Any, Any]]:
    """(component, function of the pasted parameters) for each of the accordion's fields."""
    return [(field, partial(_pasted, number)) for number, field in enumerate(fields)]


def _pasted(number: int, pasted: Mapping[str, Any]) -> str | None:
    """The field's new value; None leaves it as it is, for what is not a mode of ours, or a budget out of range."""
    text = pasted.get(str(MODE.infotext))
    if text is None:
        return (STANDING, "", ACCELERATE.default)[number]
    try:
        request: ModeRequest = parse_infotext(str(text))
    except VramPilotError:
        return None
    budget = "" if request.budget_mib is None else str(request.budget_mib)
    return (request.mode, budget, request.accelerate)[number]
