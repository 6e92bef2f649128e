"""The standalone host's own page: what to generate, the images, the accordion and the tab of VRAM Pilot.

For gradio 3.41 and 4.40. The page loads nothing from another server: gradio's own template would.
"""

from __future__ import annotations

import html
import logging
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import routes as gradio_routes

from vram_pilot.app import App
from vram_pilot.errors import VramPilotError
from vram_pilot.hosts.standalone.architectures import BUILT_IN
from vram_pilot.hosts.standalone.host import Result, StandaloneHost, png_bytes
from vram_pilot.hosts.standalone.request import MAX_SEED, MIN_SIDE, SAMPLERS, ImageRequest
from vram_pilot.panel import assets, view
from vram_pilot.panel.fields import request_from_fields
from vram_pilot.units import format_seconds

log = logging.getLogger(__name__)

#: Whatever the template loads from, or prepares to load from, elsewhere.
_FOREIGN = re.compile(rb"""<script[^>]*\ssrc="https?://[^>]*>\s*</script>|<link[^>]*\shref="https?://[^>]*>""", re.DOTALL)
_CSS = "#standalone_status .vp-error{color:#b3261e} .dark #standalone_status .vp-error{color:#ffb4ab}"


class Page:
    """Builds the page and carries out what its buttons ask for. Images lie in a folder of their own, which `close` deletes."""

    def __init__(self, host: StandaloneHost, app: App, model: str) -> None:
        self.host = host
        self.app = app
        self.model = model
        self._folder = tempfile.TemporaryDirectory(prefix="vram-pilot-images-")

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()

    def blocks(self) -> gr.Blocks:
        """The page; call it once."""
        tab = view.tab(self.app)
        theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
        with gr.Blocks(title="VRAM Pilot", analytics_enabled=False, theme=theme, css=_CSS) as blocks, gr.Tabs():
            with gr.TabItem("Generate", elem_id="tab_txt2img"):
                self._generate_tab()
            with gr.TabItem("VRAM Pilot", elem_id="tab_vram_pilot"):
                tab.render()
        return blocks.queue()

    # ------------------------------------------------------------------------------------------------ what it shows

    def _generate_tab(self) -> None:
        with gr.Row():
            with gr.Column(scale=4):
                prompt = gr.Textbox(label="Prompt", lines=2, elem_id="txt2img_prompt")
                negative = gr.Textbox(label="Negative prompt", lines=1, elem_id="txt2img_neg_prompt")
            with gr.Column(scale=1, min_width=160):
                generate = gr.Button("Generate", variant="primary", elem_id="txt2img_generate")
                interrupt = gr.Button("Interrupt", elem_id="txt2img_interrupt")
        with gr.Row():
            with gr.Column():
                self._model_field()
                fields = [prompt, negative, *_parameters(self.model)]
                fields += view.accordion(False)
            with gr.Column():
                gallery = gr.Gallery(label="Images", show_label=False, columns=2, elem_id="txt2img_gallery")
                status = gr.HTML("", elem_id="standalone_status")
                infotext = gr.Textbox(label="Parameters", lines=3, interactive=False, elem_id="txt2img_infotext")
        generate.click(self.generate, fields, [gallery, infotext, status], api_name="generate")
        interrupt.click(self.host.interrupt, None, None, queue=False, api_name="interrupt")

    def _model_field(self) -> None:
        names = list(dict.fromkeys([self.model, *BUILT_IN]))
        labels = [name if name in BUILT_IN else Path(name).stem for name in names]
        chosen = gr.Dropdown(list(zip(labels, names)), value=self.model, label="Model", elem_id="standalone_model")
        said = gr.HTML("", elem_id="standalone_model_status")
        chosen.change(self.load, chosen, said, api_name=False)

    # ------------------------------------------------------------------------------------------------ what it does

    def load(self, name: str) -> str:
        """Loads another model; what to say about it, as HTML."""
        if not self.app.remote_control_allowed():
            return _said("The model holds for everybody who uses this server, so it cannot be changed from here.", error=True)
        if name not in (self.model, *BUILT_IN):
            return _said("There is no such model here.", error=True)
        try:
            return _said(*self.host.load(name))
        except VramPilotError as error:
            return _said(str(error), error=True)

    def generate(self, prompt: str, negative: str, *values: Any) -> tuple[list[str], str, str]:
        """(image files, parameters, status as HTML). What fails is said in the status."""
        try:
            request, mode_fields = _read(prompt, negative, *values)
            start = time.monotonic()
            result = self.host.generate(request, request_from_fields(*mode_fields))
        except VramPilotError as error:
            return [], "", _said(str(error), error=True)
        paths = [self._save(image, text) for image, text in zip(result.images, result.infotexts)]
        return paths, "\n\n".join(result.infotexts), self._status(result, time.monotonic() - start)

    def _status(self, result: Result, duration_s: float) -> str:
        if result.error is not None:
            return _said(str(result.error), error=True)
        count = len(result.images)
        made = f"{count} {'image' if count == 1 else 'images'} in {format_seconds(duration_s)}"
        lines = [made if result.status == "ok" else f"Interrupted; {made}"]
        refusal = self.app.controller.refusal()
        return _said(*lines) + ("" if refusal is None else _said(refusal, error=True))

    def _save(self, image: Any, text: str) -> str:
        path = self.folder / f"{time.time_ns()}-{secrets.token_hex(2)}.png"
        path.write_bytes(png_bytes(image, text))
        return str(path)


def _parameters(model: str) -> list[Any]:
    """Steps, sampler, width, height, CFG scale, batch size, batch count, seed, hires, hires scale, hires strength."""
    side = {"tiny": 128, "sdxl": 1024}.get(model, 512)
    with gr.Row():
        steps = gr.Slider(1, 150, value=20 if model != "tiny" else 8, step=1, label="Steps", elem_id="txt2img_steps")
        sampler = gr.Dropdown(list(SAMPLERS), value="Euler a", label="Sampler", elem_id="txt2img_sampling")
    with gr.Row():
        width = gr.Slider(MIN_SIDE, 2048, value=side, step=8, label="Width", elem_id="txt2img_width")
        height = gr.Slider(MIN_SIDE, 2048, value=side, step=8, label="Height", elem_id="txt2img_height")
    with gr.Row():
        count = gr.Slider(1, 100, value=1, step=1, label="Batch count", elem_id="txt2img_batch_count")
        size = gr.Slider(1, 8, value=1, step=1, label="Batch size", elem_id="txt2img_batch_size")
    with gr.Row():
        cfg = gr.Slider(1, 30, value=7, step=0.5, label="CFG scale", elem_id="txt2img_cfg_scale")
        seed = gr.Number(value=-1, precision=0, label="Seed (-1: a new one)", elem_id="txt2img_seed")
    with gr.Row():
        hires = gr.Checkbox(False, label="Hires pass", elem_id="txt2img_hr")
        scale = gr.Slider(1.05, 4, value=2, step=0.05, label="Hires scale", elem_id="txt2img_hr_scale")
        strength = gr.Slider(0.05, 1, value=0.7, step=0.05, label="Hires strength", elem_id="txt2img_hr_strength")
    return [steps, sampler, width, height, cfg, size, count, seed, hires, scale, strength]


def _read(prompt: str, negative: str, *values: Any) -> tuple[ImageRequest, tuple[Any, ...]]:
    """The job of the page's fields, and what is left: the accordion's. Raises UsageError."""
    steps, sampler, width, height, cfg, size, count, seed, hires, scale, strength, *mode_fields = values
    request = ImageRequest(
        prompt=prompt,
        negative_prompt=negative,
        width=_whole(width),
        height=_whole(height),
        steps=_whole(steps),
        sampler=sampler,
        cfg_scale=cfg,
        batch_size=_whole(size),
        n_iter=_whole(count),
        seed=secrets.randbelow(MAX_SEED + 1) if seed in (-1, None) else _whole(seed),
        hires_scale=scale if hires else None,
        hires_strength=strength,
    )
    return request, tuple(mode_fields)


def _whole(value: Any) -> Any:
    """A page sends whole numbers as floats at times; what is none is left for the request to refuse."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _said(*lines: str, error: bool = False) -> str:
    kind = ' class="vp-error" role="alert"' if error else ' role="status"'
    return "".join(f"<p{kind}>{html.escape(line)}</p>" for line in lines)


def use_own_head() -> Callable[[], None]:
    """Makes gradio's page load the panel's files, and nothing from elsewhere; the answer undoes it.

    Both generations make their page by this one function, and only the newer one could be asked for a head of one's own.
    """
    templates = gradio_routes.templates
    original = templates.TemplateResponse

    def respond(*args: Any, **kwargs: Any) -> Any:
        response = original(*args, **kwargs)
        body = _FOREIGN.sub(b"", response.body)
        response.body = body.replace(b"</head>", assets.head_html().encode() + b"</head>")
        response.init_headers()
        return response

    templates.TemplateResponse = respond

    def undo() -> None:
        del templates.TemplateResponse

    return undo
