"""Rows of what went wrong for others, as whole jobs with everything that listens to them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.blocks import BLOCKS
from tests.fakes.device import FakeDevice
from tests.fakes.host import FakeHost
from vram_pilot.app import App
from vram_pilot.session.records import Note
from vram_pilot.settings import ModeRequest

LEAN = [ModeRequest("full"), ModeRequest("medvram"), ModeRequest("lowvram", 0), ModeRequest("lowvram", 2)]


class Program:
    """A host with the whole extension in it; sessions: as they were stored, oldest first."""

    def __init__(self, folder: Path, components: Any = None) -> None:
        self.host = FakeHost(components or BLOCKS.make(0), BLOCKS)
        self.app = App(self.host, folder)
        self.app.start()
        self.controller = self.app.controller

    @property
    def sessions(self) -> list[dict[str, Any]]:
        self.app.store.flush()
        rows = self.app.store.list()
        return [self.app.store.get(row["id"]) for row in reversed(rows)]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    torch.set_num_threads(1)
    made = Program(tmp_path)
    yield made
    assert made.app.stop() is None


def out_of_memory(*_: Any, **__: Any) -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("mode", LEAN, ids=str)
def test_case_a2_the_hosts_own_oom_is_what_the_user_reads(
    mode: ModeRequest, program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the job fails, whatever asks the device for its memory fails, too: said once, and the error stays the job's own."""
    program.controller.request(mode)

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("cudaMemGetInfo failed")

    assert program.app.recorder is not None
    monkeypatch.setattr(program.app.recorder, "_memory", fails)
    handle = program.host.module("denoiser").blocks[3].register_forward_pre_hook(out_of_memory)
    with caplog.at_level(logging.WARNING), pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 20\.00 GiB"):
        program.host.generate(3)
    handle.remove()
    assert sum("recording goes on without its memory" in record.message for record in caplog.records) == 1
    (session,) = program.sessions
    assert session["status"] == "oom"
    assert "CUDA out of memory" in session["error"]


@pytest.mark.parametrize("mode", LEAN, ids=str)
@pytest.mark.parametrize("where", ["denoiser", "text_encoder", "vae", "in the switch", "in a copy"])
def test_case_a4_after_an_oom_half_way_the_next_job_mixes_no_devices(
    mode: ModeRequest, where: str, program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = FakeDevice(monkeypatch)
    expected = program.host.generate(3)
    program.controller.request(mode)
    program.host.generate(3)
    with monkeypatch.context() as patch:
        at_step = None
        if where == "in the switch":
            patch.setattr("vram_pilot.streaming.units.Unit.load", out_of_memory)
            other = ModeRequest("lowvram", 1) if mode.mode != "lowvram" else ModeRequest("full")
            at_step = lambda step: program.controller.request(other) if step == 1 else None  # noqa: E731
        elif where == "in a copy":
            patch.setattr(torch, "empty", out_of_memory)
        else:
            layer = [module for module in program.host.module(where).modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]
            layer.register_forward_pre_hook(out_of_memory)
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            program.host.generate(3, at_step=at_step)
        if where in ("denoiser", "text_encoder", "vae"):
            layer._forward_pre_hooks.popitem()
            assert program.host.status is not None
            assert program.host.status[0] == "oom"
    with device.guard():
        assert torch.equal(program.host.generate(3), expected)
        assert program.controller.effective() == mode
        assert torch.equal(program.host.generate(3), expected)


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 1000])
def test_case_b12_the_first_generation_honours_its_budget(
    budget: int, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very first call, not only the ones after it; and what lies beside the budget is reported."""
    device = FakeDevice(monkeypatch)
    denoiser, used = program.host.module("denoiser"), []
    look = denoiser.blocks[4].register_forward_pre_hook(lambda _module, _args: used.append(device.bytes_of(denoiser)))
    program.host.generate(1, mode=ModeRequest("lowvram", budget), at_step=lambda _step: used.clear())
    look.remove()
    program.controller.request(ModeRequest("lowvram", budget))
    report = program.controller.report()
    assert report.resident_bytes is not None
    assert report.resident_bytes <= budget * 2**20
    assert used
    assert max(used) <= budget * 2**20 + report.slot_bytes


@pytest.mark.parametrize("mode", [ModeRequest("full"), ModeRequest("lowvram", 1000)], ids=str)
def test_case_b15_a_denoiser_that_fits_is_not_sent_back_and_forth(
    mode: ModeRequest, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is in, no step and no job copies it again."""
    device = FakeDevice(monkeypatch)
    denoiser, found = program.host.module("denoiser"), []
    program.controller.request(mode)
    program.host.generate(2)
    before = program.controller.report().streamed_bytes
    for _ in range(2):
        program.host.generate(3, at_step=lambda _step: found.append([weight.data_ptr() for weight in denoiser.parameters()]))
    assert len(found) == 6 and all(places == found[0] for places in found)
    assert device.bytes_of(denoiser) == sum(weight.nbytes for weight in denoiser.parameters())
    assert program.controller.report().streamed_bytes == before


@pytest.mark.parametrize("mode", LEAN, ids=str)
def test_case_b16_an_interrupt_at_step_5_is_recorded_and_the_next_job_is_right(mode: ModeRequest, program: Program) -> None:
    expected = program.host.generate(3)
    program.controller.request(mode)
    program.host.generate(20, at_step=lambda step: program.host.interrupt() if step == 5 else None)
    assert torch.equal(program.host.generate(3), expected)
    assert [session["status"] for session in program.sessions] == ["ok", "interrupted", "ok"]
    assert len(program.sessions[1]["steps"]) == 6


def test_case_b14_a_switch_in_mid_job_is_in_the_session(program: Program) -> None:
    def switch(step: int) -> None:
        if step == 1:
            answer = program.controller.request(ModeRequest("lowvram", 2))
            assert answer.applies == "next_step"

    program.host.generate(4, mode=ModeRequest("medvram"), at_step=switch)
    (session,) = program.sessions
    assert [(change["from"], change["to"], change["step"]) for change in session["mode"]["history"]] == [
        ("as-launched", "medvram", None),
        ("medvram", "lowvram, budget 2 MiB", 2),
        ("lowvram, budget 2 MiB", "as-launched", None),
    ]
    assert program.app.infotext() == "medvram > lowvram, budget 2 MiB"


def test_case_b3_the_sessions_go_on_while_models_come_and_go(program: Program, tmp_path: Path) -> None:
    own = program.host.components()
    program.controller.request(ModeRequest("medvram"))
    program.host.exchange(())
    assert program.controller.request(ModeRequest("lowvram", 0)).effective == ModeRequest()
    assert "no model is loaded" in (program.controller.refusal() or "")
    program.host.exchange(own)
    program.host.generate(2)
    assert program.controller.effective() == ModeRequest("lowvram", 0)
    assert program.sessions[-1]["status"] == "ok"
    assert not [record for record in program.app.timeline.after(0).records if isinstance(record, Note)]


def test_the_fakes_of_this_file_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that was left at home is read: that is the mix of devices which the rows above are about."""
    from tests.fakes.device import WrongDevice
    from vram_pilot.streaming.pinned import HostMemory
    from vram_pilot.streaming.units import Unit
    from vram_pilot.streaming.weights import all_weights

    device = FakeDevice(monkeypatch)
    layer = BLOCKS.make(0)[2].module
    unit = Unit("", layer, all_weights(layer))
    unit.take_home(HostMemory(0.5), torch.device("cpu"))
    with device.guard(), pytest.raises(WrongDevice):
        layer(torch.zeros(1, 256))
