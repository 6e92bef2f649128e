"""A denoiser of equal blocks whose order of calls can be chosen for each call, and the family that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from tests.fakes.models import Family
from vram_pilot.hosts.base import Component

WIDTH = 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.outer(torch.tanh(self.inner(x))))


class Blocks(nn.Module):
    """route: gives the numbers of the blocks to call, from the number of the call."""

    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.route: Callable[[int], Sequence[int]] = lambda call: range(count)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        route, self.calls = self.route(self.calls), self.calls + 1
        for number in route:
            x = self.blocks[number](x)
        return x


def blocks_components(seed: int = 0, count: int = 8) -> tuple[Component, ...]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder, denoiser, vae = nn.Linear(8, WIDTH), Blocks(count), nn.Linear(WIDTH, 8)
    return (
        Component("text_encoder", "text_encoder", encoder),
        Component("denoiser", "denoiser", denoiser),
        Component("vae", "vae", vae),
    )


BLOCKS = Family(
    "blocks",
    blocks_components,
    lambda encoder, ids: encoder(ids.float()),
    lambda denoiser, latent, time, states: denoiser((latent.reshape(-1, WIDTH) + states) / (1 + time[0])).reshape(latent.shape),
    lambda vae, latent: vae(latent.reshape(-1, WIDTH)),
)
