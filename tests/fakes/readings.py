"""Readings of the instruments for a recorded session: a card of 12 GiB, with others on it, read as the pump reads it."""

from __future__ import annotations

import math
from typing import Any

from vram_pilot.units import GIB, MIB

TOTAL = 12 * GIB
#: Every eighth reading is of the slow tier, too.
SLOW = 8


def with_readings(session: dict[str, Any], count: int = 120, *, processes: bool = True, card: bool = True) -> dict[str, Any]:
    """`session` with `count` readings spread over its length. processes: the driver tells them apart; card: it is read."""
    length_s = session["summary"]["duration_s"]
    times = [number * length_s / (count - 1) for number in range(count)]
    allocated = [
        (1800 + (1500 if _phase(session, t_s) == "decode" else 300) + number % 7) * MIB for number, t_s in enumerate(times)
    ]
    reserved = [max(allocated[max(place - 9, 0) : place + 1]) + 200 * MIB for place in range(count)]
    columns: dict[str, list[float | None]] = {"allocated_bytes": [*allocated], "reserved_bytes": [*reserved]}
    if card:
        columns |= _card(reserved, processes)
    columns["host_cpu_ratio"] = _slow([0.2 + 0.1 * math.sin(number) for number in range(count)])
    columns["process_rss_bytes"] = _slow([6.1 * GIB] * count)
    columns["host_ram_total_bytes"] = _slow([32.0 * GIB] * count)
    columns["host_ram_available_bytes"] = _slow([18.0 * GIB + number * MIB for number in range(count)])
    return {**session, "samples": {"t_s": times, **columns}}


def _card(reserved: list[int], processes: bool) -> dict[str, list[float | None]]:
    count = len(reserved)
    own = [size + 480 * MIB for size in reserved]
    others = [(1100 + (300 if number > 0.6 * count else 0)) * MIB for number in range(count)]
    used = [mine + theirs + 130 * MIB for mine, theirs in zip(own, others)]
    waves = [math.sin(number / 7) for number in range(count)]
    return {
        "gpu_used_bytes": [*used],
        "gpu_reserved_bytes": [200 * MIB] * count,
        "gpu_free_bytes": [TOTAL - size - 200 * MIB for size in used],
        "gpu_total_bytes": [TOTAL] * count,
        "gpu_process_bytes": _slow(own) if processes else [None] * count,
        "gpu_other_processes_bytes": _slow(others) if processes else [None] * count,
        "gpu_utilization_ratio": [0.9 + 0.08 * wave for wave in waves],
        "gpu_memory_utilization_ratio": [0.4 + 0.1 * wave for wave in waves],
        "gpu_power_w": [150 + 15 * wave for wave in waves],
        "gpu_power_limit_w": _slow([170.0] * count),
        "gpu_temperature_c": [52 + 20 * number / count for number in range(count)],
        "gpu_sm_clock_hz": [1.8e9 - 2e8 * (number > 0.7 * count) for number in range(count)],
        "gpu_memory_clock_hz": _slow([7.5e9] * count),
        "gpu_pcie_rx_bytes_per_s": _slow([3e9 * (1 + wave) for wave in waves]),
        "gpu_pcie_tx_bytes_per_s": _slow([1e8 * (1 + wave) for wave in waves]),
    }


def _slow(values: list[Any]) -> list[float | None]:
    return [value if place % SLOW == 0 else None for place, value in enumerate(values)]


def _phase(session: dict[str, Any], t_s: float) -> str | None:
    found = [phase["name"] for phase in session["phases"] if phase["start_s"] <= t_s <= phase["start_s"] + phase["duration_s"]]
    return found[-1] if found else None
