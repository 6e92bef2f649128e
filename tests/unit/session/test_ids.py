"""Session ids: sortable, safe in a URL and as part of a file name."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.errors import UsageError
from vram_pilot.session.ids import new_id, validate_id

MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc))


@given(MOMENTS)
def test_a_new_id_is_valid(moment: datetime) -> None:
    made = new_id(moment)
    assert validate_id(made) == made
    assert made[:15] == moment.strftime("%Y%m%d-%H%M%S")


@given(MOMENTS, MOMENTS)
def test_ids_sort_by_time(one: datetime, other: datetime) -> None:
    first, second = sorted((one, other))
    if second - first >= timedelta(seconds=1):
        assert new_id(first) < new_id(second)


def test_local_times_are_told_in_utc() -> None:
    assert new_id(datetime(2026, 2, 1, 1, 0, tzinfo=timezone(timedelta(hours=2)))).startswith("20260131-230000-")


def test_ids_of_one_moment_differ() -> None:
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert len({new_id(moment) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        None,
        7,
        b"20260131-235959-ab12cd34",
        "../20260131-235959-ab12cd34",
        "20260131-235959-ab12cd34/..",
        "20260131-235959-ab12cd34\n",
        "20260131-235959-AB12CD34",
        "20260131-235959-ab12cd3",
        "２０260131-235959-ab12cd34",
        "20260131-235959-ab12cd34 OR 1=1",
    ],
)
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="not the id of a session"):
        validate_id(text)


@given(st.text())
def test_no_text_but_an_id_passes(text: str) -> None:
    try:
        validate_id(text)
    except UsageError:
        return
    assert len(text) == 24
    assert set(text) <= set("0123456789abcdef-")
