"""A real server with a page that holds the accordion and the tab, as a WebUI's page does. Runs in a thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from tests.ports import free_port
from vram_pilot.panel import assets, routes, view
from vram_pilot.panel.auth import Auth


class Served:
    """app: the host's FastAPI application; port; panel; server."""

    def __init__(self, app: Any, panel: routes.Panel, port: int) -> None:
        self.app, self.panel, self.port = app, panel, port
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(app: Any, panel: routes.Panel, port: int | None = None) -> Iterator[Served]:
    """`app` on a port of its own; ended with the block, its event streams too."""
    served = Served(app, panel, port or free_port())
    served.thread.start()
    ready = threading.Event()
    while not served.server.started:
        assert served.thread.is_alive(), "the server ended"
        ready.wait(0.01)
    try:
        yield served
    finally:
        panel.close()
        served.server.should_exit = True
        served.thread.join(10)
        assert not served.thread.is_alive(), "the server does not end"


def page(app: Any) -> gr.Blocks:
    """Two tabs: a generation's, with the accordion and a place where its values show, and ours."""
    tab = view.tab(app)
    plain = gr.themes.Base(font=("sans-serif",), font_mono=("monospace",))  # a WebUI's own fonts are no business of ours
    with gr.Blocks(analytics_enabled=False, title="host", theme=plain) as blocks, gr.Tabs():
        with gr.TabItem("txt2img"):
            gr.Markdown("The host's own tab.")
            fields = view.accordion(False)
            shown = gr.Textbox(label="values", elem_id="values")
            gr.Button("Generate", elem_id="generate").click(lambda *values: repr(values), fields, shown, queue=False)
        with gr.TabItem("VRAM Pilot", elem_id="tab_vram_pilot"):
            tab.render()
    return blocks


def with_head(page_html: bytes, head: str) -> bytes:
    """`head` at the end of the page's head; gradio's own script of another server is left out."""
    own = re.sub(rb"<script[^>]*src=.https://.*?</script>|<link[^>]*https://[^>]*>", b"", page_html, flags=re.DOTALL)
    return own.replace(b"</head>", head.encode() + b"</head>")


class HeadMiddleware:
    """Puts the panel's files into every page's head, where a WebUI puts its extensions' files."""

    def __init__(self, app: Any, head: str) -> None:
        self.app, self.head = app, head

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        start: dict[str, Any] = {}
        body = b""

        async def sent(message: Any) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                start.update(message)
                if not dict(message["headers"]).get(b"content-type", b"").startswith(b"text/html"):
                    start["through"] = True
                    await send(message)
                return
            if start.get("through"):
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                whole = with_head(body, self.head)
                kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
                start["headers"] = [*kept, (b"content-length", str(len(whole)).encode())]
                await send(start)
                await send({"type": "http.response.body", "body": whole})

        is_page = scope["type"] == "http" and scope["path"].endswith("/")
        await self.app(scope, receive, sent if is_page else send)


def host_application(app: Any, auth: Auth | None = None, root: str = "") -> tuple[Any, routes.Panel]:
    """A page with our routes beside it, behind the middleware that hosts use. root: "/sub" when a proxy serves it there."""
    blocks = page(app)
    outer = FastAPI()
    panel = routes.register(outer, app, auth or Auth(lambda: None))
    outer.add_middleware(HeadMiddleware, head=assets.head_html())
    outer.add_middleware(GZipMiddleware, minimum_size=1000)
    mounted = gr.mount_gradio_app(outer, blocks, path="/")
    if not root:
        return mounted, panel
    proxy = FastAPI()
    proxy.mount(root, mounted)
    return proxy, panel
