"""`python -m vram_pilot run`: one generation in the standalone host, its images, its session and its report.

The images carry no word of the mode, so that the files of two modes can be compared byte by byte; the session has it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vram_pilot.commands.progress import ProgressLine
from vram_pilot.commands.standalone import add_shared_arguments, build, requested_mode
from vram_pilot.errors import RefusedError, UsageError, VramPilotError
from vram_pilot.hosts.standalone.request import SAMPLERS, ImageRequest, parse_sampler, parse_size
from vram_pilot.reports.base import format_of, write_report
from vram_pilot.reports.files import write_whole
from vram_pilot.session.records import JobFinished
from vram_pilot.settings import ModeRequest

if TYPE_CHECKING:
    from vram_pilot.app import App
    from vram_pilot.hosts.standalone.host import Result, StandaloneHost

_SIZES = {"tiny": "64x64", "sdxl": "1024x1024"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        required=True,
        metavar="M",
        help="tiny, sd15 or sdxl (random weights), or the path of a .safetensors checkpoint",
    )
    add("--cap-mib", metavar="N", help="not in this version")
    add("--prompt", default="", metavar="TEXT")
    add("--negative", default="", metavar="TEXT", help="negative prompt")
    add("--steps", type=int, default=20, metavar="N", help="20 unless given")
    add("--size", metavar="WxH", help="in pixels; 512x512 unless given, 64x64 with tiny, 1024x1024 with sdxl")
    add("--sampler", default="Euler a", metavar="S", help="one of " + ", ".join(SAMPLERS) + "; Euler a unless given")
    add("--cfg", type=float, default=7.0, metavar="X", help="CFG scale; 7 unless given, 1 leaves guidance out")
    add("--batch", type=int, default=1, metavar="N", help="images at a time")
    add("--batch-count", type=int, default=1, metavar="N", help="batches, one after another")
    add("--hires", type=float, metavar="X", help="a second pass at X times the size")
    add("--seed", type=int, default=0, metavar="N", help="of the first image; 0 unless given")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder for the images; it is made")
    add("--json", metavar="F", help="write the session as JSON; - for standard output")
    add("--report", type=Path, metavar="F", help="write a report; its ending names its form: .html, .json, .csv, .trace.json")
    add_shared_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Makes the images. Everything that can be wrong with the arguments is found before a model is loaded."""
    mode, request = _mode(args), _request(args)
    _check_outputs(args)
    host, app = build(args.device, args.data_dir)
    _say(f"Loading {args.model} …")
    for note in host.load(args.model):
        _say(note)
    app.start()
    try:
        app.controller.request(mode, "standing")
        result = _generate(host, app, request)
        try:
            _save_images(args, request, result)
        finally:  # a full disk for one may not be full for the other
            _write_session(args, _session(app))
    finally:
        app.stop()
        app.store.close()
    if result.error is not None:
        raise result.error
    if result.status == "interrupted":
        raise KeyboardInterrupt
    return 0


def _mode(args: argparse.Namespace) -> ModeRequest:
    if args.cap_mib is not None:
        raise RefusedError("--cap-mib is not in this version yet", found=args.cap_mib, do="Leave it out.")
    return requested_mode(args)


def _request(args: argparse.Namespace) -> ImageRequest:
    width, height = parse_size(args.size or _SIZES.get(args.model, "512x512"))
    return ImageRequest(
        prompt=args.prompt,
        negative_prompt=args.negative,
        width=width,
        height=height,
        steps=args.steps,
        sampler=parse_sampler(args.sampler),
        cfg_scale=args.cfg,
        batch_size=args.batch,
        n_iter=args.batch_count,
        seed=args.seed,
        hires_scale=args.hires,
    )


def _check_outputs(args: argparse.Namespace) -> None:
    """Raises UsageError for a place that cannot be written to, before any work is done for it."""
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"The folder for the images cannot be made: {reason}", found=str(args.out), do="Name another one."
        ) from error
    if not os.access(args.out, os.W_OK):
        raise UsageError("The folder for the images cannot be written", found=str(args.out), do="Name another one.")
    if args.report is not None:
        format_of(args.report)
    for path in (args.report, None if args.json in (None, "-") else Path(args.json)):
        if path is not None and (path.is_dir() or not _is_writable(path.absolute())):
            raise UsageError("This file cannot be written", found=str(path), do="Name a file in a folder that can be written.")


def _is_writable(path: Path) -> bool:
    """path: absolute. A device or a pipe is written itself, a file by way of its folder."""
    place = path if path.exists() and not path.is_file() else path.parent
    return place.exists() and os.access(place, os.W_OK)


def _generate(host: StandaloneHost, app: App, request: ImageRequest) -> Result:
    recorder = app.recorder
    assert recorder is not None
    with _interrupts(host), ProgressLine(recorder.progress, sys.stderr):
        return host.generate(request)


@contextmanager
def _interrupts(host: StandaloneHost) -> Iterator[None]:
    """The first Ctrl+C stops at the next step and keeps what is done; the second one ends the process."""
    usual = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, usual)
        host.interrupt()

    try:
        signal.signal(signal.SIGINT, stop)
    except ValueError:  # not the main thread: somebody else looks after signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _session(app: App) -> dict[str, Any]:
    """The session of the job that has just ended."""
    newest = app.timeline.after(max(app.timeline.cursor - 100, 0)).records
    ended = [record.session_id for record in newest if isinstance(record, JobFinished)]
    if not ended:
        raise VramPilotError("The generation left no session", do="The log says why.")
    return app.store.get(ended[-1])


def _save_images(args: argparse.Namespace, request: ImageRequest, result: Result) -> None:
    """Names each file on standard output, unless that is for the session. An image is never written over."""
    from vram_pilot.hosts.standalone.host import png_bytes

    taken = [int(path.name[:5]) for path in args.out.glob("[0-9][0-9][0-9][0-9][0-9]-*.png")]
    first = max(taken, default=-1) + 1
    for index, (image, text) in enumerate(zip(result.images, result.infotexts)):
        path = args.out / f"{first + index:05}-{request.seed_of(index)}.png"
        write_whole(path, png_bytes(image, text))
        print(path, file=sys.stderr if args.json == "-" else sys.stdout)


def _write_session(args: argparse.Namespace, session: dict[str, Any]) -> None:
    if args.json == "-":
        print(json.dumps(session, ensure_ascii=False, indent=2, allow_nan=False))
    elif args.json is not None:
        write_report(session, "json", Path(args.json))
    if args.report is not None:
        write_report(session, format_of(args.report), args.report)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
