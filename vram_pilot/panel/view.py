"""The accordion and the tab, for gradio 3.41 to 4.40."""

from __future__ import annotations

from typing import Any

import gradio as gr

from vram_pilot.panel.base import PanelApp
from vram_pilot.panel.fields import STANDING, takes_accelerate, takes_budget
from vram_pilot.panel.page import tab_html
from vram_pilot.settings import ACCELERATE, BUDGET, BUILT_ACCELERATES, BUILT_MODES, MODE, Setting


def accordion(is_img2img: bool) -> list[Any]:
    """The accordion's fields, in the order of `fields.request_from_fields`. Called while the host builds its page."""
    prefix = f"vram_pilot_{'img2img' if is_img2img else 'txt2img'}"
    with gr.Accordion("VRAM Pilot", open=False, elem_id=f"{prefix}_accordion"):
        with gr.Row():
            mode = gr.Dropdown([STANDING, *BUILT_MODES], value=STANDING, **_texts(MODE), elem_id=f"{prefix}_mode")
            budget = gr.Textbox(
                "", placeholder="automatic", visible=False, max_lines=1, **_texts(BUDGET), elem_id=f"{prefix}_budget"
            )
            accelerate = gr.Dropdown(
                list(BUILT_ACCELERATES),
                value=ACCELERATE.default,
                visible=False,
                **_texts(ACCELERATE),
                elem_id=f"{prefix}_accelerate",
            )
    mode.change(fn=_fields_for, inputs=[mode], outputs=[budget, accelerate], queue=False, show_progress="hidden")
    return [mode, budget, accelerate]


def _texts(setting: Setting) -> dict[str, str]:
    return {"label": setting.label, "info": setting.help}


def _fields_for(mode: str) -> tuple[Any, Any]:
    """The budget's and the accelerate field are there when the mode has such a choice."""
    choice = takes_accelerate(mode) and len(BUILT_ACCELERATES) > 1
    return gr.update(visible=takes_budget(mode)), gr.update(visible=choice)


def tab(app: PanelApp) -> gr.Blocks:
    """The tab's page; the script fills it in. `app` is asked for nothing until somebody looks."""
    with gr.Blocks(analytics_enabled=False) as blocks:
        gr.HTML(tab_html(), elem_id="vram_pilot_tab")
    return blocks
