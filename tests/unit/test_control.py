"""Requests, their scopes and refusals, models that come and go, and switches that fail."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.blocks import BLOCKS
from tests.fakes.device import FakeDevice
from tests.fakes.host import FakeHost
from tests.fakes.state import differences, state_of
from vram_pilot.control import Controller
from vram_pilot.errors import ActivationError, RefusedError, UsageError
from vram_pilot.modes.as_launched import AsLaunched
from vram_pilot.modes.full import Full
from vram_pilot.modes.lowvram import LowVram
from vram_pilot.modes.medvram import MedVram
from vram_pilot.session.records import ModeChanged, Note
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import MAX_BUDGET_MIB, ModeRequest, parse_mode_request
from vram_pilot.streaming.units import Unit

AS_LAUNCHED, FULL, MEDVRAM, LOWVRAM = ModeRequest(), ModeRequest("full"), ModeRequest("medvram"), ModeRequest("lowvram", 0)


class Rig:
    """A host, its controller, and what they wrote down."""

    def __init__(self, state_dir: Path) -> None:
        self.timeline = Timeline()
        self.host = FakeHost(BLOCKS.make(0), BLOCKS)
        self.controller = Controller(self.host, self.timeline, state_dir)
        self.host.subscribe(self.controller)
        self.plain = self.host.generate()
        self.own = self.host.components()
        self.before = state_of(self.own)

    def records(self, kind: type) -> list[Any]:
        return [record for record in self.timeline.after(0).records if isinstance(record, kind)]

    def notes(self) -> str:
        return "\n".join(note.text for note in self.records(Note))

    def restored(self) -> bool:
        return differences(self.before, state_of(self.own)) == []

    def in_force_at_each_step(
        self, steps: int = 4, at_step: Callable[[int], None] = lambda step: None, **job: Any
    ) -> list[str]:
        """The modes under which the steps of a job were computed; the image must be the right one."""
        seen: list[str] = []
        denoiser = self.host.module("denoiser")
        look = denoiser.register_forward_pre_hook(lambda _module, _args: seen.append(self.controller.effective().mode))
        image = self.host.generate(steps, at_step=at_step, **job)
        look.remove()
        if steps == 3:
            assert torch.equal(image, self.plain)
        return seen


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    torch.set_num_threads(1)
    return Rig(tmp_path)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


class Broken(RuntimeError):
    """A fault that is put in."""


def breaks(*_: Any, **__: Any) -> None:
    raise Broken("put in")


def at(number: int, work: Callable[[], object]) -> Callable[[int], None]:
    """`work` at the boundary of one step."""
    return lambda step: work() if step == number else None  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("scope", [None, "standing"])
def test_when_idle_a_request_is_carried_out_before_it_is_answered(rig: Rig, scope: str | None) -> None:
    answer = rig.controller.request(MEDVRAM, scope)
    assert (answer.requested, answer.effective, answer.applies, answer.refusal) == (MEDVRAM, MEDVRAM, "now", None)
    assert rig.controller.standing() == rig.controller.effective() == MEDVRAM
    assert rig.host.taken_over is True
    (record,) = rig.records(ModeChanged)
    assert (record.from_mode, record.to_mode, record.step, record.failed) == ("as-launched", "medvram", None, False)


def test_the_same_request_again_moves_nothing(rig: Rig) -> None:
    rig.controller.request(LOWVRAM)
    executor = rig.controller.bank.executor
    assert rig.controller.request(LOWVRAM).applies == "now"
    assert rig.controller.bank.executor is executor
    assert len(rig.records(ModeChanged)) == 1


def test_another_budget_is_another_request(rig: Rig) -> None:
    rig.controller.request(LOWVRAM)
    assert rig.controller.report().resident_bytes == 0
    rig.controller.request(ModeRequest("lowvram", 2))
    assert 0 < (rig.controller.report().resident_bytes or 0) <= 2 * 2**20


def test_case_b14_in_mid_job_a_request_holds_from_the_next_step_to_the_jobs_end(rig: Rig) -> None:
    answers: list[Any] = []
    seen = rig.in_force_at_each_step(4, at(1, lambda: answers.append(rig.controller.request(MEDVRAM))))
    assert (answers[0].effective, answers[0].applies) == (AS_LAUNCHED, "next_step")
    assert seen == ["as-launched", "as-launched", "medvram", "medvram"]
    assert rig.controller.effective() == rig.controller.standing() == AS_LAUNCHED
    assert [(record.to_mode, record.step) for record in rig.records(ModeChanged)] == [("medvram", 2), ("as-launched", None)]
    assert rig.restored()


def test_case_b14_a_standing_request_in_mid_job_holds_for_the_jobs_after_it(rig: Rig) -> None:
    seen = rig.in_force_at_each_step(3, at(0, lambda: rig.controller.request(LOWVRAM, "standing")))
    assert seen == ["as-launched", "lowvram", "lowvram"]
    assert rig.controller.effective() == rig.controller.standing() == LOWVRAM
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_a_standing_request_takes_the_place_of_what_the_job_itself_asked_for(rig: Rig) -> None:
    seen = rig.in_force_at_each_step(3, at(1, lambda: rig.controller.request(FULL, "standing")), mode=MEDVRAM)
    assert seen == ["medvram", "medvram", "full"]
    assert rig.controller.effective() == FULL


def test_what_a_job_asks_for_ends_with_it(rig: Rig) -> None:
    rig.controller.request(FULL)
    assert rig.in_force_at_each_step(3, mode=LOWVRAM) == ["lowvram"] * 3
    assert rig.controller.effective() == rig.controller.standing() == FULL
    assert rig.controller.job_modes() == (LOWVRAM,)


def test_asking_for_what_is_in_force_applies_now(rig: Rig) -> None:
    rig.controller.request(MEDVRAM)
    answers: list[Any] = []
    rig.host.generate(2, at_step=at(0, lambda: answers.append(rig.controller.request(MEDVRAM))))
    assert answers[0].applies == "now"


def test_a_request_for_a_job_needs_a_job(rig: Rig) -> None:
    with pytest.raises(RefusedError, match="No job is running") as refusal:
        rig.controller.request(MEDVRAM, "job")
    assert "standing" in (refusal.value.do or "")
    assert rig.controller.standing() == AS_LAUNCHED


def test_an_unknown_scope_is_named(rig: Rig) -> None:
    with pytest.raises(UsageError, match="scope") as refusal:
        rig.controller.request(MEDVRAM, "for ever")
    assert "job, standing" in str(refusal.value)


@pytest.mark.parametrize(
    "request_", [ModeRequest("tensorrt"), ModeRequest("auto"), ModeRequest("full", accelerate="compile"), ModeRequest("warp")]
)
def test_what_is_not_built_is_refused_by_name(rig: Rig, request_: ModeRequest) -> None:
    with pytest.raises(RefusedError) as refusal:
        rig.controller.request(request_)
    assert refusal.value.found in (request_.mode, request_.accelerate)
    assert rig.controller.effective() == AS_LAUNCHED


@pytest.mark.parametrize("mode", ["as-launched", "full", "medvram"])
def test_a_budget_without_lowvram_is_refused(rig: Rig, mode: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        rig.controller.request(ModeRequest(mode, 100))


@pytest.mark.parametrize("budget", [-31528, -1, "-1", 1.5, MAX_BUDGET_MIB + 1, "much", float("nan"), float("inf"), True, []])
def test_case_b13_a_budget_out_of_range_is_never_taken(budget: object) -> None:
    with pytest.raises(UsageError, match="budget_mib"):
        parse_mode_request({"mode": "lowvram", "budget_mib": budget})


def test_an_obstacle_of_the_host_is_the_refusal(rig: Rig) -> None:
    rig.host.blocked_by = "the denoiser is executed by another extension"
    for mode in (FULL, MEDVRAM, LOWVRAM):
        with pytest.raises(RefusedError, match="executed by another extension"):
            rig.controller.request(mode)
    assert rig.controller.request(AS_LAUNCHED).applies == "now"
    assert rig.controller.standing() == AS_LAUNCHED


def test_an_obstacle_that_comes_later_costs_its_jobs_only(rig: Rig) -> None:
    """The standing mode is kept: it holds again when the obstacle has gone."""
    rig.host.blocked_by = "busy"
    with pytest.raises(RefusedError):
        rig.controller.request(MEDVRAM)
    rig.host.blocked_by = None
    rig.host.queue.acquire()
    assert rig.controller.request(MEDVRAM).applies == "next_job"
    rig.host.queue.release()
    rig.host.blocked_by = "busy"
    assert rig.in_force_at_each_step(3) == ["as-launched"] * 3
    assert "busy" in (rig.controller.refusal() or "")
    assert rig.notes().count("medvram was not entered") == 1, "said once a job, not at every step"
    assert rig.controller.standing() == MEDVRAM
    rig.host.blocked_by = None
    assert rig.in_force_at_each_step(3) == ["medvram"] * 3
    assert rig.controller.refusal() is None


def test_what_a_job_asks_for_and_cannot_have_leaves_it_in_the_mode_in_force(rig: Rig) -> None:
    rig.controller.request(MEDVRAM)
    rig.host.blocked_by = "busy"
    assert rig.in_force_at_each_step(3, mode=LOWVRAM) == ["medvram"] * 3
    rig.host.blocked_by = None
    assert rig.controller.standing() == rig.controller.effective() == MEDVRAM


def test_a_held_queue_means_the_next_job(rig: Rig) -> None:
    with rig.host.queue:
        answer = rig.controller.request(LOWVRAM)
    assert (answer.effective, answer.applies) == (AS_LAUNCHED, "next_job")
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_a_request_in_mid_job_is_checked_while_weights_move(rig: Rig) -> None:
    """The weights of a streamed block lie where another's lay a moment ago: that is no fault of the model."""
    rig.controller.request(LOWVRAM)
    block = rig.host.module("denoiser").blocks[3].inner
    handle = block.register_forward_pre_hook(lambda _module, _args: rig.controller.request(MEDVRAM, "job") and None)
    rig.host.generate(2)
    handle.remove()
    assert rig.host.faults == []


def test_state_can_be_read_at_any_time(rig: Rig) -> None:
    wrong: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                state = rig.controller.state()
                assert state["slot_bytes"] >= 0  # type: ignore[operator]
        except BaseException as error:
            wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for mode in (FULL, LOWVRAM, MEDVRAM, ModeRequest("lowvram", 2), AS_LAUNCHED) * 2:
        rig.controller.request(mode)
        rig.host.generate(1)
    done.set()
    reader.join(10)
    assert wrong == []


# ------------------------------------------------------------------------------------------------- models come and go


@pytest.mark.parametrize("before", [AS_LAUNCHED, FULL, MEDVRAM, LOWVRAM], ids=str)
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_case_b3_a_mode_asked_for_without_a_model_is_applied_when_one_is_loaded(
    rig: Rig, before: ModeRequest, told: bool
) -> None:
    rig.controller.request(before)
    own = rig.host.components()
    exchange: Callable[[Any], None] = (
        rig.host.exchange if told else lambda parts: setattr(rig.host, "components_now", parts)  # type: ignore[assignment]
    )
    exchange(())
    for mode in (LOWVRAM, MEDVRAM, FULL, MEDVRAM):
        answer = rig.controller.request(mode)
        assert (answer.effective, answer.applies) == (AS_LAUNCHED, "next_job")
    assert "no model is loaded" in (rig.controller.refusal() or "")
    assert rig.controller.state()["effective"] == AS_LAUNCHED.to_json()
    assert rig.restored(), "what is left of a model that went away is as it was launched"
    assert rig.controller.bank.memory.pageable_bytes == 0
    exchange(own)
    if told:
        assert rig.controller.refusal() is None
    assert rig.in_force_at_each_step(3) == ["medvram"] * 3
    assert rig.host.faults == []


def test_another_model_in_mid_job(rig: Rig, device: FakeDevice) -> None:
    """As a refiner does it."""
    own, refiner = rig.host.components(), BLOCKS.make(8)
    expected = rig.host.generate(4, at_step=at(1, lambda: rig.host.exchange(refiner)))
    rig.host.exchange(own)
    state = state_of(refiner)
    for mode in (FULL, MEDVRAM, LOWVRAM):
        rig.controller.request(mode)
        with device.guard():
            seen: list[str] = []

            def change(step: int, seen: list[str] = seen) -> None:
                if step == 1:
                    rig.host.exchange(refiner)
                seen.append(rig.controller.effective().mode)

            assert torch.equal(rig.host.generate(4, at_step=change), expected)
        assert seen == [mode.mode, "as-launched", mode.mode, mode.mode], "it is entered again before the next call"
        assert rig.restored()
        rig.host.exchange(own)
        assert differences(state, state_of(refiner)) == []


def test_a_model_that_was_only_moved_is_entered_again(rig: Rig, device: FakeDevice) -> None:
    for mode in (MEDVRAM, LOWVRAM):
        rig.controller.request(mode)
        with device.guard():
            image = rig.host.generate(3, at_step=at(1, lambda: rig.host.exchange(rig.host.components())))
        assert torch.equal(image, rig.plain)
        assert rig.controller.effective() == mode


def test_changed_without_changing_in_the_denoisers_own_call(rig: Rig, device: FakeDevice) -> None:
    """An adapter counts calls by a hook on the denoiser, so that a mode may be entered inside a call that has begun."""
    denoiser = rig.host.module("denoiser")
    rig.host.listener = _Without(rig.controller, "call_started")
    for mode in (MEDVRAM, LOWVRAM, ModeRequest("lowvram", 2)):
        rig.controller.request(mode)
        inside = denoiser.register_forward_pre_hook(lambda _module, _args: rig.controller.call_started(), prepend=True)
        with device.guard():
            assert torch.equal(rig.host.generate(3, at_step=at(1, rig.controller.model_changed)), rig.plain)
            assert torch.equal(rig.host.generate(3), rig.plain)
        inside.remove()
        assert rig.controller.effective() == mode
    assert rig.host.faults == []


class _Without:
    """Passes everything on but one event."""

    def __init__(self, listener: Any, left_out: str) -> None:
        self._listener, self._left_out = listener, left_out

    def __getattr__(self, event: str) -> Callable[..., None]:
        return (lambda *_: None) if event == self._left_out else getattr(self._listener, event)  # type: ignore[no-any-return]


def test_a_model_that_cannot_be_put_back_before_it_goes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has no room for it any more; the host goes on with the next model all the same."""
    rig.controller.request(LOWVRAM)
    own = rig.host.components()
    with monkeypatch.context() as patch:
        patch.setattr(AsLaunched, "activate", breaks)
        rig.host.exchange(())
    assert rig.host.faults == []
    assert rig.restored()
    assert "left in main memory" in rig.notes()
    rig.host.exchange(own)
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_a_model_that_cannot_be_moved_keeps_the_standing_mode_for_the_next(rig: Rig) -> None:
    rig.controller.request(MEDVRAM)
    own, odd = rig.host.components(), BLOCKS.make(4)
    odd[1].module.blocks[0].to("meta")
    rig.host.exchange((odd[0], own[1], odd[2]))
    odd[0].module.register_buffer("sparse", torch.eye(3).to_sparse())
    assert rig.host.generate(2).isfinite().all()
    assert "sparse" in (rig.controller.refusal() or "")
    assert rig.controller.standing() == MEDVRAM
    rig.host.exchange(own)
    assert rig.in_force_at_each_step(3) == ["medvram"] * 3


# --------------------------------------------------------------------------------------------------- switches that fail


@pytest.mark.parametrize("before", [AS_LAUNCHED, FULL, MEDVRAM, LOWVRAM], ids=str)
@pytest.mark.parametrize("failing", [Full, MedVram, LowVram])
def test_a_mode_that_cannot_be_entered_leaves_the_one_before(
    rig: Rig, before: ModeRequest, failing: type, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
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


def test_in_mid_job_a_failing_switch_is_noted_once_and_the_job_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.controller.request(LOWVRAM)
    monkeypatch.setattr(MedVram, "place", breaks)
    assert rig.in_force_at_each_step(3, at(0, lambda: rig.controller.request(MEDVRAM))) == ["lowvram"] * 3
    assert rig.notes().count("medvram was not entered") == 1
    assert rig.host.faults == []


def test_when_the_way_back_fails_too_everything_is_as_launched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.controller.request(LOWVRAM)
    monkeypatch.setattr(MedVram, "place", breaks)
    monkeypatch.setattr(LowVram, "place", breaks)
    with pytest.raises(ActivationError, match="as-launched is in force"):
        rig.controller.request(MEDVRAM)
    assert rig.controller.effective() == AS_LAUNCHED
    assert rig.restored()
    assert rig.host.taken_over is None
    assert rig.in_force_at_each_step(3) == ["as-launched"] * 3


def test_when_nothing_can_be_entered_the_job_is_stopped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
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
    rig: Rig, where: str, kind: type[BaseException], device: FakeDevice, monkeypatch: pytest.MonkeyPatch
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


def _raises(kind: type[BaseException]) -> Callable[..., None]:
    def broken_off(*_: Any) -> None:
        raise kind

    return broken_off


def test_a_job_whose_end_cannot_be_tidied_up(rig: Rig, device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.controller.request(LOWVRAM)
    with monkeypatch.context() as patch:
        patch.setattr(rig.controller.bank, "settle", breaks)
        rig.host.generate(2)
    assert rig.host.faults == []
    assert rig.controller.state()["in_job"] is False
    with device.guard():
        assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_two_requests_at_once_leave_what_came_last(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_requests_from_many_threads_while_jobs_run(rig: Rig, threads: list[threading.Thread], device: FakeDevice) -> None:
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
    rig: Rig, threads: list[threading.Thread], device: FakeDevice
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


def test_stopping_puts_everything_back(rig: Rig) -> None:
    rig.controller.request(LOWVRAM)
    assert rig.controller.stop() is True
    assert rig.controller.effective() == AS_LAUNCHED
    assert rig.restored()


def test_stopping_waits_for_a_running_job(rig: Rig, threads: list[threading.Thread]) -> None:
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


def test_a_nested_job_belongs_to_the_one_around_it(rig: Rig) -> None:
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


def test_a_refusal_from_elsewhere_is_shown(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rig.controller.refuse("mode has a value that is not allowed")
    assert rig.controller.refusal() == rig.notes() == "mode has a value that is not allowed"
    rig.host.generate(1)
    assert rig.controller.refusal() is None
