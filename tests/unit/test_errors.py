"""An error says what failed, what was found and what to do, on the command line and over HTTP."""

from __future__ import annotations

import pytest

from vram_pilot import errors
from vram_pilot.errors import ActivationError, NotFoundError, RefusedError, StoreError, UsageError, VramPilotError

ALL = (VramPilotError, UsageError, NotFoundError, RefusedError, ActivationError, errors.HostError, StoreError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (VramPilotError("It broke"), "It broke."),
        (VramPilotError("It broke", do="Mend it."), "It broke. Mend it."),
        (VramPilotError("It broke", found=0), "It broke (found 0)."),
        (VramPilotError("It broke", found="x", do="Mend it."), "It broke (found 'x'). Mend it."),
    ],
)
def test_the_message(error: VramPilotError, text: str) -> None:
    assert str(error) == text


def test_a_long_value_is_cut() -> None:
    text = str(UsageError("Too much", found="x" * 10_000))
    assert len(text) < 150
    assert text.endswith("...).")


def test_as_json() -> None:
    assert NotFoundError("No such session", found="abc", do="List them.").to_json() == {
        "error": "NotFoundError",
        "message": "No such session (found 'abc'). List them.",
        "found": "'abc'",
        "do": "List them.",
    }
    assert RefusedError("Not here").to_json()["found"] is None


@pytest.mark.parametrize(
    ("kind", "exit_status", "http_status"),
    [
        (UsageError, 2, 400),
        (NotFoundError, 2, 404),
        (RefusedError, 2, 409),
        (ActivationError, 1, 500),
        (errors.HostError, 1, 500),
        (StoreError, 1, 503),
    ],
)
def test_the_statuses(kind: type[VramPilotError], exit_status: int, http_status: int) -> None:
    assert (kind.exit_status, kind.http_status) == (exit_status, http_status)


@pytest.mark.parametrize("kind", ALL)
def test_the_modules_docstring_draws_every_error(kind: type[VramPilotError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
    assert issubclass(kind, VramPilotError)
