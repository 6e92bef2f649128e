"""txt2img in a real AUTOMATIC1111 WebUI: its own flags against the modes of VRAM Pilot, by time, memory and pixels.

    python benchmarks/a1111.py --webui-dir DIR --python DIR/venv/bin/python --checkpoint NAME --json RESULT.json

Starts the WebUI four times: as launched, with --medvram and with --lowvram (VRAM Pilot off), and with VRAM Pilot, whose modes
change between images. Each image goes through the API and encodes its own prompt; the seed is the same. Exits with 1 when
the pixels of a configuration are not those of the WebUI as launched, or when one could not be measured. --quick makes small
pictures on the CPU with any checkpoint, which tries this program and measures nothing.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import machine
from PIL import Image, ImageChops
from webui import Place, Server, StartError, prepare

from tests.host.client import AnswerError

MIB = 1024 * 1024
OFF = "--vram-pilot-off"
#: The host's own ways: name and arguments of the start. The first is the reference.
NATIVE = (("as launched", (OFF,)), ("--medvram", (OFF, "--medvram")), ("--lowvram", (OFF, "--lowvram")))
SLOW = "--lowvram"
MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("VRAM Pilot: as-launched", {"mode": "as-launched"}),
    ("VRAM Pilot: full", {"mode": "full", "accelerate": "off"}),
    ("VRAM Pilot: full, graph", {"mode": "full", "accelerate": "graph"}),
    ("VRAM Pilot: medvram", {"mode": "medvram", "accelerate": "off"}),
    ("VRAM Pilot: lowvram, budget 0", {"mode": "lowvram", "budget_mib": 0, "accelerate": "off"}),
    ("VRAM Pilot: lowvram, budget 0, graph", {"mode": "lowvram", "budget_mib": 0, "accelerate": "graph"}),
)
MEMORY_OF_THE_MODE = ("resident_bytes", "slot_bytes", "pinned_bytes", "pageable_bytes", "graph_bytes")
OF_THE_MODE = (*MEMORY_OF_THE_MODE, "graph_replays", "prefetch_misses", "refusal", "notes")


@dataclass
class Picture:
    """seconds: from the request to its whole answer; pixels: SHA-256 of them; encoded: the PNG in base64."""

    seconds: float
    pixels: str
    encoded: str

    def image(self) -> Image.Image:
        return Image.open(io.BytesIO(base64.b64decode(self.encoded))).convert("RGB")


@dataclass
class Bench:
    place: Place
    request: dict[str, Any]
    images: int
    slow_images: int
    logs: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    reference: Picture | None = None

    def run(self, save: Any) -> None:
        """save: called after each configuration, so that a run that is cut off leaves what it has."""
        for name, arguments in NATIVE:
            for server in self._start(name, arguments):
                self.row(server, name, self.slow_images if name == SLOW else self.images)
            save()
        for server in self._start("with VRAM Pilot", ()):
            for name, mode in MODES:
                if mode.get("accelerate") == "graph" and not server.model["device"].startswith("cuda"):
                    self.left_out.append(f"{name}: needs CUDA, and the WebUI computes on {server.model['device']}")
                    continue
                self.row(server, name, self.images, mode)
                save()

    def _start(self, name: str, arguments: tuple[str, ...]) -> Any:
        """Yields the server once, or not at all when it cannot be started."""
        try:
            with Server(self.place, arguments, self.logs / f"{name.strip('-').replace(' ', '-')}.log") as server:
                print(f"# {name}: started in {server.started_s:.1f} s", flush=True)
                self.starts.append({"name": name, "arguments": arguments, "start_s": server.started_s, "model": server.model})
                yield server
        except StartError as error:
            self._problem(f"{name}: {error}")

    def row(self, server: Server, name: str, images: int, mode: dict[str, Any] | None = None) -> None:
        try:
            row = self._measure(server, images, mode)
        except (AnswerError, OSError) as error:
            refused = isinstance(error, AnswerError) and error.status < 500
            self._problem(f"{name}: {error}" + ("" if refused else f". The WebUI's log ends so:\n{server.tail()}"))
            return
        pictures = row.pop("pictures")
        self.reference = self.reference or pictures[0]
        row = {"name": name, **row, **self._compare(name, pictures)}
        self.rows.append(row)
        print(line(row), flush=True)

    def _measure(self, server: Server, images: int, mode: dict[str, Any] | None) -> dict[str, Any]:
        """One image to warm up, then `images` timed ones."""
        row: dict[str, Any] = {} if mode is None else {"mode": server.client.post("/vram-pilot/v1/mode", mode)["effective"]}
        server.client.post("/vram-pilot-meter/reset?empty=true", {})
        warm = self._picture(server)
        first = server.client.post("/vram-pilot-meter/reset", {})
        pictures = [self._picture(server) for _ in range(images)]
        times = [picture.seconds for picture in pictures]
        row.update({"pictures": pictures, "warm_up_s": warm.seconds, "warm_up_peak_bytes": first["peak_allocated_bytes"]})
        row.update({"times_s": times, "median_s": statistics.median(times)})
        row.update(server.client.get("/vram-pilot-meter/memory"))
        if mode is not None:
            row.update(self._own_figures(server, mode))
        return row

    def _picture(self, server: Server) -> Picture:
        made = server.client.txt2img(**self.request)
        return Picture(made.duration_s, made.pixels[0], made.encoded[0])

    def _own_figures(self, server: Server, mode: dict[str, Any]) -> dict[str, Any]:
        """What VRAM Pilot itself says of the mode and of the last image."""
        state = server.client.state()["mode"]
        if any(state["effective"][key] != value for key, value in mode.items()):
            self._problem(f"{mode} was not in force: {state['effective']}, {state['refusal']}")
        if mode.get("accelerate") == "graph" and not state["graph_replays"]:
            self._problem(f"{mode}: no graph was replayed: {state['notes']}")
        return {
            "effective": state["effective"],
            **{key: state[key] for key in OF_THE_MODE},
            "summary": server.client.newest_session()["summary"],
        }

    def _compare(self, name: str, pictures: list[Picture]) -> dict[str, Any]:
        """The pixels of every image against the first one of the WebUI as launched."""
        assert self.reference is not None
        others = [picture for picture in pictures if picture.pixels != self.reference.pixels]
        difference = max((furthest(self.reference.image(), picture.image()) for picture in others), default=0)
        if others:
            self._problem(f"{name}: {len(others)} of {len(pictures)} images differ from as launched, by at most {difference}")
        return {"pixels_sha256": pictures[-1].pixels, "equal": not others, "max_abs_difference": difference}

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        print("PROBLEM:", text, flush=True)


def furthest(one: Image.Image, other: Image.Image) -> int:
    """The largest difference of any channel, 0 to 255; 255 for pictures of different sizes."""
    if one.size != other.size:
        return 255
    return max(ImageChops.difference(one, other).tobytes())


def line(row: dict[str, Any]) -> str:
    peak = row["peak_allocated_bytes"]
    memory = "–" if peak is None else f"{peak / MIB:.0f}"
    pixels = "equal" if row["equal"] else f"differ by {row['max_abs_difference']}"
    times = f"{row['median_s']:8.3f} ({min(row['times_s']):.3f} to {max(row['times_s']):.3f}, n={len(row['times_s'])})"
    return f"{row['name']:38} {times:40} {memory:>9}   {pixels}"


def machine_of(python: str) -> dict[str, Any]:
    """machine.describe() by the WebUI's Python; the command is this program's."""
    code = "import json, machine; print(json.dumps(machine.describe()))"
    folder = Path(__file__).resolve().parent
    answer = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{python} cannot tell what it runs on. Use the WebUI's own Python. It said:\n{answer.stderr[-2000:]}")
    return {**json.loads(answer.stdout.splitlines()[-1]), "command": machine.command()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--webui-dir", required=True, type=Path, help="the folder of an installed WebUI 1.10")
    parser.add_argument("--python", required=True, help="the Python that it runs with")
    parser.add_argument("--checkpoint", required=True, help="the name of a model in its folder")
    parser.add_argument("--models-dir", type=Path, help="its models' folder, where that is another")
    parser.add_argument("--size", type=int, default=512, help="width and height")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--images", type=int, default=5, help="timed images of each configuration")
    parser.add_argument("--slow-images", type=int, default=2, help=f"timed images of {SLOW}")
    parser.add_argument("--quick", action="store_true", help="two 64×64 images of 4 steps on the CPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="keep the WebUI's logs in this folder")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    webui = args.webui_dir.resolve()
    if not (webui / "launch.py").is_file():
        raise SystemExit(f"{webui} holds no launch.py. Give --webui-dir the folder of an installed WebUI.")
    if args.quick:
        args.size, args.steps, args.images, args.slow_images = 64, 4, 2, 1
    data = Path(tempfile.mkdtemp(prefix="vram-pilot-bench-"))
    own, variables = (("--use-cpu", "all", "--no-half"), {"CUDA_VISIBLE_DEVICES": ""}) if args.quick else ((), {})
    models = (args.models_dir or webui / "models").resolve()
    place = Place(webui, args.python, models, data, ("--opt-sdp-attention", *own), variables)
    request = {"prompt": "a photo of a cat", "width": args.size, "height": args.size, "steps": args.steps, "seed": 1}
    request.update(negative_prompt="", sampler_name="Euler a", cfg_scale=7, batch_size=1, save_images=False)
    logs = args.logs or data
    logs.mkdir(parents=True, exist_ok=True)
    bench = Bench(place, request, args.images, args.slow_images, logs)
    facts = machine_of(args.python)

    def save() -> None:
        parts = {"starts": bench.starts, "rows": bench.rows, "left_out": bench.left_out, "problems": bench.problems}
        result = {"machine": facts, "arguments": place.arguments, "request": request, "checkpoint": args.checkpoint, **parts}
        if args.json:
            args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    try:
        prepare(place, args.checkpoint)
        print(f"{'':38} {'s per image: median (range)':40} {'peak MiB':>9}   pixels", flush=True)
        bench.run(save)
    finally:
        save()
        shutil.rmtree(data, ignore_errors=True)
    print(*(f"left out: {text}" for text in bench.left_out), sep="\n")
    return 1 if bench.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
