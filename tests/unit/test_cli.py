"""The command line: exit statuses, where messages go, and that a command costs what it needs only."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.project import ROOT
from vram_pilot import __version__, cli
from vram_pilot.errors import RefusedError, UsageError, VramPilotError

Execute = Callable[[argparse.Namespace], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Execute], None]:
    """Puts a command of the test's own in the place of `run`; it has one option, --steps N."""

    def put(execute: Execute) -> None:
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--steps", type=int)

        module = SimpleNamespace(add_arguments=add_arguments, execute=execute)
        monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)

    return put


def raising(error: BaseException) -> Execute:
    def execute(args: argparse.Namespace) -> int:
        raise error

    return execute


def test_a_command_gets_its_arguments_and_gives_the_status(command: Callable[[Execute], None]) -> None:
    command(lambda args: args.steps)
    assert cli.main(["run", "--steps", "0"]) == 0
    assert cli.main(["run", "--steps", "1"]) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(UsageError("Wrong", do="Mend it."), 2), (RefusedError("Not here"), 2), (VramPilotError("It broke"), 1)],
)
def test_an_error_is_one_sentence_on_standard_error(
    error: VramPilotError, status: int, command: Callable[[Execute], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(error))
    assert cli.main(["run"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"vram_pilot: {error}\n"


def test_a_missing_package_is_named_with_advice(command: Callable[[Execute], None], capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(ModuleNotFoundError("No module named 'diffusers'", name="diffusers.models")))
    assert cli.main(["run"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("vram_pilot: The package diffusers is needed") and "Traceback" not in printed


def test_a_missing_module_of_ours_is_a_bug_and_not_hidden(command: Callable[[Execute], None]) -> None:
    command(raising(ModuleNotFoundError("No module named 'vram_pilot.x'", name="vram_pilot.x")))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["run"])


def test_stopping_it_is_no_traceback(command: Callable[[Execute], None], capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(KeyboardInterrupt()))
    assert cli.main(["run"]) == 130
    assert capsys.readouterr().err == "vram_pilot: Stopped.\n"


@pytest.mark.parametrize("name", ["bench", "doctor", "engines", "nonsense"])
def test_what_is_not_built_is_not_offered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name]) == 2
    printed = capsys.readouterr().err
    assert f"invalid choice: '{name}'" in printed
    assert all(entry.name in printed for entry in cli.COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["--nonsense"], ["run", "--steps", "x"], ["run", "--ste", "1"]])
def test_wrong_usage_is_two(arguments: list[str], command: Callable[[Execute], None]) -> None:
    command(lambda args: 0)
    assert cli.main(arguments) == 2


@pytest.mark.parametrize("entry", cli.COMMANDS, ids=lambda entry: entry.name)
def test_every_command_shows_its_help(entry: cli.Entry, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([entry.name, "--help"]) == 0
    assert f"vram_pilot {entry.name}" in capsys.readouterr().out


@pytest.mark.parametrize("entry", cli.COMMANDS, ids=lambda entry: entry.name)
def test_every_command_has_the_two_functions(entry: cli.Entry) -> None:
    module = importlib.import_module(f"vram_pilot.commands.{entry.name}")
    assert callable(module.add_arguments) and callable(module.execute)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["sessions", "--help"]])
def test_help_and_sessions_load_neither_torch_nor_gradio(arguments: list[str]) -> None:
    loaded = "print(*(m for m in ('torch', 'gradio') if m in sys.modules))"
    code = f"import sys; from vram_pilot.cli import main; main({arguments}); {loaded}"
    assert python(code).splitlines()[-1] == ""


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "vram_pilot", "--version"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == f"vram_pilot {__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end differently there")
def test_a_reader_that_has_gone_is_no_traceback() -> None:
    code = (
        "import sys, types; from vram_pilot import cli; "
        "cli.importlib = types.SimpleNamespace(import_module=lambda name: types.SimpleNamespace("
        "add_arguments=lambda parser: None, execute=lambda args: [print('x' * 100) for _ in range(10000)] and 0)); "
        "sys.exit(cli.main(['run']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1
