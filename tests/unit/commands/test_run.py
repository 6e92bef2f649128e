"""`python -m vram_pilot run`, in this process, with the tiny model on the CPU."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from PIL import Image

from tests.project import ROOT
from vram_pilot.cli import main
from vram_pilot.commands.progress import ProgressLine, describe
from vram_pilot.errors import UsageError
from vram_pilot.hosts.standalone import models
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.pipeline import txt2img

SCHEMA = json.loads((ROOT / "docs" / "session.schema.json").read_text(encoding="utf-8"))
Run = Callable[..., int]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Calls the command with small defaults; `options` are further words and win."""

    def call(*options: str, model: str = "tiny", mode: str = "full") -> int:
        words = ["run", "--model", model, "--mode", mode, "--steps", "3", "--size", "64x64", "--seed", "1", "--device", "cpu"]
        return main([*words, "--out", str(tmp_path / "out"), "--data-dir", str(tmp_path / "state"), *options])

    return call


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandaloneHost, "load", lambda self, name: pytest.fail("a model was loaded"))


def images(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "out").glob("*.png"))


@pytest.mark.slow
def test_two_modes_give_the_same_file_a_valid_session_and_a_report_that_loads_nothing(run: Run, tmp_path: Path) -> None:
    sessions = []
    for mode in ("full", "lowvram", "as-launched"):
        assert run("--json", str(tmp_path / "s.json"), "--report", str(tmp_path / "r.html"), mode=mode) == 0
        session = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
        jsonschema.validate(session, SCHEMA)
        assert (session["status"], session["mode"]["effective"]["mode"]) == ("ok", mode)
        assert [step["calls"] for step in session["steps"]] == [1, 1, 1]
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        markup = re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)  # the policy holds those
        assert session["id"] in markup and not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", markup)
        assert "default-src 'none'" in markup and "http" not in markup.partition('content="default-src')[2].partition('"')[0]
        sessions.append(session)
    assert len(images(tmp_path)) == 3, "an image is never written over"
    assert len({path.read_bytes() for path in images(tmp_path)}) == 1
    assert len({session["id"] for session in sessions}) == 3


@pytest.mark.slow
def test_the_image_names_are_said_and_carry_the_parameters(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run("--prompt", "a cat", "--negative", "fog", "--batch", "2", "--batch-count", "2", "--hires", "1.5", "--steps", "2")
        == 0
    )
    assert capsys.readouterr().out.split() == [str(path) for path in images(tmp_path)]
    assert [path.name for path in images(tmp_path)] == [f"{number:05}-{number + 1}.png" for number in range(4)]
    with Image.open(images(tmp_path)[2]) as read:
        assert read.size == (96, 96)
        text = read.info["parameters"]
    assert text.startswith("a cat\nNegative prompt: fog\nSteps: 2, Sampler: Euler a, CFG scale: 7, Seed: 3, Size: 64x64")


def test_json_to_standard_output_is_json_alone_and_has_no_prompt(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "-", "--prompt", "secret words", "--sampler", "heun") == 0
    printed = capsys.readouterr()
    session = json.loads(printed.out)
    jsonschema.validate(session, SCHEMA)
    assert session["request"]["sampler"] == "Heun" and [step["calls"] for step in session["steps"]] == [2, 2, 1]
    assert "secret" not in printed.out and "00000-1.png" in printed.err


def test_a_report_s_format_follows_its_name(run: Run, tmp_path: Path) -> None:
    assert run("--report", str(tmp_path / "r.trace.json")) == 0
    assert "traceEvents" in json.loads((tmp_path / "r.trace.json").read_text(encoding="utf-8"))
    assert run("--report", str(tmp_path / "r.json")) == 0
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text(encoding="utf-8")), SCHEMA)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--size", "64"], "512x768"),
        (["--size", "0x64"], "64 to 8192"),
        (["--size", "68x64"], "64 or 72"),
        (["--size", "99999x64"], "64 to 8192"),
        (["--size=-64x64"], "512x768"),
        (["--steps", "0"], "1 to 500"),
        (["--steps", "many"], "invalid int value"),
        (["--batch", "0"], "1 to 64"),
        (["--batch-count", "-1"], "1 to 1000"),
        (["--hires", "1"], "above 1"),
        (["--hires", "nan"], "above 1"),
        (["--cfg", "0"], "1 to 100"),
        (["--seed", "-1"], "0 to 4294967295"),
        (["--sampler", "magic"], "DPM++ 2M"),
        (["--mode", "turbo"], "lowvram"),
        (["--mode", "tensorrt"], "not in this version"),
        (["--mode", "auto"], "not in this version"),
        (["--accelerate", "compile"], "not in this version"),
        (["--accelerate", "magic"], "off, "),
        (["--mode", "as-launched", "--accelerate", "graph"], "full, medvram and lowvram only"),
        (["--cap-mib", "2000"], "--cap-mib is not in this version"),
        (["--budget-mib", "512"], "lowvram only"),
        (["--mode", "lowvram", "--budget-mib", "-5"], "0 to 1048576"),
        (["--mode", "lowvram", "--budget-mib", "lots"], "whole number"),
        (["--device", "abacus"], "cuda:N"),
        (["--device", "cuda:99"], "no such CUDA device"),
        (["--prompt", "caf\udce9"], "prompt"),
        (["--report", "r.pdf"], ".html, .json, .csv, .trace.json"),
        (["--report", "r.parquet"], "not in this version"),
        (["--no-such-flag"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_allowed_before_anything_is_loaded(
    run: Run, no_model: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run(*options) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == "" and "Traceback" not in printed.err
    assert not images(tmp_path)


def test_places_that_cannot_be_written_are_refused_before_anything_is_loaded(
    run: Run, no_model: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for options in (
        ["--out", str(tmp_path / "file")],
        ["--json", str(tmp_path / "none" / "s.json")],
        ["--json", str(tmp_path)],
        ["--report", str(tmp_path / "none" / "r.html")],
    ):
        assert run(*options) == 2
        assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("place", ["--out", "--json", "--report"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_loaded(
    run: Run, no_model: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As on a disk that is mounted read-only; what is made would be lost."""
    shut = tmp_path / "shut"
    shut.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != shut)
    assert run(place, str(shut if place == "--out" else shut / "s.json")) == 2
    assert str(shut) in capsys.readouterr().err


def test_a_model_that_is_none_ends_with_2(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.ckpt").write_bytes(b"\x80\x02.")
    (tmp_path / "m.safetensors").write_bytes(b"\x80\x02.")
    for name, said in (
        ("m.ckpt", "run code"),
        ("m.safetensors", "no whole .safetensors"),
        ("none.safetensors", "tiny, sd15"),
        ("x" * 300, "File name too long"),
    ):
        assert run(model=str(tmp_path / name)) == 2
        assert said in capsys.readouterr().err


def test_a_generation_that_fails_ends_with_1_and_leaves_its_session(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any) -> Iterator[list[Image.Image]]:
        yield next(iter(txt2img(*args)))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")

    monkeypatch.setattr("vram_pilot.hosts.standalone.host.txt2img", fails)
    assert run("--json", str(tmp_path / "s.json"), "--report", str(tmp_path / "r.html"), mode="lowvram") == 1
    session = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    jsonschema.validate(session, SCHEMA)
    assert session["status"] == "oom" and "9.00 GiB" in session["error"]
    assert "leaner mode" in capsys.readouterr().err
    assert len(images(tmp_path)) == 1 and (tmp_path / "r.html").is_file(), "the batch before it is kept"


def test_a_mode_that_cannot_be_entered_ends_the_run_without_an_image(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StandaloneHost, "obstacle", lambda self: "another program holds the weights")
    assert run(mode="medvram") == 2
    assert "another program holds the weights" in capsys.readouterr().err
    assert not images(tmp_path)


def test_ctrl_c_stops_at_the_next_step_and_leaves_the_session(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pressed: list[int] = []

    def press(self: torch.nn.Module, args: Any) -> None:
        pressed.append(1)
        signal.raise_signal(signal.SIGINT)

    original = models.random_model

    def with_a_finger_on_it(*args: Any) -> models.Model:
        model = original(*args)
        model.unet.register_forward_pre_hook(press)
        return model

    monkeypatch.setattr(models, "random_model", with_a_finger_on_it)
    assert run("--json", str(tmp_path / "s.json"), "--batch-count", "3") == 130
    session = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert session["status"] == "interrupted" and len(session["steps"]) == 1 and pressed == [1]
    assert "Stopped." in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_disk_that_is_full_for_the_images_leaves_the_session(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _content: bytes) -> None:
        raise UsageError("This file cannot be written: No space left on device", found=path.name, do="Make room there.")

    monkeypatch.setattr("vram_pilot.commands.run.write_whole", full)
    assert run("--json", str(tmp_path / "session.json")) == 2
    assert "This file cannot be written: No space left on device" in capsys.readouterr().err
    assert json.loads((tmp_path / "session.json").read_text(encoding="utf-8"))["status"] == "ok"


def test_a_state_folder_that_cannot_be_written_costs_no_image(run: Run, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    assert run("--data-dir", str(tmp_path / "blocked"), "--json", str(tmp_path / "s.json"), mode="lowvram") == 0
    assert len(images(tmp_path)) == 1
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["status"] == "ok"


# ---------------------------------------------------------------------------------------------------- progress


def progress(**changes: Any) -> dict[str, Any]:
    return {"phase": "denoise", "step": 2, "steps": 20, "pass": "base", "image": 0, **changes}


def test_progress_in_words() -> None:
    assert describe(progress(), steps=True) == "denoise, step 3 of 20"
    assert describe(progress(image=1, **{"pass": "hires"}), steps=True) == "denoise, step 3 of 20, batch 2, hires pass"
    assert describe(progress(phase="load", step=None, image=None, **{"pass": None}), steps=True) == "load"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_line_for_each_phase_and_a_terminal_one_line_that_is_written_over() -> None:
    for stream, expected in (
        (io.StringIO(), "denoise\ndecode\n"),
        (Terminal(), "\rdenoise, step 3 of 20\rdenoise, step 4 of 20\rdecode               "),
    ):
        reports = iter([None, progress(), progress(), progress(step=3), progress(phase="decode", step=None)])
        line = ProgressLine(lambda reports=reports: next(reports), stream)  # type: ignore[misc]
        for _ in range(5):
            line.show()
        assert stream.getvalue() == expected


def test_a_terminal_s_line_is_gone_at_the_end() -> None:
    stream = Terminal()
    line = ProgressLine(lambda: progress(), stream, period_s=60)
    with line:
        line.show()
    assert stream.getvalue().endswith("\r" + " " * len("denoise, step 3 of 20") + "\r")


def test_a_reader_that_has_gone_does_not_end_the_job() -> None:
    line = ProgressLine(lambda: progress(), _Closed(), period_s=60)
    with line:
        line.show()


class _Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError
