"""The panel's own files, for a page that is not served by a WebUI."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "vram_pilot.mjs"
STYLE = "style.css"
HELPERS = (
    "board",
    "chart",
    "columns",
    "compare",
    "connection",
    "format",
    "gauges",
    "history",
    "holders",
    "link",
    "live",
    "live_view",
    "marks",
    "markup",
    "moment",
    "now",
    "now_view",
    "page",
    "paint",
    "plots",
    "readings",
    "series",
    "sessions",
    "sessions_view",
    "timers",
    "trace",
    "tracks",
    "urls",
)

#: Every name that is served, with its file. Nothing else is ever opened.
FILES: dict[str, Path] = {
    STYLE: ROOT / STYLE,
    SCRIPT: ROOT / "javascript" / SCRIPT,
    **{f"vram_pilot/{name}.mjs": ROOT / "javascript" / "vram_pilot" / f"{name}.mjs" for name in HELPERS},
}


def media_type(name: str) -> str:
    return "text/css" if name.endswith(".css") else "text/javascript"


def head_html(base_url: str = "") -> str:
    """What a standalone page puts into its head. base_url: the server's root, "/" at its end; "" when the page is at it."""
    script, style = (f"{base_url}vram-pilot/assets/{name}?{_stamp(name)}" for name in (SCRIPT, STYLE))
    return f'<link rel="stylesheet" href="{style}"><script type="module" src="{script}"></script>'


def _stamp(name: str) -> int:
    return FILES[name].stat().st_mtime_ns
