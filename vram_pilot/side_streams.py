"""CUDA streams beside the computation's, made once a device: torch hands out 32 in turn, so streams made for each mode would
in time be each other, and cuBLAS keeps a workspace of tens of MiB for every stream that it has computed on."""

from __future__ import annotations

import torch

_streams: dict[tuple[int | None, str], torch.cuda.Stream] = {}


def side_stream(device: torch.device, use: str) -> torch.cuda.Stream:
    """The stream for this use ("capture", "copy 0", …) on a CUDA device. On the sampling thread."""
    key = (device.index, use)
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(device)
    return _streams[key]
