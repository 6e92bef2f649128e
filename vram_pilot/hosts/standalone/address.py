"""Where the standalone page is served. Standard library only."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from vram_pilot.errors import VramPilotError


@dataclass(frozen=True)
class Address:
    """name, port: where to listen. login: (user, password) or None. root_path: "" or "/sub", where a proxy shows the page."""

    name: str = "127.0.0.1"
    port: int = 7860
    login: tuple[str, str] | None = None
    root_path: str = ""
    allowed_hosts: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.name == "localhost" or ipaddress.ip_address(self.name).is_loopback
        except ValueError:
            return False


def check_port(address: Address) -> None:
    """Raises VramPilotError when another program has the port, or the name is not one of this machine's."""
    try:
        found = socket.getaddrinfo(address.name, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, _reuse())
            probe.bind(place)
    except OSError as error:
        raise busy(address, error) from error


def _reuse() -> int:
    """Elsewhere it only forgives a connection that has just ended; on Windows it would let two programs have one port."""
    return 0 if hasattr(socket, "SO_EXCLUSIVEADDRUSE") else 1


def busy(address: Address, error: OSError) -> VramPilotError:
    """What to say when the address cannot be had."""
    return VramPilotError(
        "The page cannot be served here",
        found=f"{address.name}:{address.port}, {error.strerror or error}",
        do="Another program may have the port: end it, or choose another one with --port.",
    )
