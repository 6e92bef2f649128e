"""Whatever changes between two calls, be it weights, modules, attributes or Python, the next result is the eager one's.

Each change alters the result, so that a replay of the old graph would be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.graphs.conftest import Rig, known

pytestmark = pytest.mark.slow  # many cases, each with a model of its own

Undo = Callable[[], None]
Change = Callable[[Rig, pytest.MonkeyPatch], None]


def attention(rig: Rig) -> Any:
    """A cross-attention of ldm's, deep inside."""
    return rig.root.middle_block[1].transformer_blocks[0].attn2


def conv(rig: Rig) -> Any:
    return rig.root.out[2]


# ------------------------------------------------------------------------------------------------ weights


def in_place(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig).weight.mul_(1.5)


def other_memory(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig).weight.data = conv(rig).weight.data * 1.5


def other_parameter(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig).weight = nn.Parameter(conv(rig).weight * 1.5)


def a_bias_that_was_none(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    assert attention(rig).to_q.bias is None
    attention(rig).to_q.bias = nn.Parameter(torch.ones(64))


def no_bias_any_more(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig).bias = None


def moved_by_to(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    rig.root.double()
    rig.root.float()
    conv(rig).weight.mul_(1.5)


def loaded(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    rig.root.load_state_dict({key: value * 1.1 for key, value in rig.root.state_dict().items()})


# ------------------------------------------------------------------------------------------------ modules


def other_module(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    rig.root.out[2] = nn.Conv2d(32, 4, 3, padding=1)


def other_class(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    """As token merging does."""

    class Merged(type(attention(rig))):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs) * 0.5

    attention(rig).__class__ = Merged


def module_left_out(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    del rig.root.out[2]
    rig.root.out.append(nn.Conv2d(32, 4, 1))


# ------------------------------------------------------------------------------------------------ attributes


def a_number(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    attention(rig).scale *= 4.0


def tiling(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig).padding_mode = "circular"


def own_forward(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    """As hypertile and ControlNet do."""
    original = attention(rig).forward
    attention(rig).forward = lambda *args, **kwargs: original(*args, **kwargs) * 0.5


def own_helper(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    """As asymmetric tiling does: what hides a method of the class."""
    original = conv(rig)._conv_forward
    conv(rig)._conv_forward = lambda *args: original(*args) * 0.5


# ------------------------------------------------------------------------------------------------ hooks


def a_hook(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig).register_forward_hook(lambda _module, _args, out: out * 0.5)


def a_hook_without_a_handle(rig: Rig, _patch: pytest.MonkeyPatch) -> None:
    conv(rig)._forward_hooks[-1] = lambda _module, _args, out: out * 0.5


def a_global_hook(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, _args, out: out * 0.5 if module is conv(rig) else out
    )
    patch.setattr(rig, "undo", handle.remove, raising=False)


# ------------------------------------------------------------------------------------------------ Python


def class_forward(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    original = nn.Conv2d.forward
    patch.setattr(nn.Conv2d, "forward", lambda self, x: original(self, x) * 0.9)


def inherited_forward(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    """The class had none of its own: normalisation runs in a class derived from torch's."""
    kind = type(rig.root.out[0])
    original = kind.forward
    patch.setattr(kind, "forward", lambda self, x: original(self, x) * 0.9)


def torch_s_function(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    original = F.silu
    patch.setattr(F, "silu", lambda *args, **kwargs: original(*args, **kwargs) * 0.9)


def a_helper_of_the_package(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    from ldm.modules.diffusionmodules import openaimodel

    original = openaimodel.timestep_embedding
    patch.setattr(openaimodel, "timestep_embedding", lambda *args, **kwargs: original(*args, **kwargs) * 0.9)


def a_global_object(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    """As FreeU does with the WebUI's stand-in for torch."""
    from ldm.modules.diffusionmodules import openaimodel

    class Cat:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def cat(self, tensors: Any, dim: int = 0) -> torch.Tensor:
            return torch.cat([tensors[0] * 0.9, *tensors[1:]], dim)

    patch.setattr(openaimodel, "th", Cat())


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        *(in_place, other_memory, other_parameter, a_bias_that_was_none, no_bias_any_more, moved_by_to, loaded),
        *(other_module, other_class, module_left_out, a_number, tiling, own_forward, own_helper),
        *(a_hook, a_hook_without_a_handle, a_global_hook),
        *(class_forward, inherited_forward, torch_s_function, a_helper_of_the_package, a_global_object),
    )
}


@pytest.fixture(params=CHANGES.values(), ids=CHANGES)
def change(request: pytest.FixtureRequest) -> Change:
    found: Change = request.param
    return found


def test_a_change_between_calls_is_seen_at_once(rig: Rig, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rig.trusted()
    change(rig, monkeypatch)
    try:
        for seed in range(4):
            result = rig.call(seed)
            assert torch.equal(result, rig.eager(seed))
            assert seed or not torch.equal(result, before), "the change changes nothing, so that this proves nothing"
    finally:
        getattr(rig, "undo", lambda: None)()


def test_a_change_and_back_is_seen_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rig.trusted()
    original = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: original(self, x) * 0.9)
    changed = rig.call()
    assert torch.equal(changed, rig.eager()) and not torch.equal(changed, before)
    monkeypatch.undo()
    assert torch.equal(rig.trusted(), before)


def test_functions_whose_address_is_used_again_are_not_confused(rig: Rig) -> None:
    """A dropped hook leaves its address to the next one."""
    rig.trusted()
    for factor in (0.5, 0.25, 0.125):
        handle = conv(rig).register_forward_hook(lambda _module, _args, out, factor=factor: out * factor)
        for seed in range(3):
            assert torch.equal(rig.call(seed), rig.eager(seed))
        handle.remove()
        assert torch.equal(rig.call(), rig.eager())


def test_weights_that_change_in_the_second_call_are_waited_for(rig: Rig) -> None:
    """A LoRA that its host writes inside the forward, when a layer first runs with it."""
    rig.call()
    handle = conv(rig).register_forward_pre_hook(lambda module, _args: module.weight.mul_(1.01))
    before = conv(rig).weight.clone()
    assert torch.isfinite(rig.call()).all()
    assert not torch.equal(conv(rig).weight, before)
    assert rig.events() == ["aside"]
    assert rig.runner.reason == "weights or attributes of the denoiser change from call to call"
    handle.remove()
    assert torch.equal(rig.trusted(), rig.eager())


def test_an_attribute_that_counts_calls_keeps_a_call_eager(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.call()
    conv(rig).calls = 0
    original = nn.Conv2d.forward

    def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return original(self, x)

    monkeypatch.setattr(nn.Conv2d, "forward", counting)
    for _ in range(6):
        assert torch.equal(rig.call(), rig.eager())
    assert rig.runner.captures == 0


def test_a_list_that_is_changed_in_place_is_seen() -> None:
    """As the scales of an IP-Adapter are kept."""
    rig = Rig(known(_ROOT.format(body="return self.layer(x) * self.factors[0]['scale']")).Root())
    rig.runner.install()
    x = torch.randn(2, 4)
    rig.root.factors = [{"scale": 2.0}]
    results = [rig.root(x) for _ in range(4)]
    assert rig.runner.replays == 1
    rig.root.factors[0]["scale"] = 3.0
    assert torch.equal(rig.root(x) * 2, results[0] * 3)
    rig.runner.remove()


def test_a_processor_of_the_same_class_with_other_attributes_is_another(diffusers_rig: Rig) -> None:
    from diffusers.models.attention_processor import SlicedAttnProcessor

    rig = diffusers_rig
    rig.trusted()
    for size in (1, 2):
        rig.root.set_attn_processor(SlicedAttnProcessor(size))
        assert torch.equal(rig.trusted(), rig.eager())
    captures = rig.runner.captures
    processor = rig.root.mid_block.attentions[0].transformer_blocks[0].attn1.processor
    processor.slice_size = 4
    rig.events()
    assert torch.equal(rig.call(), rig.eager())
    assert rig.events() == ["replay", "wait"]  # the replay counts for nothing
    rig.trusted()
    assert rig.runner.captures == captures + 1


# ------------------------------------------------------------------------------------------------ what is not captured


def reason_for(rig: Rig, calls: int = 3) -> str:
    for seed in range(calls):
        assert torch.equal(rig.call(seed), rig.eager(seed))
    assert rig.runner.captures == 0
    return rig.runner.reason or ""


def test_a_hook_of_another_extension_is_named(rig: Rig) -> None:
    conv(rig).register_forward_hook(lambda _module, _args, out: out)
    reason = reason_for(rig)
    assert reason.startswith("tests.unit.graphs.test_changes.") and reason.endswith("<lambda> is not known to be repeatable")


def test_a_strange_function_behind_a_known_one_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WebUI's own wrapper may carry anybody's function."""
    wrap = known("def wrap(function):\n    return lambda *args, **kwargs: function(*args, **kwargs)").wrap

    def of_others(self: Any, x: torch.Tensor) -> torch.Tensor:
        return original(self, x)

    original = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", wrap(of_others))
    reason = reason_for(rig)
    assert reason.startswith("tests.unit.graphs.test_changes.") and reason.endswith("of_others is not known to be repeatable")


def test_gradients_keep_a_call_eager(rig: Rig) -> None:
    with torch.enable_grad():
        assert reason_for(rig) == "gradients are being recorded"


def test_a_mode_that_watches_operations_keeps_a_call_eager(rig: Rig) -> None:
    from torch.overrides import TorchFunctionMode

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    with Watching():
        assert reason_for(rig) == "a mode of torch's watches every operation"


def test_a_profiler_keeps_a_call_eager(rig: Rig) -> None:
    import sys

    sys.setprofile(lambda *_: None)
    try:
        reason = reason_for(rig)
    finally:
        sys.setprofile(None)
    assert reason == "a Python profiler is running"


def test_what_the_host_cannot_repeat_is_passed_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from vram_pilot.graphs.signature import NotCapturable

    def raising(error: Exception) -> Callable[[], None]:
        def state() -> None:
            raise error

        return state

    monkeypatch.setattr(rig.runner, "_state", raising(NotCapturable("a hypernetwork is loaded")))
    assert reason_for(rig) == "a hypernetwork is loaded"
    monkeypatch.setattr(rig.runner, "_state", raising(AttributeError("no such option")))
    assert reason_for(rig) == "the host's state cannot be read (AttributeError: no such option)"
    monkeypatch.setattr(rig.runner, "_state", lambda: [1])
    assert "unhashable" in reason_for(rig)


def test_a_capture_within_a_capture_is_not_tried(rig: Rig) -> None:
    rig.graphs.elsewhere = True
    assert reason_for(rig) == "the call is being captured by somebody else"


def test_random_numbers_keep_a_call_eager(rig: Rig) -> None:
    for module in rig.root.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    rig.root.train()
    for _ in range(3):
        torch.manual_seed(1)
        result = rig.call()
        torch.manual_seed(1)
        assert torch.equal(result, rig.eager())
    assert rig.runner.reason == "the denoiser draws random numbers"
    assert rig.runner.captures == 0


def test_an_output_of_a_class_of_its_own_keeps_a_call_eager(diffusers_rig: Rig) -> None:
    latent, time, states = diffusers_rig.inputs()
    for _ in range(4):
        answer = diffusers_rig.root(latent, time, encoder_hidden_states=states)
    assert torch.equal(answer.sample, diffusers_rig.eager())
    assert diffusers_rig.runner.reason == "an output is of the class UNet2DConditionOutput"


_ROOT = """
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0
    def forward(self, x):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("x.clamp_(-1, 1); return self.layer(x)", "the denoiser writes to its inputs"),
        ("return self.layer(x) if x.sum().item() > 1e9 else x + 1", "the capture failed (NoCapture: CUDA error: operation not"),
        ("return None", "the denoiser answers no tensor"),
        ("self.kept = [x]; return self.layer(x)", "Root.kept holds tensors"),
        ("self.calls += 1; return self.layer(x)", "weights or attributes of the denoiser change from call to call"),
    ],
)
def test_a_forward_that_a_graph_would_not_repeat_runs_eagerly(body: str, reason: str) -> None:
    root = known(_ROOT.format(body=body)).Root()
    runner = Rig(root).runner
    runner.install()
    for _ in range(4):
        x = torch.randn(2, 4) * 3
        given = x.clone()
        result = root(x)
        forward = vars(root).pop("forward")
        expected = root(given)
        root.forward = forward
        assert torch.equal(x, given)
        assert expected is result or torch.equal(result, expected)
    assert runner.captures == 0
    assert (runner.reason or "").startswith(reason)
    runner.remove()
