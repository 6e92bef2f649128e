"""Copy rates: the arithmetic, what is kept, and what is said where there is nothing to measure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.nvml import scenarios
from vram_pilot import cli
from vram_pilot.commands.measure import table
from vram_pilot.errors import VramPilotError
from vram_pilot.telemetry import measure as measuring
from vram_pilot.telemetry.measure import copy_rates, driver_version
from vram_pilot.telemetry.measured import FILE, RATES, Measured, Spread, key, load, save
from vram_pilot.telemetry.nvml import Nvml

GIB = 2**30
SIZE = 1024
RATE = Spread(55.0 * GIB, 54.0 * GIB, 56.0 * GIB, 10)
FOUND = Measured("GPU-1", "Fake 4090", "550.90", "2.4.0", "2026-01-01T00:00:00+00:00", SIZE, dict.fromkeys(RATES, RATE))


def rates(seconds: Iterator[float], copied: list[None] | None = None) -> dict[str, Spread]:
    def timed(copy: Any) -> float:
        copy()
        return next(seconds)

    cpu = torch.device("cpu")
    return copy_rates(cpu, SIZE, timed=timed, pinned=lambda size: torch.ones(size, dtype=torch.uint8), warm_up_s=0.0)


def test_each_way_has_the_median_of_ten_and_its_range() -> None:
    def seconds() -> Iterator[float]:
        while True:
            yield 9.0  # the first copy warms up and does not count
            yield from (1.0, 2.0, 4.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0)

    found = rates(seconds())
    assert tuple(found) == RATES
    assert found["pinned_to_device"] == Spread(SIZE / 2.0, SIZE / 4.0, SIZE / 1.0, 10)


def test_within_the_card_each_byte_is_read_and_written() -> None:
    def seconds() -> Iterator[float]:
        while True:
            yield 1.0

    found = rates(seconds())
    assert found["device"].median == 2 * found["pinned_to_device"].median


def test_every_way_copies_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[int, int]] = []
    made: list[torch.Tensor] = []

    def timed(copy: Any) -> float:
        copy()
        return 1.0

    original = torch.Tensor.copy_

    def copy_(self: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        copies.append((other.data_ptr(), self.data_ptr()))
        return original(self, other, non_blocking)

    def pinned(size: int) -> torch.Tensor:
        made.append(torch.ones(size, dtype=torch.uint8))
        return made[0]

    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    copy_rates(torch.device("cpu"), SIZE, timed=timed, pinned=pinned, warm_up_s=0.0)
    up, down, up_paged, down_paged, within = copies[::11]
    assert up[0] == made[0].data_ptr() == down[1]
    assert up == down[::-1]
    assert up_paged == down_paged[::-1]
    assert up[1] == up_paged[1] == within[0]
    assert len({*up, *up_paged, *within}) == 4


# ------------------------------------------------------------------------------------------------------------ keeping


def test_what_was_measured_comes_back_under_its_card_driver_and_torch(tmp_path: Path) -> None:
    other = Measured(**{**FOUND.__dict__, "gpu_uuid": "GPU-2"})
    save(tmp_path, FOUND)
    save(tmp_path, other)
    assert load(tmp_path, key("GPU-1", "550.90", "2.4.0")) == FOUND
    assert load(tmp_path, other.key) == other
    assert load(tmp_path, key("GPU-1", "551.00", "2.4.0")) is None, "another driver may copy at another rate"
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_measuring_again_replaces(tmp_path: Path) -> None:
    save(tmp_path, FOUND)
    newer = Measured(**{**FOUND.__dict__, "size_bytes": 7})
    save(tmp_path, newer)
    assert load(tmp_path, FOUND.key) == newer


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"schema": "vram-pilot/measured/9", "machines": {}}', "null", "\x00"]
)
def test_a_damaged_file_holds_nothing_and_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert load(tmp_path, FOUND.key) is None
    save(tmp_path, FOUND)
    assert load(tmp_path, FOUND.key) == FOUND


@pytest.mark.parametrize("damage", [{"rates": {}}, {"rates": None}, {"rates": {name: {"median": 1} for name in RATES}}])
def test_an_entry_of_another_shape_holds_nothing(tmp_path: Path, damage: dict[str, Any]) -> None:
    save(tmp_path, FOUND)
    content = json.loads((tmp_path / FILE).read_text())
    content["machines"][FOUND.key].update(damage)
    (tmp_path / FILE).write_text(json.dumps(content))
    assert load(tmp_path, FOUND.key) is None


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(VramPilotError, match="cannot be kept"):
        save(blocked, FOUND)


# ------------------------------------------------------------------------------------------------------------ command


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vram_pilot.commands.measure.measure", lambda ordinal: FOUND)


def test_without_cuda_it_refuses_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["measure", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "Copy rates are those of a CUDA card, and torch finds none" in said.err
    assert torch.__version__ in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_card_that_there_is_not_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cli.main(["measure", "--device", "2"]) == 2
    assert "from 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize(("free", "error"), [(8 * 2**20, "8 MiB free"), (0, "0 MiB free")])
def test_a_full_card_is_said_to_be_full(monkeypatch: pytest.MonkeyPatch, free: int, error: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, GIB))
    with pytest.raises(VramPilotError, match=error):
        measuring.measure()


def test_memory_that_runs_out_all_the_same_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, GIB))
    monkeypatch.setattr(measuring, "copy_rates", fail)
    with pytest.raises(VramPilotError, match="not enough memory"):
        measuring.measure()


def test_people_get_a_table(measured: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["measure", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Fake 4090, driver 550.90, torch 2.4.0"
    assert lines[1] == "pinned, to the card         55.0 GiB/s   (54.0 to 56.0, 10 copies)"
    assert len(lines) == 1 + len(RATES)
    assert load(tmp_path, FOUND.key) == FOUND


def test_programs_get_json(measured: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["measure", "--data-dir", str(tmp_path), "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "vram-pilot/measured/1"
    assert said["rates"]["device"] == {"median": 55.0 * GIB, "min": 54.0 * GIB, "max": 56.0 * GIB, "n": 10}
    assert cli.main(["measure", "--data-dir", str(tmp_path), "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == said


def test_an_unknown_driver_is_shown_as_such() -> None:
    assert "driver unknown" in table(Measured(**{**FOUND.__dict__, "driver": None}))


def test_the_drivers_version_is_asked_and_the_library_given_back() -> None:
    fake = scenarios.desktop()
    assert driver_version(Nvml(fake.load)) == "550.90.07"
    assert fake.users == 0
    assert driver_version(Nvml(scenarios.no_driver().load)) is None
