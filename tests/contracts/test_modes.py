"""The contract of every mode on every host: the same image, the promised memory, and the model handed back as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.contracts.subjects import MODE_IDS, Subject, denoiser_of, modes_for
from tests.fakes.device import FakeDevice
from tests.fakes.state import add_hooks_of_others, differences, state_of
from vram_pilot.errors import VramPilotError
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.part import Part
from vram_pilot.streaming.units import Unit

pytestmark = pytest.mark.slow  # many cases, each with a model of its own

every_mode = pytest.mark.parametrize("which", range(len(MODE_IDS)), ids=MODE_IDS)

# ---------------------------------------------------------------------------------------------------------------------- images


@every_mode
def test_the_image_is_the_same_and_everything_is_put_back(every_subject: Subject, which: int, device: FakeDevice) -> None:
    subject, wanted = every_subject, modes_for(every_subject)[which]
    expected = subject.generate()
    assert subject.controller.request(wanted).effective == wanted
    with device.guard():
        for _ in range(2):  # the first call is seen, the following ones are expected
            assert torch.equal(subject.generate(), expected)
    assert subject.faults() == []


def walk(modes: list[ModeRequest]) -> Iterator[ModeRequest]:
    """Every ordered pair of different modes, each once, as one way."""
    edges = {(one, two) for one in range(len(modes)) for two in range(len(modes)) if one != two}
    way, stack = [], [0]
    while stack:
        here = stack[-1]
        onward = next((edge for edge in sorted(edges) if edge[0] == here), None)
        if onward is None:
            way.append(stack.pop())
        else:
            edges.remove(onward)
            stack.append(onward[1])
    return iter(modes[number] for number in reversed(way))


@pytest.mark.parametrize(
    ("scope", "which"), [("job", (0, 1, 2, 5)), pytest.param("standing", range(len(MODE_IDS)), marks=pytest.mark.slow)]
)
def test_every_switch_between_two_steps_of_one_job(
    every_subject: Subject, scope: str, which: Sequence[int], device: FakeDevice
) -> None:
    subject, modes = every_subject, [modes_for(every_subject)[number] for number in which]
    way = list(walk(modes))
    assert len(way) == len(modes) * (len(modes) - 1) + 1
    in_force: list[ModeRequest] = []

    def switch(step: int) -> None:
        in_force.append(subject.controller.effective())
        if step < len(way):
            subject.controller.request(way[step], scope=scope)

    expected = subject.generate(len(way) + 1)
    with device.guard():
        assert torch.equal(subject.generate(len(way) + 1, at_step=switch), expected)
    assert in_force[1:] == way
    assert subject.controller.effective() == (way[-1] if scope == "standing" else ModeRequest())
    assert subject.faults() == []


@every_mode
def test_case_b1_there_and_back_five_times(subject: Subject, which: int, device: FakeDevice) -> None:
    """full → mode → full, five times: as many hooks as at the start, and bit for bit the first image."""
    full, other = modes_for(subject)[1], modes_for(subject)[which]
    subject.controller.request(full)
    first, hooks = subject.generate(2), count_hooks(subject)
    for _ in range(5):
        subject.controller.request(other)
        with device.guard():
            assert torch.equal(subject.generate(2), first)
        subject.controller.request(full)
        assert count_hooks(subject) == hooks
        with device.guard():
            assert torch.equal(subject.generate(2), first)
    subject.controller.request(ModeRequest())
    assert count_hooks(subject) == hooks


def count_hooks(subject: Subject) -> int:
    modules = [module for part in subject.components() for module in part.module.modules()]
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


@every_mode
def test_a_job_may_bring_its_own_mode(subject: Subject, which: int, device: FakeDevice) -> None:
    own, standing = modes_for(subject)[which], modes_for(subject)[2]
    expected = subject.generate(2)
    subject.controller.request(standing)
    seen: list[ModeRequest] = []
    with device.guard():
        image = subject.generate(2, mode=own, at_step=lambda step: seen.append(subject.controller.effective()))
    assert torch.equal(image, expected)
    assert seen == [own, own]
    assert subject.controller.effective() == standing


# ---------------------------------------------------------------------------------------------------------------------- memory


@contextlib.contextmanager
def watched(subject: Subject, look: Callable[[], None]) -> Iterator[None]:
    """`look` is called inside the forward of every ninth layer of the denoiser, and behind every other extension's hooks."""
    layers = [module for module in denoiser_of(subject).modules() if module._parameters and not list(module.children())][::9]
    handles = [layer.register_forward_pre_hook(lambda _module, _args: look()) for layer in layers]
    yield
    for handle in handles:
        handle.remove()


@every_mode
def test_the_promised_memory_is_kept_inside_the_layers(subject: Subject, which: int, device: FakeDevice) -> None:
    wanted = modes_for(subject)[which]
    seen: list[tuple[int, set[str], int, int]] = []

    def look() -> None:
        report = subject.controller.report()
        if wanted.mode != "as-launched":
            on_it = device.bytes_of(denoiser_of(subject)), device.names_on(subject.components())
            seen.append((*on_it, report.resident_bytes or 0, report.slot_bytes))

    subject.controller.request(wanted)
    with watched(subject, look):
        subject.generate(3)
    sizes = {part.role: sum(tensor.nbytes for tensor in part.module.parameters()) for part in subject.components()}
    if wanted.mode == "as-launched":
        assert seen == []
        return
    assert seen
    for used, on_device, resident, slots in seen:
        if wanted.mode == "lowvram":
            assert on_device == {"denoiser"}
            assert resident <= (wanted.budget_mib or 0) * 2**20
            assert used <= resident + slots
        elif wanted.mode == "medvram":
            assert on_device == {"denoiser"}
        else:
            assert on_device == {part.name for part in subject.components()}
            assert used >= sizes["denoiser"]


def test_a_smaller_budget_keeps_less_on_the_device(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, device: FakeDevice
) -> None:
    """The figures are told apart where the arena is smaller than the model."""
    monkeypatch.setattr("vram_pilot.streaming.bank.ARENA_BYTES", 2**20)
    peaks: dict[str, int] = {}
    for mode, name in zip(modes_for(subject), MODE_IDS):
        if mode.mode == "as-launched":
            continue
        subject.controller.request(mode)
        used: list[int] = []
        with watched(subject, lambda used=used: used.append(device.bytes_of(denoiser_of(subject)))):
            subject.generate(2)
        peaks[name] = max(used)
    assert peaks["lowvram-0"] == peaks["lowvram"] < peaks["lowvram-half"] < peaks["lowvram-all"]
    assert peaks["lowvram-half"] < peaks["medvram"]


@every_mode
def test_one_component_at_a_time_when_a_job_is_over(subject: Subject, which: int, device: FakeDevice) -> None:
    wanted = modes_for(subject)[which]
    subject.controller.request(wanted)
    subject.generate(1)
    expected = {"medvram": {"vae"}, "lowvram": {"vae"}}
    if wanted.mode in expected and not subject.controller.report().resident_bytes:
        held = {"denoiser"} if device.bytes_of(denoiser_of(subject)) else set()
        assert device.names_on(subject.components()) - held == expected[wanted.mode]


# ------------------------------------------------------------------------------------------------------------ other extensions


@every_mode
def test_hooks_of_others_keep_their_places(subject: Subject, which: int) -> None:
    module = denoiser_of(subject)
    kept = {child: {key: dict(value) for key, value in vars(child).items() if "hooks" in key} for child in module.modules()}
    add_hooks_of_others(module)
    before = state_of(subject.components())
    subject.controller.request(modes_for(subject)[which])
    subject.generate(1)
    subject.controller.request(ModeRequest())
    assert differences(before, state_of(subject.components())) == []
    for child, tables in kept.items():
        for key, value in tables.items():
            vars(child)[key].clear()
            vars(child)[key].update(value)


@every_mode
def test_hooks_of_others_that_come_and_go_meanwhile(subject: Subject, which: int, device: FakeDevice) -> None:
    calls: list[str] = []
    module = denoiser_of(subject)
    subject.controller.request(modes_for(subject)[which])
    with device.guard():
        first = subject.generate(2)
        before = module.register_forward_pre_hook(lambda _module, _args: calls.append("before"), prepend=True)
        after = module.register_forward_hook(lambda _module, _args, _out: calls.append("after"))
        assert torch.equal(subject.generate(2), first)
    subject.controller.request(ModeRequest())
    assert torch.equal(subject.generate(2), first)
    before.remove()
    after.remove()
    assert calls.count("before") == calls.count("after") >= 4


# -------------------------------------------------------------------------------------------------------------------- failures


class Broken(RuntimeError):
    """A fault that is put in."""


class Faults:
    """Makes the call number `at` of the named methods fail, once; counts the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.at = 0, -1
        for owner, name in (
            *((Unit, name) for name in ("take_home", "load", "write_back", "drop", "go_home", "release", "bind")),
            *((Part, name) for name in ("load", "unload", "release")),
        ):
            monkeypatch.setattr(owner, name, self._faulty(getattr(owner, name)))

    def _faulty(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def sometimes(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls - 1 == self.at:
                raise Broken(f"call {self.at}")
            return method(*args, **kwargs)

        return sometimes

    def count(self, work: Callable[[], object]) -> int:
        self.calls, self.at = 0, -1
        work()
        return self.calls

    def run(self, at: int, work: Callable[[], object]) -> None:
        self.calls, self.at = 0, at
        try:
            work()
        finally:
            self.at = -1


def some(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, spread evenly, the first and the last among them."""
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)}) if count > most else list(range(count))


@pytest.mark.parametrize("most", [6, pytest.param(20, marks=pytest.mark.slow)])
@every_mode
def test_a_fault_in_any_move_costs_at_most_the_mode(
    subject: Subject, which: int, most: int, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a mode is entered, used and left: no wrong image, and afterwards everything works again."""
    wanted, other = modes_for(subject)[which], modes_for(subject)[(which + 2) % len(MODE_IDS)]
    expected, before = subject.generate(2), state_of(subject.components())
    controller = subject.controller

    def scenario() -> None:
        controller.request(wanted)
        image = subject.generate(2, at_step=lambda step: controller.request(other, scope="job") if step == 0 else None)
        assert torch.equal(image, expected)
        controller.request(ModeRequest())

    faults = Faults(monkeypatch)
    for at in some(faults.count(scenario), most):
        with contextlib.suppress(Broken, VramPilotError):  # of the switch itself, or of the job in which it happened
            faults.run(at, scenario)
        assert controller.effective() in (ModeRequest(), wanted, other)
        with device.guard():
            assert torch.equal(subject.generate(2), expected), f"after the fault at {at}"
        controller.request(ModeRequest())
        assert differences(before, state_of(subject.components())) == [], f"after the fault at {at}"
        subject.faults().clear()


@every_mode
def test_an_exception_in_any_layer_costs_only_its_job(subject: Subject, which: int, device: FakeDevice) -> None:
    expected = subject.generate(2)
    subject.controller.request(modes_for(subject)[which])
    layers = [
        module
        for part in subject.components()
        for module in part.module.modules()
        if module._parameters and not list(module.children())
    ]

    def fail(_module: nn.Module, _args: object) -> None:
        raise Broken("in a layer")

    for number in some(len(layers), 8):
        handle = layers[number].register_forward_pre_hook(fail)
        try:
            subject.generate(2)
        except Exception as error:
            assert "in a layer" in str(error) or "in a layer" in repr(error.__context__), error
        handle.remove()
        assert torch.is_autocast_cache_enabled()
        with device.guard():
            assert torch.equal(subject.generate(2), expected)


@every_mode
def test_case_b16_an_interrupt_leaves_nothing_behind(subject: Subject, which: int, device: FakeDevice) -> None:
    expected = subject.generate(6)
    subject.controller.request(modes_for(subject)[which])
    subject.generate(2)
    pageable = subject.controller.report().pageable_bytes
    for _ in range(2):
        with device.guard():
            subject.generate(20, at_step=lambda step: subject.host.interrupt() if step == 5 else None)
        assert subject.controller.report().pageable_bytes == pageable
        assert torch.is_autocast_cache_enabled()
    with device.guard():
        assert torch.equal(subject.generate(6), expected)
