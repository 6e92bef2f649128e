"""The modes that every kind of job is tried in, and what "equal" means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.host.client import Client, Pictures

#: By name; lowvram with nothing resident, with a part of the denoiser, and with all of it.
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "medvram": {"mode": "medvram"},
    "lowvram": {"mode": "lowvram"},
    "lowvram-64": {"mode": "lowvram", "budget_mib": 64},
}
AS_LAUNCHED = {"mode": "as-launched"}
#: Each mode once, for what takes long.
ONCE: dict[str, dict[str, Any]] = {"full": MODES["full"], "medvram": MODES["medvram"], "lowvram": MODES["lowvram-64"]}


def in_every_mode(
    client: Client,
    make: Callable[[Any], Pictures],
    record: Callable[[str, Any], None],
    modes: dict[str, dict[str, Any]] = MODES,
) -> dict[str, Pictures]:
    """Makes the pictures as launched and in each mode; all must be equal, and each mode must have been in force.

    make: makes them with `mode` carried by the job itself.
    """
    made = {"as-launched": make(AS_LAUNCHED)}
    record("as-launched", made["as-launched"])
    for name, mode in modes.items():
        made[name] = make(mode)
        record(name, made[name])
        in_force = client.newest_session()["mode"]["effective"]
        assert in_force["mode"] == mode["mode"], f"{name} was not in force: {in_force}, {client.state()['mode']['refusal']}"
        assert made[name].pixels == made["as-launched"].pixels, f"{name} gave another picture than as-launched"
    return made


def unlike(made: Pictures, other: Pictures) -> None:
    """The two requests do differ: a test that compared equal pictures by accident would prove nothing."""
    assert set(made.pixels).isdisjoint(other.pixels)
