"""Sizes and times as people read them. Pure."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30


def mib(size_bytes: float) -> float:
    """Bytes to MiB."""
    return size_bytes / MIB


def format_bytes(size_bytes: float | None) -> str:
    """'1.6 GiB', '745 MiB', '12 KiB', '0 B'; '—' for None (not measured)."""
    if size_bytes is None:
        return "—"
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit != "MiB" or abs(value) >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB" if abs(value) < 10 else f"{value:.1f} GiB"


def format_seconds(duration_s: float | None) -> str:
    """'34.4 ms', '5.20 s', '3 min 12 s'; '—' for None (not measured)."""
    if duration_s is None:
        return "—"
    if abs(duration_s) < 1:
        return f"{duration_s * 1000:.1f} ms"
    if abs(duration_s) < 60:
        return f"{duration_s:.2f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
