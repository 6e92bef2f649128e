"""What the instruments cost: jobs with readings and a client on the events stream, against jobs without either, in turn.

    python benchmarks/telemetry.py --model sd15 --size 512x512 --images 4 --steps 20 --json benchmarks/results/telemetry.json

The client is a process of its own. Prints each pair; exits with 1 when the median pair is slower by more than --limit percent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import machine
import torch

from vram_pilot.app import App
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.request import ImageRequest, parse_size
from vram_pilot.session.records import Sample
from vram_pilot.settings import READINGS_MS, ModeRequest

#: A page's part: reads events until it is told to go, and answers how many came. One line of input: an address, or nothing.
CLIENT = """
import sys, threading, urllib.request
for line in sys.stdin:
    response, count = urllib.request.urlopen(line.strip()), 0
    def read():
        global count
        try:
            for part in response:
                count += part.startswith(b"event: record")
        except (OSError, ValueError, AttributeError):
            pass
    thread = threading.Thread(target=read)
    thread.start()
    print("open", flush=True)
    sys.stdin.readline()
    response.fp.raw._sock.shutdown(2)
    thread.join()
    print(count, flush=True)
"""


class Client:
    """Records that came are counted in `records`."""

    def __init__(self, url: str) -> None:
        self.url, self.records = url, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, text: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def connect(self) -> None:
        assert self._ask(self.url) == "open"

    def leave(self) -> None:
        self.records += int(self._ask(""))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Server:
    """The routes alone, on a port of their own, in a thread. Needs starlette and uvicorn, as every host has them."""

    def __init__(self, app: App) -> None:
        import uvicorn
        from starlette.applications import Starlette

        from vram_pilot.panel.auth import Auth
        from vram_pilot.panel.routes import register

        target = Starlette()
        self._panel = register(target, app, Auth(lambda: None))
        self._server = uvicorn.Server(uvicorn.Config(target, host="127.0.0.1", port=0, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def end(self) -> None:
        self._panel.close()
        self._server.should_exit = True
        self._thread.join(10)


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        width, height = parse_size(args.size)
        self.request = ImageRequest(prompt="a cat", width=width, height=height, steps=args.steps, n_iter=args.images, seed=1)
        self.host = StandaloneHost(args.device)
        self.host.load(args.model)
        self.app = App(self.host, Path(tempfile.mkdtemp()), settings={READINGS_MS.key: args.readings_ms})
        self.app.start(ModeRequest(args.mode, accelerate=args.accelerate))
        assert self.app.telemetry is not None
        self.pump = self.app.telemetry.pump
        self.server = Server(self.app) if args.client else None
        self.client = None if self.server is None else Client(f"http://127.0.0.1:{self.server.port}/vram-pilot/v1/events")
        self.samples = 0

    def job(self, watched: bool) -> dict[str, float]:
        """steps_per_s by the device's clock, images_per_s by the host's."""
        self.pump.start() if watched else self.pump.stop()
        if watched and self.client is not None:
            self.client.connect()
        cursor = self.app.timeline.cursor
        start = time.perf_counter()
        result = self.host.generate(self.request)
        taken_s = time.perf_counter() - start
        if watched and self.client is not None:
            self.client.leave()
        if result.status != "ok":
            raise SystemExit(f"a job ended as {result.status}: {result.error}")
        records = self.app.timeline.after(cursor, 100_000).records
        samples = sum(isinstance(record, Sample) for record in records)
        if not watched and samples:
            raise SystemExit("there were readings in a job that should have none")
        self.samples += samples
        self.app.store.flush()
        newest = self.app.store.get(self.app.store.list(limit=1, offset=0)[0]["id"])
        return {"steps_per_s": newest["summary"]["steps_per_s"], "images_per_s": self.request.n_iter / taken_s}

    def end(self) -> None:
        if self.client is not None:
            self.client.end()
        if self.server is not None:
            self.server.end()
        self.app.stop()


def costs(bench: Bench) -> dict[str, float]:
    """Milliseconds of one reading of each instrument, the median of 20, on an idle card."""
    bench.pump.stop()
    found = {}
    for sampler in bench.pump.samplers:
        times = []
        for _ in range(21):
            start = time.perf_counter()
            sampler.sample()
            times.append((time.perf_counter() - start) * 1e3)
        sampler.close()
        found[sampler.name] = round(statistics.median(times[1:]), 3)
    return found


def cpu_shares(bench: Bench, watched_s: float = 5.0, idle_s: float = 5.0) -> dict[str, float]:
    """CPU of this process, as a share of one core: while somebody watches and nothing runs, and while nobody does."""
    bench.pump.start()
    with bench.app.watching():
        start, cpu = time.perf_counter(), time.process_time()
        time.sleep(watched_s)
        watched = (time.process_time() - cpu) / (time.perf_counter() - start)
    while bench.pump.running:
        time.sleep(0.1)
    start, cpu = time.perf_counter(), time.process_time()
    time.sleep(idle_s)
    return {"watched": watched, "idle": (time.process_time() - cpu) / (time.perf_counter() - start)}


def measure(bench: Bench, pairs: int, say: Any) -> dict[str, Any]:
    bench.job(True)
    bench.job(False)
    rows = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)  # whoever is first is so as often as the other
        found = {watched: bench.job(watched) for watched in order}
        change = {name: found[True][name] / found[False][name] - 1 for name in found[True]}
        rows.append({"with": found[True], "without": found[False], "change": change})
        speeds = "{:8.2f} with, {:8.2f} steps/s without".format(*(found[watched]["steps_per_s"] for watched in (True, False)))
        say(f"{pair + 1:3}: {speeds}: {change['steps_per_s']:+.2%}, images/s {change['images_per_s']:+.2%}")
    medians = {name: statistics.median(row["change"][name] for row in rows) for name in rows[0]["change"]}
    return {"pairs": rows, "median_change": medians, "readings": bench.samples}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--size", default="64x64")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--images", type=int, default=1, help="images of one job; a job should take some seconds")
    parser.add_argument("--mode", default="full")
    parser.add_argument("--accelerate", default="off")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--limit", type=float, default=0.5, help="percent that the median pair may lose")
    parser.add_argument("--readings-ms", type=int, default=READINGS_MS.default)
    parser.add_argument("--no-client", dest="client", action="store_false", help="without starlette and uvicorn")
    parser.add_argument("--device")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    bench = Bench(args)
    say = lambda text: print(text, flush=True)  # noqa: E731
    found = measure(bench, args.pairs, say)
    found["cost_ms"], found["cpu_of_one_core"] = costs(bench), cpu_shares(bench)
    found["stream_records"] = None if bench.client is None else bench.client.records
    bench.end()
    lost = -100 * found["median_change"]["steps_per_s"]
    say(f"median {-lost:+.2f} % steps/s, {100 * found['median_change']['images_per_s']:+.2f} % images/s")
    say(f"{found['readings']} readings, {found['stream_records']} records streamed")
    say(f"cost of a reading, ms: {found['cost_ms']}; CPU of one core: {found['cpu_of_one_core']}")
    if args.json:
        result = {"machine": machine.describe(), "options": vars(args), **found}
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    problems = [f"the median pair is slower by {lost:.2f} %, more than {args.limit} %"] if lost > args.limit else []
    if not found["readings"]:
        problems.append("no job had a reading")
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
