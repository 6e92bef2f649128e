"""The instruments of a card of 12 GiB while a model is loaded, an image is made, and its mode changes in between."""

from __future__ import annotations

import math
import time
from typing import Any

from tests.fakes.panel_app import MIB, FakeApp

GIB = 1024 * MIB
TOTAL = 12 * GIB
FACTS = {
    "name": "NVIDIA GeForce RTX 4070",
    "uuid": "GPU-0",
    "temperature_slowdown_c": 90.0,
    "temperature_shutdown_c": 95.0,
    "sm_clock_max_hz": 2610e6,
    "pcie_generation_max": 4.0,
    "pcie_width_max": 16.0,
}
#: Rows of the map, and the bytes of each.
ROWS, ROW_BYTES = 384, 16 * MIB
#: What a card has that says nothing of them.
UNSUPPORTED = ("gpu_memory_temperature_c",)


def scene(app: FakeApp, length_s: float = 110.0, period_s: float = 0.25, end_s: float | None = None) -> None:
    """Writes the readings of the last `length_s` seconds."""
    end_s = time.monotonic() if end_s is None else end_s
    app.facts = FACTS
    count = round(length_s / period_s)
    for number in range(count + 1):
        at = number / count
        t_s = end_s - length_s * (1 - at)
        app.sample(t_s, **fast(at), **(slow(at) if number % round(2 / period_s) == 0 else {}))
        held, active = column(at)
        app.column(held, active, t_s, ROW_BYTES)


def weights(at: float) -> float:
    """GiB of the model on the card: loaded by 0.15, and most of it streamed from 0.55 on."""
    return 3.6 * min(at / 0.15, 1) if at < 0.55 else 1.3


def allocated(at: float) -> int:
    step = 0.35 * (1 + math.sin(at * 400)) if 0.2 < at < 0.85 else 0
    return round((weights(at) + step + (1.9 if 0.85 < at < 0.93 else 0)) * GIB)


def reserved(at: float) -> int:
    return max(allocated(at), round((4.6 if at > 0.2 else weights(at) + 0.1) * GIB))


def busy(at: float) -> float:
    return 0.0 if at < 0.2 or at > 0.95 else 0.93 + 0.06 * math.sin(at * 900)


def fast(at: float) -> dict[str, float | None]:
    work, others = busy(at), (1.1 + (0.9 if 0.4 < at < 0.7 else 0)) * GIB
    used = reserved(at) + 0.55 * GIB + others + 0.25 * GIB
    heat = 44 + 38 * (1 - math.exp(-max(at - 0.2, 0) * 6)) - (14 * min((at - 0.95) * 20, 1) if at > 0.95 else 0)
    capped = 0.45 < at < 0.9
    events = 0x1 if work == 0 else (0x4 if capped else 0) | (0x20 if 0.78 < at < 0.88 else 0)
    return {
        "allocated_bytes": allocated(at),
        "reserved_bytes": reserved(at),
        "gpu_used_bytes": used,
        "gpu_free_bytes": TOTAL - used - 0.3 * GIB,
        "gpu_total_bytes": TOTAL,
        "gpu_reserved_bytes": 0.3 * GIB,
        "gpu_utilization_ratio": work,
        "gpu_memory_utilization_ratio": work * 0.55,
        "gpu_temperature_c": round(heat),
        "gpu_power_w": 34 + work * 160 + 6 * math.sin(at * 500),
        "gpu_sm_clock_hz": 210e6 if work == 0 else (2310e6 if capped else 2595e6) - (220e6 if 0.78 < at < 0.88 else 0),
        "gpu_clock_events": events,
    }


def slow(at: float) -> dict[str, float | None]:
    streaming = 0.55 < at < 0.85
    return {
        "gpu_process_bytes": reserved(at) + 0.55 * GIB,
        "gpu_other_processes_bytes": (1.1 + (0.9 if 0.4 < at < 0.7 else 0)) * GIB,
        "gpu_power_limit_w": 200.0,
        "gpu_memory_clock_hz": 10501e6,
        "gpu_energy_j": at * 15_000,
        "gpu_pcie_rx_bytes_per_s": 18.5e9 + 2e9 * math.sin(at * 90) if streaming else (9e9 if at < 0.15 else 40e6),
        "gpu_pcie_tx_bytes_per_s": 900e6 if streaming else 12e6,
        "host_cpu_ratio": 0.18 + 0.1 * math.sin(at * 40) + (0.4 if at < 0.15 else 0),
        "process_cpu_ratio": 1.1,
        "process_rss_bytes": (3.1 + 4 * min(at / 0.15, 1)) * GIB,
        "host_ram_total_bytes": 32 * GIB,
        "host_ram_available_bytes": (22 - 4 * min(at / 0.15, 1)) * GIB,
        "host_swap_used_bytes": 0,
        "fragmentation_ratio": 0.34 if at > 0.2 else 0.05,
        **dict.fromkeys(UNSUPPORTED),
    }


def column(at: float) -> tuple[list[int], list[int]]:
    """Weights below, a patchwork of activations above them, and what streaming gave back free."""
    rows = min(round(reserved(at) / ROW_BYTES), ROWS)
    solid = round(weights(at) * GIB / ROW_BYTES)
    held = [255] * rows
    active = [255 if row < solid else _patch(row, at) for row in range(rows)]
    return held, active


def _patch(row: int, at: float) -> int:
    if 0.85 < at < 0.93:
        return 230
    if at < 0.2 or at > 0.93:
        return 0
    wave = math.sin(row * 0.9) * math.sin(row * 0.13 + 2.0)
    flicker = math.sin(at * 400 + row * 0.05)
    return 0 if wave < -0.1 else round(255 * min(max(0.25 + wave + 0.5 * flicker, 0.0), 1.0))


def still(**changed: float | None) -> dict[str, Any]:
    """One reading that does not move, for tests that look at what is drawn of it."""
    return {**fast(0.5), **slow(0.5), **changed}
