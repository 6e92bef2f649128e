"""Makes a report's charts interactive: plotly's script, the figures, and the few lines that bring them together.

Without plotly, or where it fails, there is nothing of this and the drawn charts stay; so they do on paper and without scripts.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vram_pilot.reports import overlays
from vram_pilot.reports.palette import DARK, LIGHT
from vram_pilot.reports.script import SCRIPT

log = logging.getLogger(__name__)

#: "<" as JavaScript's texts may write it: no markup begins with that.
_LESS = "\\u003c"


@dataclass(frozen=True)
class Interactive:
    """body: what goes to the end of the page; scripts: the sources of a policy that lets exactly its scripts run."""

    body: str
    scripts: tuple[str, ...]


def build(session: Mapping[str, Any]) -> Interactive | None:
    """None when plotly is not installed, when it fails, or when there is nothing to show."""
    if not is_installed():
        return None
    try:
        from vram_pilot.reports import figures

        drawn = {name: figure.to_plotly_json() for name, figure in figures.all_figures(session).items()}
        tints = {overlays.tint(color): overlays.tint(DARK[name]) for name, color in LIGHT.items()}
        return _page_part(drawn, tints, figures.plotly_script()) if drawn else None
    except Exception:  # a release of plotly that is not as those known here: the drawn charts stay
        log.warning("VRAM Pilot: the report is written without interactive charts", exc_info=True)
        return None


def is_installed() -> bool:
    return importlib.util.find_spec("plotly") is not None


def digest(text: str) -> str:
    """A source for a Content-Security-Policy that allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _page_part(figures: Mapping[str, Any], tints: Mapping[str, str], library: str) -> Interactive:
    """tints: the translucent colours that are not in the palette, light to dark."""
    dark = {color: DARK[name] for name, color in LIGHT.items()}
    for figure in figures.values():
        figure["layout"].pop("template", None)
    data = json.dumps({"figures": figures, "dark": {**dark, **tints}}, separators=(",", ":"), allow_nan=False, default=list)
    library = _inline(library)
    body = (
        f'<script type="application/json" id="figures">{data.replace("<", _LESS)}</script>\n'
        f"<script>{library}</script>\n<script>{SCRIPT}</script>"
    )
    return Interactive(body, (digest(library), digest(SCRIPT)))


def _inline(script: str) -> str:
    """`script` so that a page's parser takes all of it for the script, and no byte that its digest is made of is changed."""
    script = script.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub("<(?=/script|!--)", lambda _: _LESS, script, flags=re.IGNORECASE)
