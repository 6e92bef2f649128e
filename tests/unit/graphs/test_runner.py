"""When a call runs eagerly, is captured, compared and replayed; and that its result is the eager one's, whatever happens."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.models import LDM, Family
from tests.fakes.state import add_hooks_of_others, differences, state_of
from tests.unit.graphs.conftest import CPU, FAMILIES, SMALL, Rig, component, known
from vram_pilot.graphs.capture import CAPTURE_LOCK, NoSurroundings
from vram_pilot.graphs.runner import MAX_GRAPHS, MAX_KEYS, GraphRunner
from vram_pilot.graphs.signature import NotCapturable

# ------------------------------------------------------------------------------------------------ order of events


@FAMILIES
def test_a_call_is_captured_at_its_second_time_compared_at_its_third_and_then_replayed(family: Family) -> None:
    rig = Rig(family.make(0)[1].module, family)
    expected = [rig.eager(seed) for seed in range(5)]
    rig.runner.install()
    for seed, events in enumerate([[], ["aside", "capture"], ["replay"], ["replay"], ["replay"]]):
        assert torch.equal(rig.call(seed), expected[seed])
        assert rig.events() == events
    assert (rig.runner.captures, rig.runner.replays, rig.runner.mismatches) == (1, 2, 0)
    assert rig.runner.reason is None
    rig.runner.remove()


def test_a_result_is_not_overwritten_by_the_next_replay(small: Rig) -> None:
    small.trusted()
    first = small.call(1)
    kept = first.clone()
    small.call(2)
    assert torch.equal(first, kept)


def test_each_shape_has_a_graph_of_its_own(rig: Rig) -> None:
    shapes: list[dict[str, int]] = [{}, {"batch": 1}, {"tokens": 16}, {"size": 16}]
    for shape in shapes:
        rig.trusted(**shape)
    before = rig.runner.replays
    for seed in (1, 2):
        for shape in shapes:
            assert torch.equal(rig.call(seed, **shape), rig.eager(seed, **shape))
    assert rig.runner.replays == before + 2 * len(shapes)
    assert rig.runner.captures == len(shapes)


def test_inputs_in_another_layout_are_another_call(rig: Rig) -> None:
    rig.trusted()
    latent, time, states = rig.inputs(3)
    for given in (latent.to(memory_format=torch.channels_last), latent[:1].expand(2, -1, -1, -1)):
        expected = LDM.denoise(rig.root, given.clone(), time, states)
        for _ in range(5):
            assert torch.allclose(LDM.denoise(rig.root, given, time, states), expected, atol=1e-5)
    assert rig.runner.captures == 3


def test_torch_s_switches_are_part_of_the_call(rig: Rig) -> None:
    rig.trusted()
    with torch.inference_mode():
        rig.trusted(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rig.trusted(1)
    torch.use_deterministic_algorithms(True)
    try:
        rig.trusted(1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert rig.runner.captures == 4
    assert torch.equal(rig.call(5), rig.eager(5))


def test_the_host_s_state_is_part_of_the_call(small: Rig) -> None:
    for state in ("a", "b"):
        small.state = state
        small.trusted()
    assert small.runner.captures == 2


# ------------------------------------------------------------------------------------------------ mismatches and jobs


def test_each_job_compares_before_it_trusts(small: Rig) -> None:
    small.trusted()
    small.runner.job_started()
    replays = small.runner.replays
    small.graphs.spoil = lambda output: output.add_(1.0)
    assert torch.equal(small.call(1), small.eager(1))
    assert small.runner.mismatches == 1
    assert small.runner.replays == replays
    assert "gave another result (largest relative error" in (small.runner.reason or "")


def test_a_mismatch_blocks_the_call_also_in_later_jobs_until_the_weights_change(small: Rig) -> None:
    small.graphs.spoil = lambda output: output.mul_(1.5)
    for seed in range(4):
        assert torch.equal(small.call(seed), small.eager(seed))
    small.graphs.spoil = None
    for _ in range(2):
        small.runner.job_started()
        small.events()
        for seed in range(4):
            assert torch.equal(small.call(seed), small.eager(seed))
        assert small.events() == []
        assert "gave another result" in (small.runner.reason or "")
    other = small.trusted(tokens=16)  # what else is captured goes on
    assert torch.equal(other, small.eager(tokens=16))
    small.root.out[1].weight.mul_(0.5)
    small.call(tokens=16)
    small.trusted()


def test_a_sign_of_zero_is_a_mismatch_and_equal_nans_are_none(small: Rig) -> None:
    small.root.out[1].weight.zero_()
    small.root.out[1].bias.zero_()
    small.graphs.spoil = lambda output: output.neg_()
    for _ in range(3):
        small.call()
    assert small.runner.mismatches == 1
    small.graphs.spoil = None
    small.root.out[1].bias.fill_(float("nan"))
    small.runner.drop_graphs()
    assert small.trusted().isnan().all()
    assert small.runner.mismatches == 1


def test_a_replay_that_fails_when_compared_costs_nothing_but_the_graph(small: Rig) -> None:
    small.call(), small.call()
    small.graphs.replay_error = RuntimeError("CUDA error: something")
    assert torch.equal(small.call(1), small.eager(1))
    assert "could not be repeated (RuntimeError: CUDA error: something)" in (small.runner.reason or "")
    small.graphs.replay_error = None
    assert torch.equal(small.call(1), small.eager(1))


# ------------------------------------------------------------------------------------------------ bounds


def test_the_graphs_used_least_give_way(small: Rig) -> None:
    for state in range(MAX_GRAPHS):
        small.state = state
        small.trusted()
    small.state = 0
    small.trusted()
    small.runner.job_started()
    small.state = "one more"
    small.trusted()
    small.events()
    small.state = 0
    small.call(1)
    assert small.events() == ["replay"]  # to be compared, in this job
    small.state = 1
    small.call(1)
    assert small.events() == ["aside", "capture", "wait"]


def test_a_job_of_nothing_but_different_calls_does_not_capture_for_ever(small: Rig) -> None:
    for state in range(MAX_GRAPHS + 3):
        small.state = state
        small.call(), small.call()
    assert small.runner.captures == MAX_GRAPHS
    assert small.runner.reason == "the calls of this job are all different"
    small.runner.job_started()
    small.call()
    assert small.runner.captures == MAX_GRAPHS + 1


def test_what_is_remembered_of_calls_is_bounded(small: Rig) -> None:
    small.root.out[0].register_forward_hook(lambda _module, _args, _out: None)
    for state in range(3 * MAX_KEYS):
        small.state = state
        small.call(), small.call()
    assert len(small.runner._seen) == len(small.runner._blocked) == MAX_KEYS


def test_more_memory_than_allowed_frees_all_graphs_and_those_in_use_return() -> None:
    rig = Rig(SMALL.make(0)[1].module, SMALL, max_pool_bytes=250)
    rig.runner.install()
    rig.trusted(), rig.trusted(tokens=16)
    assert rig.runner.pool_bytes == 200
    rig.events()
    rig.call(size=16), rig.call(size=16)
    assert rig.events()[-2:] == ["wait", "give back"]
    assert rig.runner.pool_bytes == 0
    rig.trusted(size=16)
    assert rig.runner.pool_bytes == 100


def test_a_graph_too_large_alone_is_not_made_again() -> None:
    rig = Rig(SMALL.make(0)[1].module, SMALL, max_pool_bytes=50)
    rig.runner.install()
    for _ in range(6):
        assert torch.equal(rig.call(), rig.eager())
    assert rig.runner.captures == 1
    assert rig.runner.reason == "a graph would take more than its share of the device's memory"


# ------------------------------------------------------------------------------------------------ faults


def test_an_error_of_the_forward_is_the_caller_s_and_changes_nothing(rig: Rig) -> None:
    rig.trusted()
    latent, time, states = rig.inputs()
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"mat1 and mat2|shape"):
            LDM.denoise(rig.root, latent, time, states[..., :5])
    assert torch.equal(rig.call(1), rig.eager(1))


def test_a_capture_that_fails_is_answered_eagerly_and_tried_again_in_the_next_job(small: Rig) -> None:
    small.graphs.error = RuntimeError("CUDA error: operation not permitted\nsecond line")
    for seed in range(4):
        assert torch.equal(small.call(seed), small.eager(seed))
    assert small.events() == ["aside", "capture"]
    assert small.runner.reason == "the capture failed (RuntimeError: CUDA error: operation not permitted)"
    assert torch.is_autocast_cache_enabled() and gc.isenabled() and sys.getprofile() is None
    small.graphs.error = None
    small.runner.job_started()
    small.trusted()


def test_an_interrupt_in_mid_capture_goes_through(small: Rig) -> None:
    small.call()
    small.graphs.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        small.call()
    assert torch.is_autocast_cache_enabled() and gc.isenabled() and sys.getprofile() is None
    small.graphs.error = None
    small.trusted()


class Full:
    """In place of what surrounds a call: the first `times` find no memory."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, **_captured: bool) -> None:
        self.times -= 1
        if self.times >= 0:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")


def test_graphs_give_way_when_memory_runs_out() -> None:
    around = NoSurroundings()
    rig = Rig(SMALL.make(0)[1].module, SMALL, surroundings=around)
    rig.runner.install()
    rig.trusted()
    rig.events()
    vars(around)["begin"] = Full(1)
    assert torch.equal(rig.call(1, tokens=16), rig.eager(1, tokens=16))
    assert rig.events() == ["wait", "give back"]
    assert rig.runner.pool_bytes == 0
    del vars(around)["begin"]
    for _ in range(4):
        assert rig.runner.reason == "memory ran out"
        assert torch.equal(rig.call(1), rig.eager(1))
    assert rig.events() == []
    rig.runner.job_started()
    rig.trusted()
    vars(around)["begin"] = Full(2)
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:  # it is not the graphs that take the memory
        rig.call(1, tokens=16)
    assert caught.value.__context__ is None


def test_without_graphs_the_host_hears_that_memory_ran_out(small: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: Any, **_kwargs: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(small.root), "forward", failing)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        small.call()
    assert small.events() == []


def test_memory_that_runs_out_in_the_rehearsal_costs_only_the_graph(small: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    small.call()

    def full(_work: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(small.graphs, "aside", full)
    assert torch.equal(small.call(1), small.eager(1))
    assert small.runner.reason == "memory ran out"


def test_the_denoiser_inside_itself_runs_eagerly() -> None:
    source = """
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x, again):
        x = self.layer(x)
        return self(x, again - 1) if again else x
"""
    root = known(source).Root()
    runner = GraphRunner(root, CPU, graphs=lambda _device: Rig(root).graphs)
    x = torch.randn(2, 4)
    expected = root(x, 2)
    runner.install()
    for _ in range(5):
        assert torch.equal(root(x, 2), expected)
    assert (runner.captures, runner.replays) == (1, 2)
    runner.remove()


def test_calls_of_two_threads_do_not_mix(rig: Rig) -> None:
    expected = [rig.eager(seed) for seed in range(8)]
    found: list[torch.Tensor | None] = [None] * 8

    def work(first: int) -> None:
        with torch.no_grad():
            for seed in range(first, 8, 2):
                found[seed] = rig.call(seed)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one is not None and torch.equal(one, other) for one, other in zip(found, expected))
    assert rig.runner.replays > 0


# ------------------------------------------------------------------------------------------------ enter and leave


@FAMILIES
def test_install_and_remove_leave_the_module_as_it_was(family: Family) -> None:
    rig = Rig(family.make(0)[1].module, family)
    before = state_of(component(rig))
    rig.runner.install()
    rig.trusted()
    rig.runner.remove()
    assert differences(before, state_of(component(rig))) == []
    assert rig.events()[-2:] == ["wait", "give back"]
    rig.runner.install()
    rig.trusted()
    rig.runner.remove()
    assert differences(before, state_of(component(rig))) == []


def test_hooks_of_others_on_the_root_run_at_every_call(small: Rig) -> None:
    seen: list[int] = []
    small.root.register_forward_hook(lambda _module, _args, _out: seen.append(1))
    add_hooks_of_others(nn.Identity())  # hooks elsewhere are no matter
    small.trusted()
    assert len(seen) == 4


def test_a_forward_of_another_extension_is_refused_at_the_start(rig: Rig) -> None:
    root = LDM.make(0)[1].module
    root.forward = lambda *args: None
    with pytest.raises(NotCapturable, match=r"the denoiser's forward has been replaced by tests\..*<lambda>"):
        Rig(root).runner.install()


def test_a_forward_put_over_ours_may_call_it_and_stays(small: Rig) -> None:
    small.trusted()
    original = small.root.forward
    small.root.forward = lambda *args: original(*args) * 2  # as ControlNet does
    assert torch.equal(small.call(1), small.eager(1) * 2)
    assert small.runner.reason is None
    over = small.root.forward
    small.runner.remove()
    assert small.root.forward is over
    assert torch.equal(small.call(2), small.eager(2) * 2)
    small.root.forward = original  # it puts back what it had found
    assert torch.equal(small.call(3), small.eager(3))
    other = Rig(small.root, SMALL)
    other.runner.install()
    other.trusted()
    other.runner.remove()
    assert "forward" not in vars(small.root)


def test_a_forward_put_over_ours_that_does_not_call_it_is_named(small: Rig) -> None:
    small.trusted()
    small.root.forward = lambda *args: torch.zeros(1)
    small.runner.job_started()
    small.call(1)
    assert "the denoiser's forward has been replaced by tests." in (small.runner.reason or "")
    del small.root.forward
    small.root.forward = small.runner.run


def test_removing_twice_or_before_installing_does_nothing() -> None:
    rig = Rig(LDM.make(0)[1].module)
    rig.runner.remove()
    rig.runner.install()
    rig.runner.remove()
    rig.runner.remove()
    assert rig.events() == []
    assert "forward" not in vars(rig.root)


def test_the_lock_of_captures_is_held_while_one_is_made(small: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []
    record = small.graphs.record

    def looked_at(work: Any) -> Any:
        other = threading.Thread(target=lambda: free.append(CAPTURE_LOCK.acquire(blocking=False)))
        other.start()
        other.join()
        return record(work)

    monkeypatch.setattr(small.graphs, "record", looked_at)
    small.call(), small.call()
    assert free == [False]
