"""What the tests on a card share: SD1.5 with random weights, its denoiser resident or streamed, and calls of it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vram_pilot.graphs.runner import GraphRunner
from vram_pilot.hosts.standalone.models import Model, build_random
from vram_pilot.streaming.copies import copy_engine
from vram_pilot.streaming.executor import StreamExecutor
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.split import size_of, split
from vram_pilot.streaming.units import Unit
from vram_pilot.units import MIB

DEVICE = torch.device("cuda", 0)
MODEL, DTYPE, LATENT = "sd15", torch.float16, 64
ARENA_BYTES = 192 * MIB


@pytest.fixture(scope="session", autouse=True)
def _card() -> None:
    """Fails, not skips, where there is no card."""
    assert torch.cuda.is_available(), "these tests need an NVIDIA card"


@pytest.fixture(scope="session")
def model() -> Model:
    return build_random(MODEL, DTYPE)


@pytest.fixture(scope="session")
def denoiser(model: Model) -> Denoiser:
    return Denoiser(model.unet.to(DEVICE))


class Denoiser:
    """expect: the result of the resident denoiser without a graph, computed once, before weights go anywhere."""

    def __init__(self, unet: torch.nn.Module) -> None:
        self.unet = unet
        self._known: dict[tuple[Any, ...], torch.Tensor] = {}

    def inputs(self, seed: int = 0, *, batch: int = 2, size: int = LATENT, tokens: int = 77) -> dict[str, Any]:
        """CFG batch of two: latents (2, 4, h/8, w/8), text states (2, 77, d)."""
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(DEVICE, DTYPE)

        config: Any = self.unet.config
        call: dict[str, Any] = {
            "sample": random(batch, 4, size, size),
            "timestep": torch.full((), 900.0 - seed, device=DEVICE),
            "encoder_hidden_states": random(batch, tokens, config.cross_attention_dim),
            "return_dict": False,
        }
        if config.addition_embed_type == "text_time":
            call["added_cond_kwargs"] = {"text_embeds": random(batch, 1280), "time_ids": random(batch, 6).abs() * 1000}
        return call

    @torch.no_grad()
    def call(self, seed: int = 0, **shape: int) -> torch.Tensor:
        result: torch.Tensor = self.unet(**self.inputs(seed, **shape))[0]
        return result

    def expect(self, seed: int = 0, **shape: int) -> torch.Tensor:
        key = (seed, *sorted(shape.items()))
        if key not in self._known:
            assert "forward" not in vars(self.unet), "ask before the denoiser is captured"
            self._known[key] = self.call(seed, **shape)
        return self._known[key]

    @contextlib.contextmanager
    def captured(self, share: float | None = None) -> Iterator[GraphRunner]:
        """share: None for weights that stay where they are, else the part of them that is not streamed."""
        with contextlib.ExitStack() as stack:
            executor = None if share is None else stack.enter_context(self._streamed(share))
            runner = GraphRunner(self.unet, DEVICE, surroundings=executor)
            runner.install()
            stack.callback(runner.remove)
            yield runner

    @contextlib.contextmanager
    def _streamed(self, share: float) -> Iterator[StreamExecutor]:
        memory = HostMemory(0.9)
        units, held = split(self.unet)
        for unit in [*units, *held]:
            unit.take_home(memory, DEVICE)
        engine = copy_engine(DEVICE)
        executor = StreamExecutor(self.unet, units, held, int(size_of(self.unet) * share), ARENA_BYTES, engine)
        executor.install(bracket_root=False)
        try:
            yield executor
        finally:
            executor.remove()
            for unit in [*units, *held]:
                Unit.release(unit, DEVICE)


def replayed(denoiser: Denoiser, runner: GraphRunner, seed: int = 0, **shape: int) -> torch.Tensor:
    """The result of a call that has been captured, compared and replayed."""
    before = runner.replays
    for _ in range(8):
        result = denoiser.call(seed, **shape)
        if runner.replays > before:
            return result
    raise AssertionError(f"not replayed: {runner.reason}")


def settled_memory() -> tuple[int, int]:
    """Bytes (allocated, reserved) once everything is done and nothing is kept in the cache."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
