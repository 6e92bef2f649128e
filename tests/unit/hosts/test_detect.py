"""Which host has loaded the extension."""

from __future__ import annotations

import pytest

from vram_pilot.hosts.detect import SUPPORTED, detect

A1111 = {"modules.lowvram", "modules.sd_unet", "modules.call_queue", "modules.script_callbacks"}


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        (A1111, "a1111"),
        (A1111 | {"backend", "modules_forge"}, "forge"),
        (A1111 | {"ldm_patched", "modules_forge"}, "reforge"),
        ({"modules.sd_offload", "modules.script_callbacks"}, "sdnext"),
        ({"modules.script_callbacks"}, "unknown"),
        (set(), "unknown"),
    ],
)
def test_a_host_is_known_by_what_it_offers(offers: set[str], expected: str) -> None:
    assert detect(offers.__contains__) == expected


def test_outside_any_host_nothing_is_taken_for_one() -> None:
    assert detect() == "unknown"
    assert detect() not in SUPPORTED


def test_a_broken_package_counts_as_absent() -> None:
    def broken(name: str) -> bool:
        return name == "modules.script_callbacks"

    assert detect(broken) == "unknown"
