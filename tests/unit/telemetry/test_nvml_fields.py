"""One field in trouble: rows E7 and E9."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.fakes.nvml import Process, scenarios
from tests.fakes.nvml.bench import DESKTOP, FIELDS, FUNCTIONS, Bench, present
from tests.fakes.nvml.module import NOT_SUPPORTED, U64

#: Functions that have another name, which serves where the driver lacks this one.
RENAMED = {
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetPerformanceState",
    "nvmlEventSetWait_v2",
}
NO_EVENT_CAME = ("nvmlEventSetWait_v2", "timeout")


@pytest.mark.parametrize(
    ("function", "error"), [(name, error) for name in FUNCTIONS for error in scenarios.ERRORS if (name, error) != NO_EVENT_CAME]
)
def test_e9_each_function_that_fails_hides_its_own_metrics_only(function: str, error: str) -> None:
    fake = scenarios.desktop()
    fake.failing[function] = scenarios.ERRORS[error]
    hidden = set() if error == "no such function" and function in RENAMED else set(FUNCTIONS[function])
    found = Bench(fake).second()
    assert DESKTOP.keys() - present(found).keys() == hidden - {"gpu_xid"}
    assert all(found[name] is None for name in hidden)


@pytest.mark.parametrize("error", scenarios.ERRORS.values(), ids=scenarios.ERRORS.keys())
@pytest.mark.parametrize("number", FIELDS)
def test_e9_each_numbered_value_that_fails_hides_itself_only(number: int, error: int) -> None:
    fake = scenarios.desktop()
    fake.failing_fields[number] = error
    found = Bench(fake).second()
    assert DESKTOP.keys() - present(found).keys() == set(FIELDS[number])


@pytest.mark.parametrize("sentinel", [0xFFFFFFFF, 9223372036854775794, 2**64 - 1, -1])
@pytest.mark.parametrize(
    "function", [name for name in FUNCTIONS if "Memory" not in name and "Samples" not in name and "Event" not in name]
)
def test_e7_a_sentinel_is_none_in_every_function(function: str, sentinel: int) -> None:
    fake = scenarios.desktop()
    pair = [sentinel, sentinel]
    shaped: dict[str, Any] = {
        "nvmlDeviceGetUtilizationRates": type("Rates", (), {"gpu": sentinel, "memory": sentinel})(),
        "nvmlDeviceGetEncoderUtilization": pair,
        "nvmlDeviceGetDecoderUtilization": pair,
        "nvmlDeviceGetBAR1MemoryInfo": type("Bar", (), {"bar1Used": sentinel, "bar1Total": sentinel})(),
        "nvmlDeviceGetComputeRunningProcesses_v3": [Process(os.getpid(), sentinel), Process(7, sentinel)],
    }
    fake.cards[0].values[function] = shaped.get(function, sentinel)
    fake.cards[0].drawing = []
    found = Bench(fake).second()
    hidden = [name for name in FUNCTIONS[function] if not (sentinel == -1 and name == "gpu_temperature_margin_c")]
    assert [found[name] for name in hidden] == [None] * len(hidden)


@pytest.mark.parametrize("number", FIELDS)
def test_e7_a_sentinel_is_none_in_every_numbered_value(number: int) -> None:
    fake = scenarios.desktop()
    fake.cards[0].fields[number] = (2**64 - 1, U64)
    found = Bench(fake).second()
    assert [found[name] for name in FIELDS[number]] == [None]


@pytest.mark.parametrize("answer", [None, "text", (), object()])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_e9_an_answer_of_another_shape_hides_only_itself(function: str, answer: object) -> None:
    fake = scenarios.desktop()
    fake.cards[0].values[function] = answer
    found = Bench(fake).second()
    gone = DESKTOP.keys() - present(found).keys()
    assert gone <= set(FUNCTIONS[function])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_e9_after_three_errors_in_a_row_a_field_is_back_at_once(function: str) -> None:
    bench = Bench(scenarios.desktop())
    bench.second()
    bench.fake.failing[function] = 999
    for _ in range(3):
        bench.now_s += 0.01
        found = bench.sample()
        assert all(found[name] is None for name in FUNCTIONS[function])
    del bench.fake.failing[function]
    bench.now_s += 0.01
    assert present(bench.sample()).keys() >= DESKTOP.keys() & set(FUNCTIONS[function])


def test_a_field_that_fails_on_and_on_is_asked_ever_more_rarely_and_comes_back_by_itself() -> None:
    bench = Bench(scenarios.desktop())
    bench.fake.failing["nvmlDeviceGetPowerUsage"] = 999
    for _ in range(480):  # two minutes of the fast tier
        bench.fast.sample()
        bench.now_s += 0.25
    assert 5 <= bench.fake.calls["nvmlDeviceGetPowerUsage"] <= 12
    del bench.fake.failing["nvmlDeviceGetPowerUsage"]
    bench.now_s += 30.0
    assert bench.fast.sample()["gpu_power_w"] == pytest.approx(288.25)


def test_what_is_not_supported_is_asked_once_a_minute() -> None:
    bench = Bench(scenarios.desktop())
    bench.fake.failing["nvmlDeviceGetFanSpeed"] = NOT_SUPPORTED
    for _ in range(60):
        bench.slow.sample()
        bench.now_s += 2.0
    assert bench.fake.calls["nvmlDeviceGetFanSpeed"] == 2
