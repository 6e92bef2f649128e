"""The accordion and the tab, for gradio 3.41 to 4.40."""

from __future__ import annotations

from typing import Any

import gradio as gr

from vram_pilot.panel.base import PanelApp
from vram_pilot.panel.fields import STANDING
from vram_pilot.panel.page import tab_html
from vram_pilot.settings import ACCELERATE, BUDGET, BUILT_ACCELERATES, BUILT_MODES, MODE


def accordion(is_img2img: bool) -> list[Any]:
    """The accordion's fields, in the order of `fields.request_from_fields`. Called while the host builds its page."""
    prefix = f"vram_pilot_{'img2img' if is_img2img else 'txt2img'}"
    with gr.Accordion("VRAM Pilot", open=False, elem_id=f"{prefix}_accordion"):
        with gr.Row():
            mode = gr.Dropdown(
                [STANDING, *BUILT_MODES], value=STANDING, label=MODE.label, info=MODE.help, elem_id=f"{prefix}_mode"
            )
            budget = gr.Textbox(
                value="",
                label=BUDGET.label,
                info=BUDGET.help,
                placeholder="automatic",
                visible=False,
                max_lines=1,
                elem_id=f"{prefix}_budget",
            )
        fields = [mode, budget]
        if len(BUILT_ACCELERATES) > 1:
            fields.append(
                gr.Dropdown(
                    list(BUILT_ACCELERATES),
                    value=ACCELERATE.default,
                    label=ACCELERATE.label,
                    info=ACCELERATE.help,
                    elem_id=f"{prefix}_accelerate",
                )
            )
    mode.change(fn=_budget_for, inputs=[mode], outputs=[budget], queue=False, show_progress="hidden")
    return fields


def _budget_for(mode: str) -> Any:
    """The budget's field is there when the mode has one."""
    return gr.update(visible=mode == "lowvram")


def tab(app: PanelApp) -> gr.Blocks:
    """The tab's page; the script fills it in. `app` is asked for nothing until somebody looks."""
    with gr.Blocks(analytics_enabled=False) as blocks:
        gr.HTML(tab_html(), elem_id="vram_pilot_tab")
    return blocks
