"""`python -m vram_pilot serve`: the standalone host with its page and the panel, until Ctrl+C."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from typing import Any

from vram_pilot.commands.standalone import add_shared_arguments, build, requested_mode, write_mode_into_images
from vram_pilot.errors import UsageError
from vram_pilot.hosts.standalone.address import Address, check_port

#: Seconds between two looks at whether to stop; Windows does not interrupt a longer wait.
_LOOK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model", default="tiny", metavar="M", help="tiny (unless given), sd15, sdxl, or the path of a .safetensors checkpoint"
    )
    add("--host", default="127.0.0.1", metavar="NAME", help="the address to listen on; 127.0.0.1 unless given")
    add("--port", type=int, default=7860, metavar="N", help="7860 unless given")
    add("--gradio-auth", metavar="USER:PASS", help="a login for the page and the routes")
    add("--subpath", default="", metavar="PATH", help="where a reverse proxy shows the page, for example /sd")
    add("--allow-remote-control", action="store_true", help="with another --host: let every user change what holds for all")
    add("--vram-pilot-off", action="store_true", help="do nothing but generate; the routes answer that VRAM Pilot is off")
    add_shared_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    mode = requested_mode(args)
    login, root_path = _login(args.gradio_auth), _root_path(args.subpath)
    if not 1 <= args.port <= 65535:
        raise UsageError("There is no such port", found=args.port, do="Use a number from 1 to 65535.")
    address = Address(args.host, args.port, login, root_path, ("*",) if args.allow_remote_control else ())
    check_port(address)
    host, app = build(
        args.device,
        args.data_dir,
        off=args.vram_pilot_off,
        allow_control=lambda: address.is_local or args.allow_remote_control,
    )
    _keep_local_addresses_from_the_proxy()
    from vram_pilot.hosts.standalone.server import serve

    _say(f"Loading {args.model} …")
    for note in host.load(args.model):
        _say(note)
    write_mode_into_images(host, app)
    app.start(mode)
    try:
        url, close = serve(host, app, args.model, address)
        _say(f"Running on {url} Stop it with Ctrl+C.")
        try:
            _wait()
        finally:
            close()
    finally:
        app.stop()
        app.store.close()
    _say("Stopped.")
    return 0


def _wait() -> None:
    """Until Ctrl+C or a polite end."""
    ended = threading.Event()

    def end(number: int, frame: Any) -> None:
        ended.set()

    usual = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not ended.wait(_LOOK_S):
            pass
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _login(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise UsageError("A login is a user and a password with a colon between them", do="Write --gradio-auth USER:PASS.")
    return user, password


def _root_path(text: str) -> str:
    cleaned = text.strip().strip("/")
    if not re.fullmatch(r"[\w.~/-]*", cleaned, re.ASCII):
        raise UsageError("This is no path for the page", found=text, do="Write for example --subpath /sd.")
    return f"/{cleaned}" if cleaned else ""


def _keep_local_addresses_from_the_proxy() -> None:
    """gradio asks its own page whether it is up, by way of a proxy where the environment names one."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
