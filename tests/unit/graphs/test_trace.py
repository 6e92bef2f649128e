"""What a call runs is seen wherever it hides, and judged by module and name."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.graphs.conftest import FAMILIES, Rig, known
from vram_pilot.graphs.known import is_known
from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.graphs.trace import Trace


def stranger_in(work: Callable[[], Any]) -> str | None:
    trace = Trace()
    with trace:
        work()
    return trace.stranger()


@FAMILIES
def test_a_denoiser_as_its_package_made_it_is_known_throughout(family: Any) -> None:
    rig = Rig(family.make(0)[1].module, family)
    latent, time, states = rig.inputs()
    name = "context" if family.name == "ldm" else "encoder_hidden_states"
    call = functools.partial(rig.root, latent, time, **{name: states})
    call()  # what is imported at the first call is no part of later ones
    assert stranger_in(call) is None


HIDING: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "called": lambda function: function(),
    "partial": lambda function: functools.partial(function)(),
    "in a list": lambda function: [function, None][0](),
    "in map": lambda function: list(map(lambda _item: function(), [1])),
    "as a key": lambda function: sorted([1], key=lambda _item: function()),
    "as a generator": lambda function: list(function() for _ in range(1)),
    "as a property": lambda function: type("P", (), {"x": property(lambda self: function())})().x,
}


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_a_strange_function_is_found(hide: Callable[[Callable[[], Any]], Any]) -> None:
    wrap = known("def run(hide, function):\n    return hide(function)").run
    assert (stranger_in(functools.partial(wrap, hide, lambda: None)) or "").startswith("tests.unit.graphs.test_trace")
    assert stranger_in(functools.partial(known("def plain():\n    return max(1, 2)").plain)) is None


def test_generated_code_without_a_module_is_strange() -> None:
    space: dict[str, Any] = {}
    exec(compile("def f():\n    return 1", "<generated>", "exec"), space)
    space.pop("__name__", None)
    assert stranger_in(space["f"]) == "<generated>.f"


def test_other_threads_and_finalizers_are_not_taken_for_part_of_the_call() -> None:
    class Loop:
        def __del__(self) -> None:
            ran.append(1)

    ran: list[int] = []

    def rubbish() -> None:
        one = Loop()
        one.self = one  # type: ignore[attr-defined]

    plain = known("def plain(event):\n    event.wait(5)\n    return [[] for _ in range(5000)]").plain
    event = threading.Event()
    thread = threading.Thread(target=lambda: (HIDING["in map"](dict), event.set()))
    rubbish()
    trace = Trace()
    thread.start()
    thread.join()
    with trace:
        assert not gc.isenabled()
        known_plain = plain(event)
    assert len(known_plain) == 5000 and gc.isenabled()
    assert all(namespace.get("__name__") != __name__ for namespace in trace.codes.values())


def test_a_profiler_that_runs_already_is_not_disturbed() -> None:
    def profiler(*_: Any) -> None:
        return None

    sys.setprofile(profiler)
    try:
        with pytest.raises(NotCapturable, match="a Python profiler is running"), Trace():
            pass
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert gc.isenabled()


def test_a_profiler_that_starts_meanwhile_is_seen_and_stays() -> None:
    def profiler(*_: Any) -> None:
        return None

    try:
        with pytest.raises(NotCapturable, match="a Python profiler was started in mid-call"), Trace():
            sys.setprofile(profiler)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_an_exception_goes_through_and_leaves_nothing_on() -> None:
    with pytest.raises(ZeroDivisionError), Trace():
        _ = 1 / 0
    assert sys.getprofile() is None and gc.isenabled()


@pytest.mark.parametrize(
    ("module", "name", "answer"),
    [
        ("torch.nn.functional", "silu", True),
        ("torch", "is_tensor", True),
        ("torchvision.ops", "nms", False),
        ("torch._dynamo.eval_frame", "_fn", False),
        ("torch.random", "fork_rng", False),
        ("torch.nn.utils.parametrize", "forward", False),
        ("diffusers.models.attention_processor", "__call__", True),
        ("diffusers.hooks.group_offloading", "pre_forward", False),
        ("ldm.modules.attention", "forward", True),
        ("ldm.modules_of_others.attention", "forward", False),
        ("modules.sd_hijack_optimizations", "split_cross_attention_forward", True),
        ("modules.sd_unet", "UNetModel_forward", True),
        ("modules.sd_unet", "apply_unet", False),
        ("modules.options", "__getattr__", True),
        ("modules.options", "__setattr__", False),
        ("modules.hypernetworks.hypernetwork", "apply_hypernetworks", True),
        ("modules.hypernetworks.hypernetwork", "apply_single_hypernetwork", False),
        ("networks", "network_Linear_forward", True),
        ("networks", "network_apply_weights", True),
        ("networks", "<genexpr>", True),
        ("networks", "network_forward", False),
        ("networks", "network_restore_weights_from_backup", False),
        ("network_lora", "calc_updown", False),
        ("hypertile", "wrapper", False),
        ("tomesd.patch", "_forward", False),
        ("random", "randrange", False),
        ("scripts.hook", "forward", False),
        ("", "<lambda>", False),
    ],
)
def test_the_list(module: str, name: str, answer: bool) -> None:
    assert is_known(module, name) is answer


def test_names_are_those_that_code_may_ask_an_object_for() -> None:
    source = """
def read(thing):
    return thing.scale, getattr(thing, "factor", None), [inner.deep for inner in thing], thing in ("a", ("b",))
"""
    read = known(source).read
    trace = Trace()
    with trace, pytest.raises(AttributeError):
        read(None)
    assert {"scale", "a", "b"} <= trace.names() and "factor" in trace.names()
