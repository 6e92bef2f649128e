"""The X/Y/Z plot's axes `[VRAM Pilot] Mode` and `[VRAM Pilot] Budget`."""

from __future__ import annotations

import logging
from typing import Any

from modules import scripts

from vram_pilot.hosts.a1111.script import AXIS_VALUES
from vram_pilot.settings import BUDGET, BUILT_MODES, MODE, parse_mode_request

log = logging.getLogger(__name__)

LABELS = ("[VRAM Pilot] Mode", "[VRAM Pilot] Budget")


def add_axes() -> None:
    """Adds the axes to the loaded X/Y/Z script, once. Without that script nothing happens."""
    for data in scripts.scripts_data:
        module = data.module
        if not str(getattr(module, "__file__", "")).replace("\\", "/").endswith("/xyz_grid.py"):
            continue
        options = module.axis_options
        present = {option.label for option in options}
        for option in (
            module.AxisOption(
                LABELS[0], str, _setter(MODE.key), confirm=_confirm_modes, choices=lambda: list(BUILT_MODES), cost=0.5
            ),
            module.AxisOption(LABELS[1], str, _setter(BUDGET.key), confirm=_confirm_budgets),
        ):
            if option.label not in present:
                options.append(option)
        return
    log.info("VRAM Pilot: there is no X/Y/Z plot in this WebUI, so it gets no axes")


def _setter(key: str) -> Any:
    def apply(p: Any, value: Any, _values: Any) -> None:
        setattr(p, AXIS_VALUES, {**getattr(p, AXIS_VALUES, {}), key: value})

    return apply


def _confirm_modes(_p: Any, values: list[Any]) -> None:
    """Every value is checked before the first cell, so that a slip does not cost the cells before it."""
    for value in values:
        parse_mode_request({MODE.key: value})


def _confirm_budgets(_p: Any, values: list[Any]) -> None:
    for value in values:
        BUDGET.parse(value)
