"""Images, memory, time and switching of every mode in the standalone host, in one process.

    python benchmarks/modes.py --model sd15 --size 512x512 --steps 20 --json benchmarks/results/modes-sd15.json

Prints a short table; exits with 1 when an image differs, memory does not come back, or the peaks are out of order.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import machine
import torch

from vram_pilot.app import App
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.request import ImageRequest, parse_size
from vram_pilot.settings import ModeRequest
from vram_pilot.streaming.split import size_of
from vram_pilot.units import MIB

KEPT = ("resident_bytes", "slot_bytes", "pinned_bytes", "pageable_bytes", "graph_bytes", "graph_replays", "prefetch_misses")


class Bench:
    def __init__(self, model: str, request: ImageRequest, device: str | None) -> None:
        self.request = request
        self.host = StandaloneHost(device)
        self.host.load(model)
        self.app = App(self.host, Path(tempfile.mkdtemp()))
        self.app.start()
        self.cuda = self.host.device().type == "cuda"
        self.problems: list[str] = []

    def settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def allocated(self) -> int:
        self.settle()
        gc.collect()
        return torch.cuda.memory_allocated() if self.cuda else 0

    def enter(self, request: ModeRequest) -> float:
        """Seconds until the mode is in force and every copy is done."""
        self.settle()
        start = time.perf_counter()
        answer = self.app.controller.request(request, scope="standing")
        self.settle()
        if answer.effective != request:
            self.problems.append(f"{request.infotext()} was not entered: {answer}")
        return time.perf_counter() - start

    def image(self, mode: ModeRequest | None = None) -> tuple[str, float, int, dict[str, Any]]:
        """Hash of the PNG, seconds, peak allocation, session."""
        self.settle()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        result = self.host.generate(self.request, mode)
        self.settle()
        taken = time.perf_counter() - start
        if result.status != "ok":
            self.problems.append(f"a job ended as {result.status}: {result.error}")
            return "", taken, 0, {}
        buffer = io.BytesIO()
        result.images[0].save(buffer, "PNG")
        peak = torch.cuda.max_memory_allocated() if self.cuda else 0
        self.app.store.flush()
        newest = self.app.store.get(self.app.store.list(limit=1, offset=0)[0]["id"])
        return hashlib.sha256(buffer.getvalue()).hexdigest(), taken, peak, newest

    def expect(self, true: bool, text: str) -> None:
        if not true:
            self.problems.append(text)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def measure(bench: Bench, repeats: int, say: Any) -> dict[str, Any]:
    denoiser = next(part.module for part in bench.host.components() if part.role == "denoiser")
    weights = size_of(denoiser)
    quarters = [int(weights * share / MIB) for share in (0.25, 0.5, 0.75)]
    modes = [ModeRequest("full"), ModeRequest("medvram"), ModeRequest("lowvram", 0)]
    found: dict[str, Any] = {"denoiser_bytes": weights, "modes": {}, "switching": {}}

    bench.image()
    reference, _, _, _ = bench.image()
    captured = [
        ModeRequest("full", None, "graph"),
        ModeRequest("lowvram", 0, "graph"),
        ModeRequest("lowvram", quarters[1], "graph"),
    ]
    streamed = [ModeRequest("lowvram", budget) for budget in quarters]
    for mode in [ModeRequest(), *modes, *streamed, *(captured if bench.cuda else [])]:
        bench.enter(mode)
        bench.image()
        runs = [bench.image() for _ in range(repeats)]
        sessions = [run[3] for run in runs]
        row = {
            "image_s": spread([run[1] for run in runs]),
            "step_s": spread([session["summary"]["step_p50_s"] for session in sessions]),
            "peak_allocated_bytes": max(run[2] for run in runs),
            "images_equal": all(run[0] == reference for run in runs),
            "streamed_bytes_per_step": sessions[-1]["steps"][-1]["streamed_bytes"],
        }
        state = bench.app.controller.state()
        row.update({key: state[key] for key in KEPT})
        row["notes"] = state["notes"]
        found["modes"][mode.infotext()] = row
        bench.expect(row["images_equal"], f"{mode.infotext()}: the image differs")
        say(
            f"{mode.infotext():28} {row['image_s']['median']:7.3f} s/image  step {row['step_s']['median'] * 1e3:7.1f} ms  peak "
            f"{row['peak_allocated_bytes'] / MIB:7.0f} MiB  equal {row['images_equal']}"
        )
    peaks = [found["modes"][mode.infotext()]["peak_allocated_bytes"] for mode in modes]
    if bench.cuda:
        bench.expect(peaks[0] > peaks[1] > peaks[2], f"peaks are not full > medvram > lowvram: {peaks}")

    bench.enter(ModeRequest("full"))
    bench.image()
    first, equal, levels = bench.allocated(), True, []
    for _ in range(5):
        for mode in (ModeRequest("medvram"), ModeRequest("lowvram", 0), ModeRequest("full")):
            bench.enter(mode)
            equal &= bench.image()[0] == reference
        levels.append(bench.allocated())
    found["cycles"] = {"images_equal": equal, "allocated_before": first, "allocated_after": levels}
    bench.expect(equal, "an image differs in the cycles")
    bench.expect(all(abs(level - first) <= 0.01 * first for level in levels), f"memory does not come back: {first} {levels}")

    away, back = [], []
    for _ in range(max(repeats, 5) + 1):
        away.append(bench.enter(ModeRequest("medvram")))
        back.append(bench.enter(ModeRequest("full")))
    both = [out + home for out, home in zip(away, back)]
    found["switching"] = {"full_medvram_s": spread(away[1:]), "medvram_full_s": spread(back[1:]), "both_s": spread(both[1:])}
    say(f"full -> medvram -> full: {found['switching']['both_s']['median'] * 1e3:.0f} ms")

    bench.enter(ModeRequest())
    firsts = []
    for mode in modes:
        firsts.append({"mode": mode.infotext(), "seconds": bench.enter(mode)})
        bench.enter(ModeRequest())
    found["first_entry_s"] = firsts
    say("first entry from as-launched: " + ", ".join(f"{row['mode']} {row['seconds'] * 1e3:.0f} ms" for row in firsts))

    bench.enter(ModeRequest("full"))
    plan = [ModeRequest("lowvram", 0), ModeRequest("medvram"), ModeRequest("lowvram", quarters[1]), ModeRequest("full")]

    original, count = bench.app.controller.step_started, 0

    def step_started(step: Any) -> None:
        nonlocal count
        bench.app.controller.request(plan[count % len(plan)], scope="job")
        count += 1
        original(step)

    bench.app.controller.step_started = step_started  # type: ignore[method-assign]
    digest, _, _, session = bench.image()
    bench.app.controller.step_started = original  # type: ignore[method-assign]
    found["mid_job"] = {"switches": len(session.get("mode", {}).get("history", [])), "image_equal": digest == reference}
    bench.expect(digest == reference, "the image differs when modes change at every step")
    bench.expect(found["mid_job"]["switches"] >= 4, f"modes did not change in mid-job: {found['mid_job']}")
    say(f"mid-job: {found['mid_job']}")
    bench.enter(ModeRequest())
    found["allocated_at_end"] = bench.allocated()
    found["pinned_at_end"] = bench.app.controller.bank.memory.pinned_bytes
    bench.expect(found["pinned_at_end"] == 0, "host copies outlive the return to as-launched")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--size", default="64x64")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--json")
    args = parser.parse_args()
    width, height = parse_size(args.size)
    bench = Bench(args.model, ImageRequest(prompt="a cat", width=width, height=height, steps=args.steps, seed=1), args.device)
    result = {"machine": machine.describe(), **measure(bench, args.repeats, lambda text: print(text, flush=True))}
    result["problems"] = bench.problems
    bench.app.stop()
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for problem in bench.problems:
        print("PROBLEM:", problem)
    return 1 if bench.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
