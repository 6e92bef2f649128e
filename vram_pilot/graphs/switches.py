"""torch's own switches, as far as they change what a forward computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

from vram_pilot.graphs.signature import NotCapturable

#: Functions of torch._C that tell a switch; each release has some of them.
_NAMES = (
    *("_get_cublas_allow_tf32", "_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cublas_allow_fp16_accumulation"),
    *("_get_cublas_allow_bf16_reduced_precision_reduction", "_get_float32_matmul_precision", "_get_sm_carveout_experimental"),
    *("_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic", "_get_cudnn_allow_tf32"),
    *("_get_cudnn_depthwise_kernel", "_get_miopen_immediate", "_cuda_get_cudnn_benchmark_limit"),
    *("_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only"),
    "_get_deterministic_fill_uninitialized_memory",
    *("_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled"),
    *("_get_overrideable_sdp_enabled", "_get_fa3_sdp_enabled", "_get_math_sdp_allow_fp16_bf16_reduction"),
    *("_get_blas_preferred_backend", "_get_linalg_preferred_backend", "_get_rocm_fa_preferred_backend"),
)
#: (backend, operation) of the newer way to choose the precision of float32.
_PRECISIONS = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))


def switches() -> Hashable:
    """All of them, as they are on this thread. Raises NotCapturable when something watches or changes every operation."""
    if torch.is_grad_enabled():
        raise NotCapturable("gradients are being recorded")
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise NotCapturable("a mode of torch's watches every operation")
    return (*[_tell(probe) for probe in _probes()], *_sdp_order())


def _tell(probe: Callable[[], Any]) -> Hashable:
    try:
        answer: Hashable = probe()
        return answer
    except RuntimeError as error:  # float32's precision was chosen in both ways, the older and the newer
        return str(error)


@functools.cache
def _probes() -> tuple[Callable[[], Any], ...]:
    found = [getattr(torch._C, name, None) for name in _NAMES]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        found += [functools.partial(precision, *which) for which in _PRECISIONS]
    return (
        *(probe for probe in found if probe is not None),
        *_autocast(),
        torch.is_inference_mode_enabled,
        torch.get_default_dtype,
    )


def _autocast() -> list[Callable[[], Any]]:
    of: Any = torch
    if hasattr(of, "get_autocast_dtype"):  # since 2.4 by device; the older functions warn there
        probes = (of.is_autocast_enabled, of.get_autocast_dtype)
        return [functools.partial(probe, device) for device in ("cuda", "cpu") for probe in probes]
    return [of.is_autocast_enabled, of.get_autocast_gpu_dtype, of.is_autocast_cpu_enabled, of.get_autocast_cpu_dtype]


def _sdp_order() -> tuple[int, ...]:
    order = getattr(torch._C, "_get_sdp_priority_order", None)
    return () if order is None else tuple(order())
