"""Every switch of torch's that changes a computation makes another call of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vram_pilot.graphs.signature import NotCapturable
from vram_pilot.graphs.switches import switches

SETTERS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "cudnn.benchmark": (lambda value: setattr(torch.backends.cudnn, "benchmark", value), True, False),
    "cudnn.deterministic": (lambda value: setattr(torch.backends.cudnn, "deterministic", value), True, False),
    "cudnn.enabled": (lambda value: setattr(torch.backends.cudnn, "enabled", value), False, True),
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "float32 precision": (torch.set_float32_matmul_precision, "high", "highest"),
    "default dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "flash": (torch.backends.cuda.enable_flash_sdp, False, True),
    "mem efficient": (torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "math": (torch.backends.cuda.enable_math_sdp, False, True),
    "half sums": (
        lambda value: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", value),
        False,
        True,
    ),
}
if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
    SETTERS["cudnn sdp"] = (torch.backends.cuda.enable_cudnn_sdp, False, True)


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(("set_to", "changed", "usual"), SETTERS.values(), ids=SETTERS)
def test_a_switch_is_seen(set_to: Callable[[Any], Any], changed: Any, usual: Any) -> None:
    before = switches()
    set_to(changed)
    try:
        assert switches() != before
    finally:
        set_to(usual)


def test_tf32_chosen_in_either_way_is_seen() -> None:
    before = switches()
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert switches() != before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        kept = torch.backends.cuda.matmul.fp32_precision
        now = switches()
        try:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            assert switches() != now
        finally:
            torch.backends.cuda.matmul.fp32_precision = kept


def test_autocast_and_inference_mode_are_seen() -> None:
    found = [switches()]
    for device, dtype in (("cpu", torch.bfloat16), ("cpu", torch.float16)):
        with torch.autocast(device, dtype=dtype):
            found.append(switches())
    with torch.inference_mode():
        found.append(switches())
    assert len(set(found)) == len(found)


def test_the_older_functions_serve_where_the_newer_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.1 asks for each device by a function of its own."""
    from vram_pilot.graphs import switches as module

    def cuda_on() -> bool:
        return True

    monkeypatch.delattr(torch, "get_autocast_dtype", raising=False)
    for name, answer in (("is_autocast_enabled", cuda_on), ("get_autocast_gpu_dtype", lambda: torch.float16)):
        monkeypatch.setattr(torch, name, answer, raising=False)
    for name in ("is_autocast_cpu_enabled", "get_autocast_cpu_dtype"):
        monkeypatch.setattr(torch, name, cuda_on, raising=False)
    module._probes.cache_clear()
    try:
        assert switches()
    finally:
        monkeypatch.undo()
        module._probes.cache_clear()


def test_gradients_and_watchers_are_refused() -> None:
    with torch.enable_grad(), pytest.raises(NotCapturable, match="gradients are being recorded"):
        switches()
    from torch.utils._python_dispatch import TorchDispatchMode

    with TorchDispatchMode(), pytest.raises(NotCapturable, match="a mode of torch's watches every operation"):
        switches()
    with torch.device("cpu"), pytest.raises(NotCapturable, match="a mode of torch's watches every operation"):
        switches()
