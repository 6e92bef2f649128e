"""The one schema: what is taken, what is refused by name, and what a refusal says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot import settings
from vram_pilot.errors import RefusedError, UsageError
from vram_pilot.settings import ModeRequest, Setting, check_built, parse_mode_request

ALL = (*settings.REQUEST_SETTINGS, *settings.MACHINE_SETTINGS)
#: What may come out of JSON, and some that may not.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.key)
def test_a_default_is_allowed_by_its_own_setting(setting: Setting) -> None:
    assert setting.parse(setting.default) == setting.default


def test_keys_are_unique() -> None:
    assert len({setting.key for setting in ALL}) == len(ALL)


def test_only_the_mode_is_a_field_of_the_infotext() -> None:
    assert [setting.infotext for setting in ALL if setting.infotext] == ["VRAM mode"]


@pytest.mark.parametrize(
    ("setting", "raw", "value"),
    [
        (settings.MODE, " LowVRAM ", "lowvram"),
        (settings.BUDGET, "512", 512),
        (settings.BUDGET, 512.0, 512),
        (settings.BUDGET, 0, 0),
        (settings.BUDGET, None, None),
        (settings.BUDGET, "", None),
        (settings.BUDGET, " Auto ", None),
        (settings.PINNED_SHARE, "0.25", 0.25),
        (settings.RECORD, "False", False),
        (settings.RECORD, True, True),
    ],
)
def test_what_is_taken(setting: Setting, raw: object, value: object) -> None:
    parsed = setting.parse(raw)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("setting", "raw"),
    [
        (settings.MODE, "turbo"),
        (settings.MODE, 3),
        (settings.MODE, None),
        (settings.MODE, ""),
        (settings.BUDGET, -1),
        (settings.BUDGET, -31528),
        (settings.BUDGET, settings.MAX_BUDGET_MIB + 1),
        (settings.BUDGET, 0.5),
        (settings.BUDGET, True),
        (settings.BUDGET, "12 MiB"),
        (settings.BUDGET, [512]),
        (settings.BUDGET, float("nan")),
        (settings.BUDGET, float("inf")),
        (settings.BUDGET, "1e400"),
        (settings.BUDGET, 10**400),
        (settings.PINNED_SHARE, 1.5),
        (settings.PINNED_SHARE, None),
        (settings.RECORD, 1),
        (settings.RECORD, "yes"),
        (settings.KEEP_SESSIONS, 0),
    ],
)
def test_what_is_not_taken_is_named_with_what_is_allowed(setting: Setting, raw: object) -> None:
    with pytest.raises(UsageError) as caught:
        setting.parse(raw)
    assert caught.value.what.startswith(setting.key)
    assert caught.value.do is not None and caught.value.do.startswith("Use ")
    assert caught.value.found == raw or raw is None or math.isnan(raw)  # type: ignore[arg-type]


def test_the_advice_names_the_choices_and_the_limits() -> None:
    with pytest.raises(UsageError, match=r"Use one of: off\b"):
        settings.ACCELERATE.parse("on")
    with pytest.raises(UsageError, match=r"a whole number from 0 to .* or leave it empty for the program's choice"):
        settings.BUDGET.parse(-1)


@given(st.sampled_from(ALL), ANYTHING)
def test_anything_is_either_a_value_within_the_limits_or_a_usage_error(setting: Setting, raw: object) -> None:
    try:
        value = setting.parse(raw)
    except UsageError as error:
        assert len(str(error)) < 400
        return
    if value is None:
        assert setting.nullable
    elif setting.kind == "choice":
        assert value in setting.choices
    elif setting.kind == "bool":
        assert isinstance(value, bool)
    else:
        assert setting.minimum is None or value >= setting.minimum
        assert setting.maximum is None or value <= setting.maximum


# ---------------------------------------------------------------------------------------------------------------- requests


def test_what_a_request_leaves_out_comes_from_the_one_before() -> None:
    before = ModeRequest("lowvram", 512)
    assert parse_mode_request({}, before) == before
    assert parse_mode_request({"budget_mib": 64}, before) == ModeRequest("lowvram", 64)
    assert parse_mode_request({"mode": "lowvram"}, before) == before


def test_another_mode_does_not_inherit_the_budget() -> None:
    assert parse_mode_request({"mode": "medvram"}, ModeRequest("lowvram", 512)) == ModeRequest("medvram")


@pytest.mark.parametrize("raw", [None, [], "lowvram", 3])
def test_a_request_is_an_object(raw: object) -> None:
    with pytest.raises(UsageError, match="must be an object"):
        parse_mode_request(raw)


def test_a_field_that_is_not_known_is_named() -> None:
    with pytest.raises(UsageError, match=r"unknown field .*'mod'.*accelerate, budget_mib, mode"):
        parse_mode_request({"mod": "full"})


@pytest.mark.parametrize("mode", sorted(set(settings.MODES) - set(settings.BUILT_MODES)))
def test_a_mode_that_is_not_built_is_refused_by_name(mode: str) -> None:
    with pytest.raises(RefusedError, match=f"{mode}.*as-launched, full, medvram, lowvram") as caught:
        parse_mode_request({"mode": mode})
    assert (caught.value.http_status, caught.value.exit_status) == (409, 2)


@pytest.mark.parametrize("way", sorted(set(settings.ACCELERATES) - set(settings.BUILT_ACCELERATES)))
def test_a_way_to_accelerate_that_is_not_built_is_refused_by_name(way: str) -> None:
    with pytest.raises(RefusedError, match=way):
        check_built(ModeRequest("full", accelerate=way))


@pytest.mark.parametrize("mode", [mode for mode in settings.BUILT_MODES if mode != "lowvram"])
def test_a_budget_goes_with_lowvram_only(mode: str) -> None:
    with pytest.raises(UsageError, match="A budget goes with lowvram only"):
        parse_mode_request({"mode": mode, "budget_mib": 512})


@given(ANYTHING | st.dictionaries(st.sampled_from(["mode", "budget_mib", "accelerate", "x"]), ANYTHING))
def test_any_request_is_either_one_that_is_built_or_an_error_of_ours(raw: Any) -> None:
    try:
        request = parse_mode_request(raw)
    except (UsageError, RefusedError):
        return
    check_built(request)
    assert request.mode in settings.BUILT_MODES


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ModeRequest(), "as-launched"),
        (ModeRequest("lowvram"), "lowvram"),
        (ModeRequest("lowvram", 512), "lowvram, budget 512 MiB"),
        (ModeRequest("lowvram", 0), "lowvram, budget 0 MiB"),
        (ModeRequest("full", accelerate="graph"), "full, graph"),
    ],
)
def test_the_infotext(request_: ModeRequest, text: str) -> None:
    assert request_.infotext() == text


def test_a_request_as_json_comes_back_the_same() -> None:
    request = ModeRequest("lowvram", 512)
    assert parse_mode_request(request.to_json()) == request
