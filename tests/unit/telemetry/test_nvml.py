"""The gate to the driver's library: what differs between bindings and drivers stops here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.nvml import FakeCard, FakeNvml, NVMLError, scenarios
from tests.fakes.nvml.bench import UUID, Bench
from tests.fakes.nvml.module import FUNCTION_NOT_FOUND, GPU_IS_LOST, NOT_SUPPORTED, U32, UNKNOWN
from tests.fakes.nvml.scenarios import no_driver, no_library
from vram_pilot.telemetry.cards import CudaDevice
from vram_pilot.telemetry.nvml import Fault, FieldValue, Nvml, number, text

EVENTS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


def opened(fake: FakeNvml) -> Nvml:
    nvml = Nvml(fake.load)
    nvml.open()
    return nvml


def handle(nvml: Nvml) -> Any:
    return nvml.call("nvmlDeviceGetHandleByIndex", args=(0,))


# -------------------------------------------------------------------------------------------------------------- starting


def test_nothing_is_loaded_before_the_first_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert not Nvml().is_open
    assert "pynvml" not in sys.modules


def test_e1_without_the_package_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Fault, match="nvidia-ml-py is not installed") as caught:
        Nvml().open()
    assert caught.value.kind == "absent"


@pytest.mark.parametrize("error", [OSError("bad image"), AttributeError("x"), RuntimeError("zluda"), SyntaxError("y")])
def test_e2_a_binding_that_breaks_while_it_is_imported_is_an_absent_one(error: Exception) -> None:
    def load() -> Any:
        raise error

    nvml = Nvml(load)
    with pytest.raises(Fault, match=f"does not load \\({type(error).__name__}\\)") as caught:
        nvml.open()
    assert caught.value.kind == "absent"
    assert not nvml.is_open


@pytest.mark.parametrize("machine", [no_driver, no_library])
def test_e1_without_a_driver_it_says_so(machine: Any) -> None:
    with pytest.raises(Fault, match="no NVIDIA driver answers") as caught:
        opened(machine())
    assert caught.value.kind == "absent"


def test_it_is_started_once_and_given_back_once() -> None:
    fake = FakeNvml(FakeCard())
    nvml = opened(fake)
    nvml.open()
    assert fake.users == 1
    nvml.close()
    nvml.close()
    assert fake.users == 0
    nvml.open()
    assert fake.users == 1


def test_a_driver_that_is_gone_at_the_end_is_no_error() -> None:
    fake = FakeNvml(FakeCard())
    nvml = opened(fake)
    fake.failing["nvmlShutdown"] = UNKNOWN
    nvml.close()
    assert not nvml.is_open


def test_a_call_after_the_end_is_a_fault() -> None:
    nvml = opened(FakeNvml(FakeCard()))
    nvml.close()
    with pytest.raises(Fault):
        nvml.call("nvmlDeviceGetCount")


# ----------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("gone", EVENTS)
@pytest.mark.parametrize("how", ["missing", "absent"])
def test_e2_either_name_of_a_function_serves(gone: str, how: str) -> None:
    fake = FakeNvml(FakeCard())
    getattr(fake, how).add(gone)
    nvml = opened(fake)
    assert nvml.call(*EVENTS, args=(handle(nvml),)) == 0x24


def test_e2_the_name_that_serves_is_asked_at_once_from_then_on() -> None:
    fake = FakeNvml(FakeCard())
    fake.absent.add(EVENTS[0])
    nvml = opened(fake)
    for _ in range(5):
        nvml.call(*EVENTS, args=(handle(nvml),))
    assert fake.calls[EVENTS[0]] == 1


def test_the_bindings_own_word_for_a_missing_function_counts_as_one() -> None:
    class NVMLLibraryMismatchError(Exception):
        pass

    def mismatch(*args: Any) -> Any:
        raise NVMLLibraryMismatchError

    module = SimpleNamespace(nvmlInit=lambda: None, old=mismatch, new=lambda: 5)
    nvml = Nvml(lambda: module)
    nvml.open()
    assert nvml.call("old", "new") == 5


@pytest.mark.parametrize(
    ("code", "kind"),
    [(NOT_SUPPORTED, "unsupported"), (4, "unsupported"), (FUNCTION_NOT_FOUND, "unsupported"), (UNKNOWN, "failed")],
)
def test_an_error_is_a_fault_of_its_kind(code: int, kind: str) -> None:
    fake = FakeNvml(FakeCard())
    nvml = opened(fake)
    one = handle(nvml)
    fake.failing["nvmlDeviceGetPowerUsage"] = code
    with pytest.raises(Fault) as caught:
        nvml.call("nvmlDeviceGetPowerUsage", args=(one,))
    assert caught.value.kind == kind
    assert caught.value.code == code


def test_a_lost_card_is_a_fault_of_its_own_kind() -> None:
    fake = FakeNvml(FakeCard())
    nvml = opened(fake)
    one = handle(nvml)
    fake.cards[0].lost = True
    with pytest.raises(Fault, match="lost") as caught:
        nvml.call("nvmlDeviceGetPowerUsage", args=(one,))
    assert (caught.value.kind, caught.value.code) == ("lost", GPU_IS_LOST)


def test_e2_a_binding_that_raises_something_else_is_a_fault_too() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise NVMLError(1)

    def function() -> Any:
        raise Speechless

    nvml = Nvml(lambda: SimpleNamespace(nvmlInit=lambda: None, function=function))
    nvml.open()
    with pytest.raises(Fault, match="Speechless"):
        nvml.call("function")


# ---------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("raw", ["GPU-1", b"GPU-1", b"GPU-1\0\0", "GPU-1\0x", " GPU-1 "])
def test_e2_text_comes_as_bytes_or_str(raw: object) -> None:
    assert text(raw) == "GPU-1"


@pytest.mark.parametrize("raw", [None, 5, b"", "", b"\0\0"])
def test_what_is_no_text_is_none(raw: object) -> None:
    assert text(raw) is None


def test_text_that_is_no_utf8_is_still_text() -> None:
    assert text(b"caf\xe9") == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "raw",
    [
        9223372036854775794,  # "not supported" as DCGM exporters spread it
        9223372036854775792,
        2**63 - 1,
        2**63,
        2**64 - 1,
        0xFFFFFFFF,
        -1,
        -1.0,
        2147483632,
        2147483634,
        140737488355328.0,
        140737488355330.0,
        float("nan"),
        float("inf"),
        None,
        "5",
        True,
    ],
)
def test_e7_what_stands_for_not_available_is_none_and_never_a_number(raw: object) -> None:
    assert number(raw) is None


@pytest.mark.parametrize("raw", [0, 1, 97, 0.5, 141 * 2**30, 2**40, 0xFFFFFFFE, 10**15])
def test_what_is_a_number_stays_one(raw: float) -> None:
    assert number(raw) == raw


def test_a_field_value_knows_the_width_of_its_counter() -> None:
    card = FakeCard()
    card.fields[197] = (77, U32)
    nvml = opened(FakeNvml(card, clock=lambda: 12.5))
    assert nvml.values(handle(nvml), [197, 198]) == [FieldValue(77, 32, 12.5), FieldValue(2_000, 64, 12.5)]


def test_e9_one_field_that_is_not_available_spoils_no_other() -> None:
    fake = FakeNvml(FakeCard())
    fake.failing_fields[197] = NOT_SUPPORTED
    nvml = opened(fake)
    first, second = nvml.values(handle(nvml), [197, 198])
    assert isinstance(first, Fault)
    assert isinstance(second, FieldValue)


def test_e7_a_sentinel_in_a_field_is_a_fault() -> None:
    card = FakeCard()
    card.fields[186] = (0xFFFFFFFF, U32)
    nvml = opened(FakeNvml(card))
    assert isinstance(nvml.values(handle(nvml), [186])[0], Fault)


def test_a_driver_that_refuses_the_whole_call_for_one_field_is_asked_for_each() -> None:
    asked: list[list[int]] = []

    def values(handle: object, ids: list[int]) -> Any:
        asked.append(ids)
        if 271 in ids:
            raise NVMLError(2)
        answer = SimpleNamespace(ullVal=5)
        return [SimpleNamespace(nvmlReturn=0, valueType=3, timestamp=0, value=answer) for _ in ids]

    nvml = Nvml(lambda: SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetFieldValues=values))
    nvml.open()
    found = nvml.values(None, [82, 271, 186])
    assert [isinstance(each, FieldValue) for each in found] == [True, False, True]
    assert asked == [[82, 271, 186], [82], [271], [186]]


def test_every_function_that_is_called_is_one_of_the_real_bindings() -> None:
    import pynvml

    fakes = [scenarios.desktop(), scenarios.old_binding(), scenarios.mig()]
    for fake in fakes:
        bench = Bench(fake, CudaDevice(0, None if fake is fakes[2] else UUID))
        bench.second()
        bench.close()
    called = {name for fake in fakes for name in fake.calls}
    assert len(called) > 50
    assert [name for name in called if not hasattr(pynvml, name)] == []


def test_e1_the_real_binding_on_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    with pytest.raises(Fault, match="no NVIDIA driver answers \\(NVML Shared Library Not Found\\)"):
        Nvml().open()
