"""The recorded table of the WebUI's names, which the fakes of CI are held to, is true of the real one."""

from __future__ import annotations

from tests.fakes.a1111 import SIGNATURES
from tests.host.webui import WebUI


def test_the_table_is_true(plain_webui: WebUI) -> None:
    found = plain_webui.client.post("/vram-pilot-probe/signatures", list(SIGNATURES))
    assert found == SIGNATURES
