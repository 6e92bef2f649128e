"""Requests, their scopes and refusals, and models that come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.blocks import BLOCKS
from tests.fakes.controlled import AS_LAUNCHED, FULL, LOWVRAM, MEDVRAM, Controlled, at
from tests.fakes.device import FakeDevice
from tests.fakes.state import differences, state_of
from vram_pilot.errors import RefusedError, UsageError
from vram_pilot.hosts.base import ModelInfo
from vram_pilot.modes.as_launched import AsLaunched
from vram_pilot.session.records import ModeChanged
from vram_pilot.settings import MAX_BUDGET_MIB, ModeRequest, parse_mode_request
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


# ------------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("scope", [None, "standing"])
def test_when_idle_a_request_is_carried_out_before_it_is_answered(rig: Controlled, scope: str | None) -> None:
    answer = rig.controller.request(MEDVRAM, scope)
    assert (answer.requested, answer.effective, answer.applies, answer.refusal) == (MEDVRAM, MEDVRAM, "now", None)
    assert rig.controller.standing() == rig.controller.effective() == MEDVRAM
    assert rig.host.taken_over is True
    (record,) = rig.records(ModeChanged)
    assert (record.from_mode, record.to_mode, record.step, record.failed) == ("as-launched", "medvram", None, False)


def test_the_same_request_again_moves_nothing(rig: Controlled) -> None:
    rig.controller.request(LOWVRAM)
    executor = rig.controller.bank.executor
    assert rig.controller.request(LOWVRAM).applies == "now"
    assert rig.controller.bank.executor is executor
    assert len(rig.records(ModeChanged)) == 1


def test_another_budget_is_another_request(rig: Controlled) -> None:
    rig.controller.request(LOWVRAM)
    assert rig.controller.report().resident_bytes == 0
    rig.controller.request(ModeRequest("lowvram", 2))
    assert 0 < (rig.controller.report().resident_bytes or 0) <= 2 * 2**20


def test_case_b14_in_mid_job_a_request_holds_from_the_next_step_to_the_jobs_end(rig: Controlled) -> None:
    answers: list[Any] = []
    seen = rig.in_force_at_each_step(4, at(1, lambda: answers.append(rig.controller.request(MEDVRAM))))
    assert (answers[0].effective, answers[0].applies) == (AS_LAUNCHED, "next_step")
    assert seen == ["as-launched", "as-launched", "medvram", "medvram"]
    assert rig.controller.effective() == rig.controller.standing() == AS_LAUNCHED
    assert [(record.to_mode, record.step) for record in rig.records(ModeChanged)] == [("medvram", 2), ("as-launched", None)]
    assert rig.restored()


def test_case_b14_a_standing_request_in_mid_job_holds_for_the_jobs_after_it(rig: Controlled) -> None:
    seen = rig.in_force_at_each_step(3, at(0, lambda: rig.controller.request(LOWVRAM, "standing")))
    assert seen == ["as-launched", "lowvram", "lowvram"]
    assert rig.controller.effective() == rig.controller.standing() == LOWVRAM
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_a_standing_request_takes_the_place_of_what_the_job_itself_asked_for(rig: Controlled) -> None:
    seen = rig.in_force_at_each_step(3, at(1, lambda: rig.controller.request(FULL, "standing")), mode=MEDVRAM)
    assert seen == ["medvram", "medvram", "full"]
    assert rig.controller.effective() == FULL


def test_what_a_job_asks_for_ends_with_it(rig: Controlled) -> None:
    rig.controller.request(FULL)
    assert rig.in_force_at_each_step(3, mode=LOWVRAM) == ["lowvram"] * 3
    assert rig.controller.effective() == rig.controller.standing() == FULL
    assert rig.controller.job_modes() == (LOWVRAM,)


def test_asking_for_what_is_in_force_applies_now(rig: Controlled) -> None:
    rig.controller.request(MEDVRAM)
    answers: list[Any] = []
    rig.host.generate(2, at_step=at(0, lambda: answers.append(rig.controller.request(MEDVRAM))))
    assert answers[0].applies == "now"


def test_a_request_for_a_job_needs_a_job(rig: Controlled) -> None:
    with pytest.raises(RefusedError, match="No job is running") as refusal:
        rig.controller.request(MEDVRAM, "job")
    assert "standing" in (refusal.value.do or "")
    assert rig.controller.standing() == AS_LAUNCHED


def test_an_unknown_scope_is_named(rig: Controlled) -> None:
    with pytest.raises(UsageError, match="scope") as refusal:
        rig.controller.request(MEDVRAM, "for ever")
    assert "job, standing" in str(refusal.value)


@pytest.mark.parametrize(
    "request_", [ModeRequest("tensorrt"), ModeRequest("auto"), ModeRequest("full", accelerate="compile"), ModeRequest("warp")]
)
def test_what_is_not_built_is_refused_by_name(rig: Controlled, request_: ModeRequest) -> None:
    with pytest.raises(RefusedError) as refusal:
        rig.controller.request(request_)
    assert refusal.value.found in (request_.mode, request_.accelerate)
    assert rig.controller.effective() == AS_LAUNCHED


@pytest.mark.parametrize("mode", ["as-launched", "full", "medvram"])
def test_a_budget_without_lowvram_is_refused(rig: Controlled, mode: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        rig.controller.request(ModeRequest(mode, 100))


@pytest.mark.parametrize("budget", [-31528, -1, "-1", 1.5, MAX_BUDGET_MIB + 1, "much", float("nan"), float("inf"), True, []])
def test_case_b13_a_budget_out_of_range_is_never_taken(budget: object) -> None:
    with pytest.raises(UsageError, match="budget_mib"):
        parse_mode_request({"mode": "lowvram", "budget_mib": budget})


def test_an_obstacle_of_the_host_is_the_refusal(rig: Controlled) -> None:
    rig.host.blocked_by = "the denoiser is executed by another extension"
    for mode in (FULL, MEDVRAM, LOWVRAM):
        with pytest.raises(RefusedError, match="executed by another extension"):
            rig.controller.request(mode)
    assert rig.controller.request(AS_LAUNCHED).applies == "now"
    assert rig.controller.standing() == AS_LAUNCHED


@pytest.mark.parametrize("kind", ["privateuseone", "vulkan"])
def test_a_device_that_weights_cannot_be_pointed_at_is_refused_by_name(
    kind: str, rig: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DirectML, for one. Nothing has been touched by then."""
    monkeypatch.setattr(rig.host, "device", lambda: torch.device(kind))
    for mode in (FULL, MEDVRAM, LOWVRAM):
        with pytest.raises(RefusedError, match=kind):
            rig.controller.request(mode)
    assert rig.restored()
    assert rig.in_force_at_each_step(3, mode=MEDVRAM) == ["as-launched"] * 3
    assert kind in (rig.controller.refusal() or "")


@pytest.mark.parametrize("scope", [None, "standing", "job"])
def test_an_obstacle_refuses_a_request_in_mid_job_at_once(rig: Controlled, scope: str | None) -> None:
    """Nothing waits for the next step, and what stands goes on standing."""
    refused: list[str] = []

    def ask() -> None:
        rig.host.blocked_by = "the denoiser is executed by another extension"
        with pytest.raises(RefusedError, match="executed by another extension"):
            rig.controller.request(MEDVRAM, scope)
        refused.append(rig.notes())
        rig.host.blocked_by = None

    rig.controller.request(FULL)
    assert rig.in_force_at_each_step(3, at(0, ask)) == ["full"] * 3
    assert refused == [""]
    assert rig.controller.standing() == rig.controller.effective() == FULL


def test_an_obstacle_that_comes_later_costs_its_jobs_only(rig: Controlled) -> None:
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


def test_what_a_job_asks_for_and_cannot_have_leaves_it_in_the_mode_in_force(rig: Controlled) -> None:
    rig.controller.request(MEDVRAM)
    rig.host.blocked_by = "busy"
    assert rig.in_force_at_each_step(3, mode=LOWVRAM) == ["medvram"] * 3
    rig.host.blocked_by = None
    assert rig.controller.standing() == rig.controller.effective() == MEDVRAM


def test_a_held_queue_means_the_next_job(rig: Controlled) -> None:
    with rig.host.queue:
        answer = rig.controller.request(LOWVRAM)
    assert (answer.effective, answer.applies) == (AS_LAUNCHED, "next_job")
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_a_request_in_mid_job_is_checked_while_weights_move(rig: Controlled) -> None:
    """The weights of a streamed block lie where another's lay a moment ago: that is no fault of the model."""
    rig.controller.request(LOWVRAM)
    block = rig.host.module("denoiser").blocks[3].inner
    handle = block.register_forward_pre_hook(lambda _module, _args: rig.controller.request(MEDVRAM, "job") and None)
    rig.host.generate(2)
    handle.remove()
    assert rig.host.faults == []


def test_state_can_be_read_at_any_time(rig: Controlled) -> None:
    wrong: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.wait(0.0005):
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
    rig: Controlled, before: ModeRequest, told: bool
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


def test_another_model_in_mid_job(rig: Controlled, device: FakeDevice) -> None:
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


def test_a_model_that_was_only_moved_is_entered_again(rig: Controlled, device: FakeDevice) -> None:
    for mode in (MEDVRAM, LOWVRAM):
        rig.controller.request(mode)
        with device.guard():
            image = rig.host.generate(3, at_step=at(1, lambda: rig.host.exchange(rig.host.components())))
        assert torch.equal(image, rig.plain)
        assert rig.controller.effective() == mode


def test_changed_without_changing_in_the_denoisers_own_call(rig: Controlled, device: FakeDevice) -> None:
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


class Family:
    """The family of the model that the host has loaded."""

    def __init__(self, rig: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = "sd1"
        monkeypatch.setattr(rig.host, "model", lambda: ModelInfo(self.name, "fake"))


@pytest.fixture
def family(rig: Controlled, monkeypatch: pytest.MonkeyPatch) -> Family:
    return Family(rig, monkeypatch)


def test_case_b2_a_family_of_models_has_a_standing_mode_of_its_own(rig: Controlled, family: Family) -> None:
    """SD1.5 in full and SDXL in lowvram, however often the checkpoint is changed; a job's own mode goes first."""
    rig.controller.set_family_modes({"sdxl": LOWVRAM})
    rig.controller.request(FULL)
    for family.name, mode in (("sd1", FULL), ("sdxl", LOWVRAM), ("sdxl", LOWVRAM), ("sd2", FULL), ("sdxl", LOWVRAM)):
        rig.host.exchange(rig.own)
        assert rig.controller.standing_here() == mode
        assert rig.in_force_at_each_step(3) == [mode.mode] * 3
        assert rig.controller.effective() == mode, "between jobs, too"
    assert rig.in_force_at_each_step(3, mode=MEDVRAM) == ["medvram"] * 3
    assert rig.in_force_at_each_step(4, at(1, lambda: rig.controller.request(MEDVRAM))) == ["lowvram"] * 2 + ["medvram"] * 2
    assert rig.controller.effective() == LOWVRAM
    assert rig.controller.stop() is True
    assert rig.restored()
    rig.controller.start(FULL)
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


@pytest.mark.parametrize("in_job", [False, True])
def test_case_b2_a_standing_mode_that_is_not_for_this_family_says_so(rig: Controlled, family: Family, in_job: bool) -> None:
    rig.controller.set_family_modes({"sdxl": LOWVRAM})
    family.name, answers = "sdxl", []
    rig.host.generate(1)

    def ask(_step: int = 0) -> None:
        answers.append(rig.controller.request(MEDVRAM, "standing"))

    if in_job:
        assert rig.in_force_at_each_step(2, ask) == ["lowvram"] * 2
    else:
        ask()
    for answer in answers:
        assert (answer.effective, answer.applies) == (LOWVRAM, "next_job")
        assert "Mode for SDXL and SD3" in (answer.refusal or "")
    assert rig.controller.request(LOWVRAM, "standing").refusal is None
    rig.controller.request(MEDVRAM, "standing")
    family.name = "sd1"
    assert rig.in_force_at_each_step(3) == ["medvram"] * 3


def test_case_b2_after_a_crash_no_family_has_a_mode_of_its_own_until_one_is_chosen(
    rig: Controlled, family: Family, tmp_path: Path
) -> None:
    family.name = "sdxl"
    rig.controller.set_family_modes({"sdxl": LOWVRAM})
    (tmp_path / "entering-1.json").write_text("damaged")
    rig.controller.start(FULL)
    assert rig.in_force_at_each_step(3) == ["as-launched"] * 3
    rig.controller.request(FULL)
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


@pytest.mark.parametrize("mode", [FULL, MEDVRAM, LOWVRAM], ids=str)
def test_a_model_that_takes_another_s_place_without_a_word(rig: Controlled, mode: ModeRequest) -> None:
    """From the next job on the mode is the new one's, and the old one is as it was launched."""
    rig.controller.request(mode)
    rig.host.generate(1)
    other = BLOCKS.make(4)
    before = state_of(other)
    rig.host.components_now = other
    rig.host.generate(2)
    assert rig.controller.effective() == mode
    assert rig.restored()
    assert rig.controller.bank.looks_after(other)
    rig.host.components_now = ()
    with pytest.raises(StopIteration):
        rig.host.generate(1)
    assert rig.controller.effective() == AS_LAUNCHED
    rig.host.components_now = other
    rig.controller.request(AS_LAUNCHED)
    assert differences(before, state_of(other)) == []


def release_without_room(unit: Unit, device: torch.device | None = None, release: Any = Unit.release) -> None:
    if device is None:
        raise Broken("no room where the weights were launched")
    release(unit, device)


@pytest.mark.parametrize(
    ("owner", "name", "fails"),
    [(AsLaunched, "activate", breaks), (Unit, "release", release_without_room)],
    ids=["at once", "half-way"],
)
def test_a_model_that_cannot_be_put_back_before_it_goes(
    owner: type, name: str, fails: Callable[..., None], rig: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device has no room for it any more; the host goes on with the next model all the same, with its own offload."""
    rig.controller.request(LOWVRAM)
    own = rig.host.components()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        rig.host.exchange(())
    assert rig.host.faults == []
    assert rig.host.taken_over is None
    assert rig.restored()
    assert "left in main memory" in rig.notes()
    rig.host.exchange(own)
    assert rig.in_force_at_each_step(3) == ["lowvram"] * 3


def test_a_model_that_cannot_be_moved_keeps_the_standing_mode_for_the_next(rig: Controlled) -> None:
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
