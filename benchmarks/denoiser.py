"""A step of the denoiser alone: resident and streamed, eager and captured, against the floor.

    python benchmarks/denoiser.py --model sd15 --size 512 --json benchmarks/results/denoiser-sd15.json

The floor of a streamed step is max(the captured step with everything resident, streamed bytes / pinned copy rate). Exits with
1 when an output differs from the resident eager one. Needs CUDA and diffusers; weights are random.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import machine
import torch

from vram_pilot.graphs.runner import GraphRunner
from vram_pilot.hosts.standalone.models import build_random
from vram_pilot.streaming.copies import CudaCopies
from vram_pilot.streaming.executor import StreamExecutor
from vram_pilot.streaming.pinned import HostMemory
from vram_pilot.streaming.split import size_of, split
from vram_pilot.units import MIB

DEVICE = torch.device("cuda", 0)


def inputs(unet: Any, pixels: int) -> dict[str, Any]:
    """CFG batch of two: latents (2, 4, h/8, w/8), text states (2, 77, d)."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, torch.float16)

    call = {
        "sample": random(2, 4, pixels // 8, pixels // 8),
        "timestep": torch.full((2,), 500.0, device=DEVICE),
        "encoder_hidden_states": random(2, 77, unet.config.cross_attention_dim),
        "return_dict": False,
    }
    if unet.config.addition_embed_type == "text_time":
        ids = torch.tensor([[pixels, pixels, 0, 0, pixels, pixels]] * 2).to(DEVICE, torch.float16)
        call["added_cond_kwargs"] = {"text_embeds": random(2, 1280), "time_ids": ids}
    return call


def ms(function: Callable[[], Any], runs: int = 10, warm: int = 3) -> dict[str, float]:
    """Of one call among many, back to back: the mean by wall clock over `runs`, five times; median of the five, least and
    most.
    """
    for _ in range(warm):
        function()
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(runs):
            function()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e3 / runs)
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


def issuing_ms(function: Callable[[], Any]) -> float:
    """Milliseconds that the program takes to issue one call, the device idle: median of 30."""
    taken = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        taken.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(taken)


def copy_rate() -> float:
    """Bytes a second from pinned memory, as our own buffers are pinned: median of 10 copies of 512 MiB."""
    memory = HostMemory(0.9)
    host = memory.allocate(512 * MIB, DEVICE)
    device = torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE)
    taken = []
    for _ in range(11):
        torch.cuda.synchronize()
        start = time.perf_counter()
        device.copy_(host.flat, non_blocking=True)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return device.numel() / statistics.median(taken[1:])


def fresh_peak() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sd15")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--shares", default="0,0.25,0.5,0.75")
    parser.add_argument("--arena-mib", default="192")
    parser.add_argument("--json")
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "rows": []}
    problems = []
    with torch.no_grad():
        unet = build_random(args.model, torch.float16).unet.to(DEVICE)
        call = inputs(unet, args.size)
        expected = unet(**call)[0].clone()
        fresh_peak()
        eager = ms(lambda: unet(**call))
        peak_eager = torch.cuda.max_memory_allocated()
        runner = GraphRunner(unet, DEVICE)
        runner.install()
        for _ in range(4):
            out = unet(**call)[0]
        same = torch.equal(out, expected)
        full = ms(lambda: unet(**call))
        python_ms = issuing_ms(lambda: unet(**call))
        problems += (
            [] if same and runner.replays else [f"resident graph: same {same}, replays {runner.replays}, {runner.reason}"]
        )
        rate = copy_rate()
        weights = size_of(unet)
        result.update(
            weights_bytes=weights,
            copy_rate_bytes_s=rate,
            eager_ms=eager,
            eager_peak_bytes=peak_eager,
            graph_ms=full,
            graph_pool_bytes=runner.pool_bytes,
            python_ms_per_replayed_step=python_ms,
        )
        print(
            f"resident: eager {eager['median']:.2f} ms, graph {full['median']:.2f} ms, equal {same}, pool "
            f"{runner.pool_bytes / MIB:.0f} MiB, python {python_ms:.3f} ms/step issued, copy rate {rate / 1e9:.1f} GB/s",
            flush=True,
        )
        runner.remove()
        memory = HostMemory(0.9)
        units, held = split(unet)
        for unit in [*units, *held]:
            unit.take_home(memory, DEVICE)
        for share in [float(part) for part in args.shares.split(",")]:
            for arena in [int(part) for part in args.arena_mib.split(",")]:
                row = streamed(unet, call, expected, units, held, int(weights * share), arena * MIB, rate, full["median"])
                result["rows"].append(row)
                problems += [] if row["equal"] else [f"output differs: {row}"]
                times = f"eager {row['eager_ms']['median']:6.2f}, graph {row['graph_ms']['median']:6.2f} ms"
                floor = f"{row['graph_over_floor']:.3f} x floor ({row['floor_ms']:.2f}; planned {row['planned_ms']:.2f})"
                sizes = f"arena {row['slot_bytes'] / MIB:4.0f} MiB, peak {row['peak_bytes'] / MIB:.0f} MiB"
                print(f"share {share:.2f}: {times} = {floor}, {sizes}, equal {row['equal']}, {row['note']}", flush=True)
    result["problems"] = problems
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


def streamed(
    unet: Any, call: Any, expected: torch.Tensor, units: Any, held: Any, budget: int, arena: int, rate: float, full_ms: float
) -> dict[str, Any]:
    fresh_peak()
    executor = StreamExecutor(unet, units, held, budget, arena, CudaCopies(DEVICE), rate)
    executor.install(bracket_root=False)
    runner = GraphRunner(unet, DEVICE, surroundings=executor)

    def eager() -> Any:
        executor.begin()
        out = unet(**call)[0]
        executor.end(whole=True)
        return out

    equal = torch.equal(eager(), expected) and torch.equal(eager(), expected)
    eager_ms = ms(eager, 10)
    runner.install()
    for _ in range(8):
        equal &= torch.equal(unet(**call)[0], expected)
    before, misses = executor.streamed_bytes, executor.misses
    unet(**call)
    per_step = executor.streamed_bytes - before
    if not runner.replays:  # nothing to measure: say so at once instead of spending the card's time
        equal = False
    graph_ms = ms(lambda: unet(**call)) if runner.replays else eager_ms
    equal &= torch.equal(unet(**call)[0], expected)
    floor = max(full_ms, per_step / rate * 1e3)
    row = {
        "budget_bytes": budget,
        "resident_bytes": executor.resident_bytes,
        "slot_bytes": executor.slot_bytes,
        "streamed_bytes": per_step,
        "units": len(executor.schedule.streamed),
        "ahead": executor.schedule.ahead,
        "eager_ms": eager_ms,
        "graph_ms": graph_ms,
        "floor_ms": floor,
        "graph_over_floor": graph_ms["median"] / floor,
        "planned_ms": executor.schedule.step_s * 1e3,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "misses": misses,
        "python_ms": issuing_ms(lambda: unet(**call)),
        "replays": runner.replays,
        "equal": bool(equal),
        "note": runner.reason or f"{runner.replays} replays, {misses} misses",
    }
    runner.remove()
    executor.remove()
    return row


if __name__ == "__main__":
    raise SystemExit(main())
