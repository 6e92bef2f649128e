"""tasks.py: set-up that is done once and goes on after a break, and steps whose failure is not lost."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tasks
from tests.project import ROOT

Calls = list[tuple[str, ...]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty .venv, a machine without a card, and a quick stand-in for what installs."""
    monkeypatch.setattr(tasks, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(tasks, "has_nvidia_card", lambda: False)
    return tmp_path / ".venv"


def installer(calls: Calls, failing: tuple[str, ...] = ()) -> Callable[[str, bool], None]:
    def install(generation: str, card: bool) -> None:
        calls.append((generation,))
        if generation in failing:
            raise tasks.TaskError("no network")
        python = tasks.python_of(generation)
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    return install


def test_set_up_once_and_never_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    monkeypatch.setattr(tasks, "install", installer(calls))
    tasks.setup()
    tasks.setup()
    assert calls == [("g3",), ("g4",)]


def test_an_interrupted_set_up_goes_on_with_what_is_missing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    monkeypatch.setattr(tasks, "install", installer(calls, failing=("g4",)))
    with pytest.raises(tasks.TaskError):
        tasks.setup()
    monkeypatch.setattr(tasks, "install", installer(calls))
    tasks.setup()
    assert calls == [("g3",), ("g4",), ("g4",)]


def test_a_broken_upgrade_is_not_taken_for_complete(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    monkeypatch.setattr(tasks, "install", installer(calls))
    tasks.setup(["g4"])
    monkeypatch.setattr(tasks, "stamp_of", lambda generation, card: "made from other pins\n")
    monkeypatch.setattr(tasks, "install", installer(calls, failing=("g4",)))
    with pytest.raises(tasks.TaskError):
        tasks.setup(["g4"])
    monkeypatch.undo()
    monkeypatch.setattr(tasks, "VENV", place)
    monkeypatch.setattr(tasks, "has_nvidia_card", lambda: False)
    monkeypatch.setattr(tasks, "install", installer(calls))
    tasks.setup(["g4"])
    assert len(calls) == 3


@pytest.mark.parametrize("name", ["pip.txt", "common.in", "g4.in", "g4.txt", "torch.txt", "no-deps.txt"])
def test_any_changed_pin_makes_the_environment_anew(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in tasks.CONSTRAINTS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(tasks, "CONSTRAINTS", tmp_path)
    before = tasks.stamp_of("g4", False)
    text = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(text.replace(b"\n", b"\r\n"))
    assert tasks.stamp_of("g4", False) == before, "line ends depend on the checkout"
    (tmp_path / name).write_bytes(text + b"another==1\n")
    assert tasks.stamp_of("g4", False) != before


def test_another_python_or_a_new_card_makes_the_environment_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tasks.stamp_of("g4", False)
    assert tasks.stamp_of("g4", True) != before
    monkeypatch.setattr(sys, "version", "3.99.0 (another)")
    assert tasks.stamp_of("g4", False) != before


def test_what_pip_left_half_installed_is_forgotten(tmp_path: Path) -> None:
    site = tmp_path / ("Lib/site-packages" if tasks.WINDOWS else "lib/python3.11/site-packages")
    for folder, names in {
        "whole-1.dist-info": ("METADATA", "RECORD"),
        "half-1.dist-info": ("METADATA",),
        "~orch": ("a.py",),
    }.items():
        (site / folder).mkdir(parents=True)
        for name in names:
            (site / folder / name).touch()
    tasks.forget_half_installed(tmp_path)
    assert [path.name for path in site.iterdir()] == ["whole-1.dist-info"]


def test_pip_takes_a_half_installed_package_for_installed_until_it_is_forgotten(tmp_path: Path) -> None:
    """Why the step above is needed: pip writes RECORD last, but looks at METADATA."""
    site = tmp_path / ("Lib/site-packages" if tasks.WINDOWS else "lib/python3.11/site-packages")
    info = site / "half-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1\n")

    def listed() -> str:
        command = [sys.executable, "-m", "pip", "list", "--format=freeze", "--path", str(site)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "half==1" in listed()
    tasks.forget_half_installed(tmp_path)
    assert "half" not in listed()


@pytest.mark.slow
def test_a_broken_environment_is_made_anew_and_a_good_one_kept(place: Path) -> None:
    tasks.make_venv("g4")
    python, mark = tasks.python_of("g4"), place / "g4" / "mark"
    mark.touch()
    tasks.make_venv("g4")
    assert mark.exists()
    code = "import pip, shutil; shutil.rmtree(pip.__path__[0])"
    subprocess.run([python, "-c", code], check=True)
    tasks.make_venv("g4")
    assert not mark.exists()
    subprocess.run([python, "-m", "pip", "--version"], check=True, stdout=subprocess.DEVNULL)


def recording_pip(calls: Calls, fails: Callable[[tuple[str, ...]], bool]) -> Callable[..., None]:
    def pip(generation: str, *arguments: str) -> None:
        calls.append(arguments)
        if fails(arguments):
            raise tasks.TaskError("pip failed")

    return pip


@pytest.mark.parametrize(("card", "pinned"), [(False, True), (True, False)])
def test_torch_is_pinned_without_a_card_only(card: bool, pinned: bool, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    monkeypatch.setattr(tasks, "make_venv", lambda generation: None)
    monkeypatch.setattr(tasks, "pip", recording_pip(calls, lambda arguments: False))
    tasks.install("g3", card)
    assert ["constraints/torch.txt" in arguments for arguments in calls] == [False, pinned, False]
    assert all("constraints/g3.txt" in arguments for arguments in calls if "torch>=2.1.2" in arguments)


def test_another_torch_serves_where_the_pinned_one_is_not_to_be_had(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    monkeypatch.setattr(tasks, "make_venv", lambda generation: None)
    monkeypatch.setattr(tasks, "pip", recording_pip(calls, lambda arguments: "constraints/torch.txt" in arguments))
    tasks.install("g4", card=False)
    assert calls[2] == calls[1][:-2]


@pytest.mark.skipif(tasks.WINDOWS, reason="a POSIX shell script")
def test_the_launcher_runs_the_default_environment_from_anywhere(place: Path, tmp_path: Path) -> None:
    inner = place / "g4" / "bin" / "python"
    inner.parent.mkdir(parents=True)
    inner.write_text('#!/bin/sh\necho "inner $@"\n')
    inner.chmod(0o755)
    tasks.write_launcher()
    answer = subprocess.run([place / "bin" / "python", "-m", "a b"], cwd="/", capture_output=True, text=True, check=True)
    assert answer.stdout == "inner -m a b\n"


def test_the_launcher_on_windows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "WINDOWS", True)
    tasks.write_launcher()
    assert (place / "Scripts" / "python.cmd").read_bytes() == b'@"%~dp0..\\g4\\Scripts\\python.exe" %*\r\n'


def test_an_unsupported_python_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert tasks.main(["setup"]) == 1
    assert "Python 3.10, 3.11 or 3.12 is needed" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------------------ steps


def python_step(label: str, code: str) -> tasks.Step:
    return tasks.Step(label, [sys.executable, "-c", code])


def test_one_failure_fails_the_whole_and_the_others_still_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    after = tmp_path / "after"
    steps = [python_step("bad", "raise SystemExit(5)"), python_step("good", f"open({str(after)!r}, 'w')")]
    assert tasks.run_steps(steps) == 1
    assert after.exists()
    printed = capfd.readouterr().out
    assert re.search(r"FAILED  bad ", printed) and re.search(r"passed  good ", printed)


def test_all_passed_is_zero() -> None:
    assert tasks.run_steps([python_step("good", "")]) == 0


def test_a_step_that_cannot_run_fails_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    assert tasks.run_steps([tasks.Step("node --test", ["node"], missing=tasks.NO_NODE)]) == 1
    assert tasks.NO_NODE in capfd.readouterr().out


def test_what_is_started_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = tasks.test_environment()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "7", "what the user sets holds"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tasks.Step]:
    """What a task would run; nothing is set up, nothing runs."""
    collected: list[tasks.Step] = []

    def collect(wanted: list[tasks.Step]) -> int:
        collected.extend(wanted)
        return 0

    monkeypatch.setattr(tasks, "setup", lambda *generations: None)
    monkeypatch.setattr(tasks, "install_system_packages", lambda asked: None)
    monkeypatch.setattr(tasks, "run_steps", collect)
    return collected


def test_test_runs_everything(steps: list[tasks.Step]) -> None:
    assert tasks.main(["test"]) == 0
    assert [step.label for step in steps] == [
        "ruff check",
        "ruff format --check",
        "mypy --strict",
        "node --test",
        "pytest with gradio 3.41.2",
        "pytest with gradio 4.40.0",
    ]
    assert list(steps[-1].command) == [tasks.python_of("g4"), "-m", "pytest"]


def test_quick_leaves_out_the_old_generation_the_browser_and_the_slow(steps: list[tasks.Step]) -> None:
    assert tasks.main(["test", "--quick"]) == 0
    assert "pytest with gradio 3.41.2" not in [step.label for step in steps]
    assert list(steps[-1].command)[-6:] == ["-m", "not browser and not slow", "-n", "auto", "--maxprocesses", "4"]


def test_further_arguments_go_to_pytest_as_they_are(steps: list[tasks.Step]) -> None:
    assert tasks.main(["test", "tests/unit", "-k", "budget and not slow", "-x"]) == 0
    assert [list(step.command)[3:] for step in steps] == [["tests/unit", "-k", "budget and not slow", "-x"]]


def test_no_javascript_test_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    assert tasks.javascript_step().missing
    (tmp_path / "tests/js").mkdir(parents=True)
    (tmp_path / "tests/js/a.test.mjs").touch()
    assert str(tasks.javascript_step().command[-1]).endswith("a.test.mjs")


def test_host_tests_say_what_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("WEBUI_DIR", raising=False)
    assert tasks.main(["test-host"]) == 1
    assert "WEBUI_DIR is not set" in capsys.readouterr().out
    monkeypatch.setenv("WEBUI_DIR", str(tmp_path))
    assert tasks.main(["test-host"]) == 1
    assert "no launch.py" in capsys.readouterr().out


def test_an_unknown_benchmark_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks.main(["bench", "nonsense"]) == 2
    assert "no benchmark 'nonsense'" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["setup", "g5"], ["lint", "--quick"]])
def test_wrong_usage_is_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tasks.main(arguments)
    assert stop.value.code == 2


# ---------------------------------------------------------------------------------------------------------------- programs


def test_the_named_browser_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAM_PILOT_BROWSER", "named")
    assert tasks.find_browser() == "named"


def test_a_browser_is_found_by_name_and_its_absence_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VRAM_PILOT_BROWSER", raising=False)
    monkeypatch.setattr(tasks, "BROWSER_PATHS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tasks.find_browser() is None
    program = tmp_path / ("google-chrome.exe" if tasks.WINDOWS else "google-chrome")
    program.touch(mode=0o755)
    assert tasks.find_browser() == str(program)


@pytest.mark.parametrize(("asked", "in_ci", "as_root", "installs"), [(1, 0, 1, 1), (0, 1, 1, 1), (0, 0, 1, 0), (1, 1, 0, 0)])
def test_the_system_is_changed_only_when_asked_and_as_root(
    asked: int, in_ci: int, as_root: int, installs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(tasks, "find_browser", lambda: None)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if as_root else 1000, raising=False)
    monkeypatch.setattr(
        tasks.subprocess, "run", lambda command, **_: calls.append(command) or subprocess.CompletedProcess([], 0)
    )
    monkeypatch.setenv("CI", "true" if in_ci else "")
    tasks.install_system_packages(bool(asked))
    assert [command[2] for command in calls] == (["update", "install"] if installs else [])
    assert not installs or calls[-1][-1] == "chromium"


# ----------------------------------------------------------------------------------------------------- what is committed


def test_it_needs_the_standard_library_only_and_runs_on_python_3_10() -> None:
    tree = ast.parse((ROOT / "tasks.py").read_text(encoding="utf-8"), feature_version=(3, 10))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements_in(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("-")]


def pins(generation: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in requirements_in(tasks.CONSTRAINTS / f"{generation}.txt"):
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)==([^\s;]+)( ; .+)?", line)
        assert match, f"{line} is no pin"
        found.setdefault(canonical(match[1]), []).append(match[2])
    return found


@pytest.mark.parametrize("generation", tasks.GENERATIONS)
def test_everything_that_is_asked_for_is_pinned(generation: str) -> None:
    asked = [path for path in tasks.inputs_of(generation) if path.suffix == ".in" or path.name == "requirements.txt"]
    names = [canonical(re.split(r"[<>=!~\s]", line)[0]) for path in asked for line in requirements_in(path)]
    assert names and set(names) <= set(pins(generation))


def test_this_environment_is_what_its_pins_say() -> None:
    generation = "g3" if importlib.metadata.version("gradio").startswith("3.") else "g4"
    expected = pins(generation)
    for line in [*requirements_in(tasks.CONSTRAINTS / "no-deps.txt"), *requirements_in(tasks.CONSTRAINTS / "pip.txt")]:
        name, _, version = line.partition("==")
        expected[canonical(name)] = [version]
    for package in importlib.metadata.distributions():
        name = canonical(package.metadata["Name"])
        if name not in ("torch", "triton") and not name.startswith(("nvidia-", "cuda-")):
            assert package.version in expected.get(name, ()), f"{name} {package.version} is not pinned in {generation}.txt"


def test_ci_runs_the_readmes_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in script
    assert script.splitlines()[-1] == "exec python3 tasks.py test"
