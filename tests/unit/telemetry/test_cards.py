"""Which card is meant: row E4, "mapped by UUID or PCI bus id, never by index"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.telemetry.cards import Card, CudaDevice, Instance, bus_key, match, parse_visible, same_uuid

SLOW = Card(0, "GPU-0b0b0b0b-0000-0000-0000-00000000000b", "00000000:01:00.0")
FAST = Card(1, "GPU-0a0a0a0a-0000-0000-0000-00000000000a", "00000000:41:00.0")
THIRD = Card(2, "GPU-0a0affff-0000-0000-0000-00000000000c", "00000000:C1:00.0")
SLICES = (
    Instance("MIG-aaaa0000-0000-0000-0000-000000000001", 0, 1, 0),
    Instance("MIG-bbbb0000-0000-0000-0000-000000000002", 2, 5, 0),
)
CUT = Card(0, "GPU-99999999-0000-0000-0000-000000000009", "00000000:01:00.0", SLICES)
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def visible(text: str, **more: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text, **more}


# ------------------------------------------------------------------------------------------------ what CUDA itself says


@pytest.mark.parametrize("environ", [{}, BY_BUS, visible("1"), visible("1,0"), visible("0"), visible("")])
@pytest.mark.parametrize("ordinal", [0, 1])
def test_e4_a_uuid_that_cuda_gave_decides_whatever_the_environment_says(environ: dict[str, str], ordinal: int) -> None:
    found = match((SLOW, FAST), CudaDevice(ordinal, FAST.uuid), environ)
    assert (found.card, found.by) == (FAST, "uuid")


def test_e4_the_fastest_card_is_cudas_first_and_the_drivers_second() -> None:
    found = match((SLOW, FAST), CudaDevice(0, "0a0a0a0a-0000-0000-0000-00000000000a", "0000:41:00.0"), {})
    assert found.card is not None
    assert found.card.index == 1


@pytest.mark.parametrize("bus", ["0000:41:00.0", "00000000:41:00.0", "41:00.0", "0000:41:00"])
def test_e4_an_older_torch_gives_no_uuid_and_the_bus_decides(bus: str) -> None:
    found = match((SLOW, FAST), CudaDevice(0, None, bus), {})
    assert (found.card, found.by) == (FAST, "bus")


def test_a_uuid_in_another_spelling_than_the_drivers_falls_back_to_the_bus() -> None:
    assert match((SLOW, FAST), CudaDevice(0, "ffffffff-0000", "0000:41:00.0"), {}).card == FAST


def test_a_card_that_the_driver_does_not_list_is_none_with_a_reason_and_not_the_first() -> None:
    found = match((SLOW, FAST), CudaDevice(0, "dead-beef", "0000:99:00.0"), {})
    assert found.card is None
    assert found.reason is not None
    assert "dead-beef" in found.reason


# ------------------------------------------------------------------------------------------------------ the environment


@pytest.mark.parametrize(
    ("text", "ordinal", "card"),
    [
        ("1", 0, FAST),
        ("1,0", 0, FAST),
        ("1,0", 1, SLOW),
        ("0", 0, SLOW),
        (" 1 , 0 ", 1, SLOW),
        ("1gpu2,0", 0, FAST),  # as strtoul reads it
    ],
)
def test_e4_numbers_count_in_the_order_of_the_buses_when_that_is_asked_for(text: str, ordinal: int, card: Card) -> None:
    assert match((FAST, SLOW), CudaDevice(ordinal), visible(text, **BY_BUS)).card == card


@pytest.mark.parametrize("environ", [{}, visible("0"), visible("1,0"), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])
def test_e4_with_the_fastest_first_a_number_tells_nothing_before_cuda_has_started(environ: dict[str, str]) -> None:
    found = match((SLOW, FAST), CudaDevice(0), environ)
    assert found.card is None
    assert found.reason is not None
    assert "CUDA has not started" in found.reason


@pytest.mark.parametrize("environ", [{}, visible("0"), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, BY_BUS])
def test_a_single_card_is_meant_in_any_order(environ: dict[str, str]) -> None:
    assert match((SLOW,), CudaDevice(0), environ).card == SLOW


@pytest.mark.parametrize(
    ("text", "ordinal", "card"),
    [
        (str(FAST.uuid), 0, FAST),
        (f"{FAST.uuid},{SLOW.uuid}", 1, SLOW),
        ("GPU-0b", 0, SLOW),
        ("GPU-0B0B", 0, SLOW),
        ("GPU-0a0a0a,GPU-0b", 1, SLOW),
        ("GPU-0a0aff", 0, THIRD),
    ],
)
def test_e4_uuids_whole_and_short(text: str, ordinal: int, card: Card) -> None:
    found = match((SLOW, FAST, THIRD), CudaDevice(ordinal), visible(text))
    assert (found.card, found.by) == (card, "environment")


def test_a_short_uuid_that_fits_two_cards_is_neither() -> None:
    assert match((SLOW, FAST, THIRD), CudaDevice(0), visible("GPU-0a0a")).card is None


@pytest.mark.parametrize("text", ["", "-1", "none", "GPU-", "NoDevFiles"])
def test_e4_an_empty_or_malformed_list_hides_every_card(text: str) -> None:
    found = match((SLOW, FAST), CudaDevice(0), visible(text, **BY_BUS))
    assert (found.card, found.reason) == (None, "CUDA_VISIBLE_DEVICES hides every card")


@pytest.mark.parametrize("text", ["1", "0,7,1", "0,-1,1", "0,x,1"])
def test_a_number_beyond_the_list_is_no_card(text: str) -> None:
    found = match((SLOW, FAST), CudaDevice(1), visible(text, **BY_BUS))
    assert found.card is None
    assert found.reason is not None
    assert "number 1 is wanted" in found.reason


@pytest.mark.parametrize("device_id", [0, 1])
def test_e4_the_hosts_device_id_is_cudas_number(device_id: int) -> None:
    by_uuid = match((SLOW, FAST), CudaDevice(device_id, (FAST, SLOW)[device_id].uuid), {})
    by_bus = match((SLOW, FAST), CudaDevice(device_id), BY_BUS)
    assert by_uuid.card == (FAST, SLOW)[device_id]
    assert by_bus.card == (SLOW, FAST)[device_id]


def test_without_a_card_there_is_a_reason() -> None:
    assert match((), CudaDevice(0), {}).reason == "the driver lists no NVIDIA card"


# ---------------------------------------------------------------------------------------------------------------- slices


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (str(SLICES[1].uuid), 2),
        ("MIG-bbbb", 2),
        ("MIG-GPU-99999999-0000-0000-0000-000000000009/5/0", 2),
        ("MIG-GPU-99999999-0000-0000-0000-000000000009/1/0", 0),
        ("0", 0),
        ("GPU-9999", 0),
    ],
)
def test_e4_a_slice_is_found_with_the_card_that_it_is_of(text: str, place: int) -> None:
    found = match((CUT,), CudaDevice(0), visible(text))
    assert found.card == CUT
    assert found.instance is not None
    assert found.instance.position == place


def test_e4_cudas_own_uuid_of_a_slice_finds_it() -> None:
    found = match((FAST, CUT), CudaDevice(0, "bbbb0000-0000-0000-0000-000000000002"), {})
    assert (found.card, found.instance) == (CUT, SLICES[1])


def test_e4_cudas_uuid_of_the_card_and_the_environments_slice_go_together() -> None:
    found = match((FAST, CUT), CudaDevice(0, CUT.uuid), visible(str(SLICES[1].uuid)))
    assert (found.card, found.instance, found.by) == (CUT, SLICES[1], "uuid")


def test_one_of_two_slices_is_not_guessed() -> None:
    found = match((CUT,), CudaDevice(0, CUT.uuid), {})
    assert (found.card, found.instance) == (CUT, None)


def test_a_slice_that_is_not_there_is_no_card() -> None:
    assert match((CUT,), CudaDevice(0), visible("MIG-cccc")).card is None
    assert match((CUT,), CudaDevice(0), visible("MIG-GPU-99999999-0000-0000-0000-000000000009/9/9")).card is None


# --------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, None),
        ("", ()),
        ("0,1", (0, 1)),
        ("+1", (1,)),
        ("1,1", ()),
        ("0,GPU-aa", (0,)),
        ("GPU-aa,0", ("GPU-aa",)),
        ("GPU-aa,GPU-aa", ()),
        ("2,,1", (2,)),
        ("99999999999999", ()),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(text: str | None, entries: tuple[int | str, ...] | None) -> None:
    assert parse_visible(text) == entries


@given(st.text(alphabet="0123456789,-+ gGpPuUmMiI/abcdefx", max_size=60))
def test_any_text_gives_distinct_entries_of_one_kind(text: str) -> None:
    entries = parse_visible(text)
    assert entries is not None
    assert len(set(entries)) == len(entries)
    assert len({type(entry) for entry in entries}) <= 1
    assert all(entry >= 0 if isinstance(entry, int) else entry[:4].upper() in ("GPU-", "MIG-") for entry in entries)


@given(st.lists(st.integers(0, 1000), unique=True), st.sampled_from(["", ",", ",x", ",-1", ",GPU-aa"]))
def test_numbers_come_back_up_to_the_first_that_is_none(numbers: list[int], rest: str) -> None:
    text = ",".join(map(str, numbers)) + rest
    assert parse_visible(text) == tuple(numbers)


@given(st.text(max_size=40), st.integers(-2, 4))
def test_no_environment_makes_a_card_of_the_wrong_number(text: str, ordinal: int) -> None:
    """With the buses' order CUDA's number n is the n-th of the list, or nothing."""
    found = match((SLOW, FAST, THIRD), CudaDevice(ordinal), visible(text, **BY_BUS))
    entries = parse_visible(text) or ()
    if found.card is not None and 0 <= ordinal < len(entries) and isinstance(entries[ordinal], int):
        assert found.card.index == entries[ordinal]
    if ordinal < 0 or ordinal >= len(entries):
        assert found.card is None


@given(st.permutations([SLOW, FAST, THIRD]), st.integers(0, 2))
def test_the_order_of_the_drivers_list_changes_nothing(cards: list[Card], ordinal: int) -> None:
    assert match(cards, CudaDevice(ordinal), BY_BUS).card == (SLOW, FAST, THIRD)[ordinal]


@pytest.mark.parametrize("text", [None, "", "x", "1:2:3:4", "gg:00.0", "0000:01"])
def test_what_is_no_bus_id_is_none(text: str | None) -> None:
    assert bus_key(text) is None


def test_an_unknown_uuid_is_nobodys() -> None:
    assert not same_uuid(None, None)
    assert not same_uuid("GPU-a", None)
