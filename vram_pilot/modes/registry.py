"""The modes that this version carries out, in the order of falling memory."""

from __future__ import annotations

from vram_pilot.modes.as_launched import AsLaunched
from vram_pilot.modes.base import Mode
from vram_pilot.modes.full import Full
from vram_pilot.modes.lowvram import LowVram
from vram_pilot.modes.medvram import MedVram

MODES: tuple[Mode, ...] = (AsLaunched(), Full(), MedVram(), LowVram())
