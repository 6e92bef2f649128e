"""Serves the standalone host's page with the panel's routes beside it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

from vram_pilot.app import App
from vram_pilot.hosts.standalone.address import Address, busy, check_port
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.page import Page, use_own_head
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.routes import register


def serve(host: StandaloneHost, app: App, model: str, address: Address) -> tuple[str, Callable[[], None]]:
    """Starts serving in threads of its own: (the page's address, what ends it).

    Raises VramPilotError when the port cannot be had.
    """
    check_port(address)
    page = Page(host, app, model)
    undo_head = use_own_head()
    blocks = page.blocks()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the older gradio prints the address whatever it is told
            server, url, _ = blocks.launch(
                server_name=address.name,
                server_port=address.port,
                auth=address.login,
                root_path=address.root_path or None,
                allowed_paths=[str(page.folder)],
                prevent_thread_lock=True,
                share=False,
                quiet=True,
                show_api=False,
                inbrowser=False,
            )
    except OSError as error:
        undo_head()
        page.close()
        raise busy(address, error) from error
    auth = Auth(lambda: server, gradio_auth_enabled=address.login is not None, allowed_hosts=address.allowed_hosts)
    panel = register(server, app, auth)

    def close() -> None:
        panel.close()
        host.interrupt()
        blocks.close(verbose=False)
        undo_head()
        page.close()

    return url, close
