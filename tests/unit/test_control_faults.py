"""Switches that fail, many threads at once, and the ends of a program."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.controlled import AS_LAUNCHED, FULL, LOWVRAM, MEDVRAM, Controlled, at
from tests.fakes.device import FakeDevice
from vram_pilot.errors import ActivationError, RefusedError
from vram_pilot.modes.as_launched import AsLaunched
from vram_pilot.modes.full import Full
from vram_pilot.modes.lowvram import LowVram
from vram_pilot.modes.medvram import MedVram
from vram_pilot.session.records import ModeChanged
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.units import Unit


@pytest.fixture
def rig(tmp_path: Path) -> Controlled:
    torch.set_num_threads(1)
    return Controlled(tmp_path)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


class Broken(RuntimeError):
    """A fault that is put in."""


def breaks(*_: Any, **__: Any) -> None:
    raise Broken("put in")


# --------------------------------------------------------------------------------------------------- switches that fail


@pytest.mark.parametrize("before", [AS_LAUNCHED, FULL, MEDVRAM, LOWVRAM], ids=str)
@pytest.mark.parametrize("failing", [Full, MedVram, LowVram])
def test_a_mode_that_cannot_be_entered_leaves_the_one_before(
    rig: Controlled, before: ModeRequest, failing: type, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before.mode == failing.name:
        before = dataclasses.replace(before, budget_mib=2) if failing is LowVram else AS_LAUNCHED
    rig.controller.request(before)
    place, left = failing.place, [1]

    def fails_once(*args: Any) -> None:
        if left:
            left.pop()
            raise Broken("put in")
        place(*args)

    monkeypatch.setattr(failing, "place", fails_once)
    with pytest.raises(ActivationError, match="put in") as error:
        rig.controller.request(ModeRequest(failing.name))
    assert f"{before.mode} is in force" in str(error.value)
    assert rig.controller.effective() == rig.controller.standing() == before
    assert [record.failed for record in rig.records(ModeChanged)][-1] is True
    with device.guard():
        assert rig.in_force_at_each_step(3) == [before.mode] * 3


def test_in_mid_job_a_failing_switch_is_noted_once_and_the_job_goes_on(
    rig: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.controller.request(LOWVRAM)
    monkeypatch.setattr(MedVram, "place", breaks)
    assert rig.in_force_at_each_step(3, at(0, lambda: rig.controller.request(MEDVRAM))) == ["lowvram"] * 3
    assert rig.notes().count("medvram was not entered") == 1
    assert rig.host.faults == []


def test_when_the_way_back_fails_too_everything_is_as_launched(rig: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.controller.request(LOWVRAM)
    monkeypatch.setattr(MedVram, "place", breaks)
    monkeypatch.setattr(LowVram, "place", breaks)
    with pytest.raises(ActivationError, match="as-launched is in force"):
        rig.controller.request(MEDVRAM)
    assert rig.controller.effective() == AS_LAUNCHED
    assert rig.restored()
    assert rig.host.taken_over is None
    assert rig.in_force_at_each_step(3) == ["as-launched"] * 3


def test_when_nothing_can_be_entered_the_job_is_stopped(rig: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.controller.request(LOWVRAM)
    calls: list[int] = []
    rig.host.module("denoiser").register_forward_pre_hook(lambda _module, _args: calls.append(1))
    with monkeypatch.context() as patch:
        for mode in (MedVram, LowVram, AsLaunched):
            patch.setattr(mode, "activate", breaks)
        rig.host.generate(6, at_step=at(1, lambda: rig.controller.request(MEDVRAM)))
        assert rig.host.status == ("interrupted", None)
        assert rig.host.interrupts >= 1
        assert len(calls) == 3, "the step of the switch is the last one"
        assert "might be wrong" in rig.notes()
    rig.host.module("denoiser")._forward_pre_hooks.popitem()
    rig.controller.request(AS_LAUNCHED)
    assert rig.restored()
    assert torch.equal(rig.host.generate(), rig.plain)


@pytest.mark.parametrize("where", ["drop", "go_home", "release", "load", "take_home"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_switch_that_is_broken_off_is_finished_before_the_next_call(
    rig: Controlled, where: str, kind: type[BaseException], device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.controller.request(MEDVRAM)
    rig.host.generate(1)
    with monkeypatch.context() as patch:
        patch.setattr(Unit, where, _raises(kind))
        try:
            rig.controller.request(LOWVRAM)
            rig.controller.request(AS_LAUNCHED)
        except kind:
            pass
    with device.guard():
        assert torch.equal(rig.host.generate(), rig.plain)
    rig.controller.request(AS_LAUNCHED)
    assert rig.restored()


@pytest.mark.parametrize("where", ["drop", "load", "views"])
def test_a_switch_in_mid_job_that_is_broken_off_is_made_good_before_the_next_job(
    where: str, rig: Controlled, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode in force had been left already: it counts as in force no longer."""
    rig.controller.request(MEDVRAM)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def switch(step: int) -> None:
            if step == 1:
                patch.setattr(Unit, where, _raises(KeyboardInterrupt))
                rig.controller.request(ModeRequest("lowvram", 2), "job")

        rig.host.generate(3, at_step=switch)
    with device.guard():
        assert rig.in_force_at_each_step(3) == ["medvram"] * 3


def _raises(kind: type[BaseException]) -> Callable[..., None]:
    def broken_off(*_: Any) -> None:
        raise kind

    return broken_off


def test_a_job_whose_end_cannot_be_tidied_up(rig: Controlled, device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.controller.request(LOWVRAM)
    with monkeypatch.context() as patch:
        patch.setattr(rig.controller.bank, "settle", breaks)
        rig.host.generate(2)
    assert rig.host.faults == []
    assert rig.controller.state()["in_job"] is False
    with device.guard():
        assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_two_requests_at_once_leave_what_came_last(rig: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them fails while the second one is being answered: the second one's standing mode stays."""
    place = MedVram.place

    def slow(self: MedVram, *args: Any) -> None:
        assert rig.controller.request(LOWVRAM, "standing").applies == "next_job"
        raise Broken("put in")

    monkeypatch.setattr(MedVram, "place", slow)
    with pytest.raises(ActivationError):
        rig.controller.request(MEDVRAM)
    monkeypatch.setattr(MedVram, "place", place)
    assert rig.controller.standing() == LOWVRAM
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


# -------------------------------------------------------------------------------------------------------------- threads


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    """Every thread in here must have ended, soon, when the test has."""
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join(20)
    assert not any(thread.is_alive() for thread in started), "a deadlock"


def test_requests_from_many_threads_in_jobs(rig: Controlled, threads: list[threading.Thread], device: FakeDevice) -> None:
    done = threading.Event()
    wrong: list[BaseException] = []
    modes = (AS_LAUNCHED, FULL, MEDVRAM, LOWVRAM, ModeRequest("lowvram", 2))

    def hammer(number: int) -> None:
        try:
            count = number
            while not done.is_set():
                count += 1
                try:
                    rig.controller.request(modes[count % len(modes)], (None, "standing", "job")[count % 3])
                except RefusedError as error:
                    assert "No job is running" in str(error)
                rig.controller.state()
        except BaseException as error:
            wrong.append(error)

    for number in range(4):
        threads.append(threading.Thread(target=hammer, args=(number,), daemon=True))
        threads[-1].start()
    try:
        for _ in range(8):
            assert torch.equal(rig.host.generate(), rig.plain)
    finally:
        done.set()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    assert rig.host.faults == []
    rig.controller.request(AS_LAUNCHED)
    assert rig.restored()


def test_a_live_preview_calls_the_vae_while_the_denoiser_runs(
    rig: Controlled, threads: list[threading.Thread], device: FakeDevice
) -> None:
    probe = torch.linspace(-1, 1, 256)[None]
    vae = rig.host.module("vae")
    with torch.no_grad():
        expected = vae(probe)
    for mode in (FULL, MEDVRAM, LOWVRAM, ModeRequest("lowvram", 2)):
        rig.controller.request(mode)
        done, wrong, previews = threading.Event(), [], []

        def preview(done: threading.Event = done, wrong: list[Any] = wrong, previews: list[Any] = previews) -> None:
            try:
                with torch.no_grad(), device.guard():
                    while not done.is_set():
                        assert torch.equal(vae(probe), expected)
                        previews.append(1)
            except BaseException as error:
                wrong.append(error)

        threads.append(threading.Thread(target=preview, daemon=True))
        threads[-1].start()
        with device.guard():
            images = [rig.host.generate() for _ in range(5)]
        done.set()
        threads[-1].join(20)
        assert wrong == []
        assert previews
        assert all(torch.equal(image, rig.plain) for image in images)
    rig.controller.request(AS_LAUNCHED)
    assert rig.restored()


# ------------------------------------------------------------------------------------------------------- stop and start


def test_stopping_puts_everything_back(rig: Controlled) -> None:
    rig.controller.request(LOWVRAM)
    assert rig.controller.stop() is True
    assert rig.controller.effective() == AS_LAUNCHED
    assert rig.restored()


def test_stopping_waits_for_a_running_job(rig: Controlled, threads: list[threading.Thread]) -> None:
    rig.controller.request(LOWVRAM)
    inside, go_on = threading.Event(), threading.Event()

    def pause(step: int) -> None:
        if step == 1:
            inside.set()
            go_on.wait(10)

    images: list[torch.Tensor] = []
    threads.append(threading.Thread(target=lambda: images.append(rig.host.generate(at_step=pause))))
    threads[0].start()
    assert inside.wait(10)
    assert rig.controller.stop(timeout_s=0.05) is False
    go_on.set()
    assert rig.controller.stop(timeout_s=10) is True
    assert rig.restored()
    threads[0].join(10)
    assert torch.equal(images[0], rig.plain)


def test_a_nested_job_belongs_to_the_one_around_it(rig: Controlled) -> None:
    modes: list[str] = []

    def nested(step: int) -> None:
        if step == 1:
            rig.controller.job_started(_job(FULL))
        modes.append(rig.controller.effective().mode)

    rig.host.generate(3, mode=MEDVRAM, at_step=nested)
    assert modes == ["medvram"] * 3


def _job(mode: ModeRequest) -> Any:
    from vram_pilot.hosts.base import JobInfo

    return JobInfo(mode=mode)


def test_a_refusal_from_elsewhere_is_shown(rig: Controlled, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rig.controller.refuse("mode has a value that is not allowed")
    assert rig.controller.refusal() == rig.notes() == "mode has a value that is not allowed"
    rig.host.generate(1)
    assert rig.controller.refusal() is None
