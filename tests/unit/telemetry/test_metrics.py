"""docs/metrics.md names what the instruments give, with unit and tier, and nothing else."""

from __future__ import annotations

import re

import torch

from tests.project import ROOT
from vram_pilot.session.metrics import unit_of
from vram_pilot.telemetry.allocator import AllocatorSampler
from vram_pilot.telemetry.facts import FACTS
from vram_pilot.telemetry.fields import CLOCK_EVENTS, fast_fields, slow_fields
from vram_pilot.telemetry.process import NAMES
from vram_pilot.telemetry.samplers import outside_torch
from vram_pilot.telemetry.segments import SegmentsSampler

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Readings of the instruments")[2].partition("\n## ")[0]
READINGS, _, FACT_TABLE = SECTION.partition("### Facts of the card")
CARD = torch.device("cuda")


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")]


def emitted() -> dict[str, str]:
    """Every metric that a reading may hold, and its tier."""
    fast = [*AllocatorSampler(CARD, 0.25).sample(), *(name for field in fast_fields() for name in field.names)]
    fast += outside_torch({"gpu_used_bytes": 1, "reserved_bytes": 1})
    segments = SegmentsSampler(CARD, 2.0, warn=print, started=lambda: False)
    slow = [*segments.sample(), *(name for field in slow_fields() for name in field.names), *NAMES]
    names = [*fast, *slow]
    assert len(set(names)) == len(names), "two instruments give the same metric"
    return {**dict.fromkeys(fast, "fast"), **dict.fromkeys(slow, "slow")}


def test_every_metric_is_documented_with_its_tier_and_nothing_else_is() -> None:
    assert {row[0].strip("`"): row[3] for row in rows(READINGS)} == emitted()


def test_the_units_are_those_that_the_names_end_in() -> None:
    assert {row[0].strip("`"): row[2] for row in rows(READINGS)} == {name: unit_of(name) for name in emitted()}


def test_every_row_is_whole() -> None:
    assert all(len(row) == 7 for row in rows(READINGS))
    assert all(cell for row in rows(READINGS) for place, cell in enumerate(row) if place != 2)


def test_every_fact_of_a_card_is_documented_and_nothing_else_is() -> None:
    named = [name for row in rows(FACT_TABLE) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(FACTS)


def test_the_clock_events_are_documented_with_their_bits() -> None:
    assert dict((name, int(bit)) for bit, name in re.findall(r"(\d+) `(\w+)`", READINGS)) == CLOCK_EVENTS
