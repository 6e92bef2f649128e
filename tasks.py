"""VRAM Pilot's tasks, on any machine with Python 3.10 to 3.12 and nothing else:

    python3 tasks.py demo         the standalone page with the panel, in your browser
    python3 tasks.py test         everything that must pass before a commit; --quick for the part under a minute
    python3 tasks.py lint         ruff and mypy only; --fix lets ruff mend what it can
    python3 tasks.py bench NAME   a script of benchmarks/
    python3 tasks.py test-gpu     the tests that need a CUDA device
    python3 tasks.py test-host    the tests that need a real WebUI, named by WEBUI_DIR
    python3 tasks.py setup        only the set-up that the others do by themselves

Standard library only. Each environment lies in .venv/; a broken-off set-up goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints"
WINDOWS = os.name == "nt"
#: The generations of hosts, by their gradio; the last is the default environment.
GENERATIONS = {"g3": "gradio 3.41.2", "g4": "gradio 4.40.0"}
DEFAULT = "g4"
#: What of the tests runs on the older generation as well: all that meets gradio. (The contracts meet torch, which is the same.)
G3_TESTS = ("tests/unit/panel", "tests/unit/commands/test_serve.py", "tests/browser")
QUICK = ("-m", "not browser and not slow", "-n", "auto", "--maxprocesses", "4")
#: Nothing that is started here may ask a server for anything.
QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
BROWSER_PATHS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
NO_BROWSER = (
    "No Chromium or Chrome was found, so the browser tests fail. Install one (Debian: apt-get install chromium), "
    "or give its path in VRAM_PILOT_BROWSER."
)
NO_NODE = "No Node.js was found, so the JavaScript tests fail. Install version 20 or later (Debian: apt-get install nodejs)."


class TaskError(Exception):
    """Ends a task with a sentence for the user. status: the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def say(text: str) -> None:
    print(f"[vram-pilot] {text}", flush=True)


# ---------------------------------------------------------------------------------------------------------------- set-up


def python_of(generation: str) -> Path:
    return VENV / generation / ("Scripts/python.exe" if WINDOWS else "bin/python")


def setup(generations: Sequence[str] = tuple(GENERATIONS)) -> None:
    """Makes the environments that are not complete yet. Raises TaskError with pip's status when one cannot be made."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        raise TaskError(
            f"Python 3.10, 3.11 or 3.12 is needed, this is {sys.version.split()[0]}. "
            "Run the same command with one of those, for example: python3.11 tasks.py demo"
        )
    card = has_nvidia_card()
    for generation in generations:
        complete = VENV / generation / ".complete"
        stamp = stamp_of(generation, card)
        if python_of(generation).exists() and complete.is_file() and complete.read_text(encoding="utf-8") == stamp:
            continue
        start = time.monotonic()
        say(
            f"Setting up .venv/{generation} ({GENERATIONS[generation]}). Once only, some minutes and 1 GB or more of downloads."
        )
        complete.unlink(missing_ok=True)
        install(generation, card)
        complete.write_text(stamp, encoding="utf-8")
        say(f".venv/{generation} is ready after {time.monotonic() - start:.0f} s.")
    write_launcher()


def has_nvidia_card() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        answer = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and "GPU" in answer.stdout


def stamp_of(generation: str, card: bool) -> str:
    """One line that changes with anything that the environment was made from."""
    digest = hashlib.sha256()
    for path in inputs_of(generation):
        digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return f"{digest.hexdigest()} python {sys.version.split()[0]}{' nvidia' if card else ''}\n"


def inputs_of(generation: str) -> list[Path]:
    names = ("pip.txt", "common.in", f"{generation}.in", f"{generation}.txt", "torch.txt", "no-deps.txt")
    return [ROOT / "requirements.txt", *(CONSTRAINTS / name for name in names)]


def install(generation: str, card: bool) -> None:
    """Brings one environment to its constraint file, whatever state it is in. With an NVIDIA card torch is the newest,
    whose builds are for CUDA; else the pinned one, or, where that is not to be had, any that is supported."""
    make_venv(generation)
    forget_half_installed(VENV / generation)
    pip(generation, "-r", "constraints/pip.txt")
    wanted = ["-r", f"constraints/{generation}.in", "-c", f"constraints/{generation}.txt", "torch>=2.1.2"]
    try:
        pip(generation, *wanted, *(() if card else ("-c", "constraints/torch.txt")))
    except TaskError:
        if card:
            raise
        say("Trying again with any torch from 2.1.2.")
        pip(generation, *wanted)
    pip(generation, "--no-deps", "-r", "constraints/no-deps.txt")


def make_venv(generation: str) -> None:
    """Makes the bare environment, unless one of this Python with a working pip is there."""
    python = python_of(generation)
    probe = "import sys, pip; sys.exit(sys.version.split()[0] != sys.argv[1])"
    if (
        python.exists()
        and subprocess.run([python, "-c", probe, sys.version.split()[0]], stderr=subprocess.DEVNULL).returncode == 0
    ):
        return
    shutil.rmtree(VENV / generation, ignore_errors=True)
    base = getattr(sys, "_base_executable", None) or sys.executable
    if subprocess.run([base, "-m", "venv", str(VENV / generation)]).returncode != 0:
        raise TaskError(
            f"Python could not make the environment .venv/{generation}. Its message is above; "
            "on Debian and Ubuntu the package python3-venv may be missing."
        )


def forget_half_installed(environment: Path) -> None:
    """Removes what an interrupted pip left: it writes a package's RECORD last, yet takes one without it for installed."""
    for site in environment.glob("Lib/site-packages" if WINDOWS else "lib/python*/site-packages"):
        half = [info for info in site.glob("*.dist-info") if not (info / "RECORD").is_file()]
        for folder in [*half, *site.glob("~*")]:
            shutil.rmtree(folder, ignore_errors=True)


def pip(generation: str, *arguments: str) -> None:
    command = [str(python_of(generation)), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    say(f"pip install {' '.join(arguments)}")
    if subprocess.run(command if sys.stdout.isatty() else [*command, "--quiet"], cwd=ROOT).returncode != 0:
        raise TaskError(
            f"Setting up .venv/{generation} failed in: pip install {' '.join(arguments)}. "
            "pip's own message is above. Run the same command again: it goes on where it stopped."
        )


def write_launcher() -> None:
    """`.venv/bin/python` (Windows: `.venv\\Scripts\\python.cmd`) runs the default environment's Python."""
    if WINDOWS:
        path, text = VENV / "Scripts" / "python.cmd", f'@"%~dp0..\\{DEFAULT}\\Scripts\\python.exe" %*\r\n'
    else:
        path, text = VENV / "bin" / "python", f'#!/bin/sh\nexec "$(dirname "$0")/../{DEFAULT}/bin/python" "$@"\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_bytes() != text.encode():
        path.write_bytes(text.encode())
        path.chmod(0o755)


# ------------------------------------------------------------------------------------------------------ programs outside


def find_browser() -> str | None:
    """The path of a Chromium or Chrome, None when there is none."""
    named = os.environ.get("VRAM_PILOT_BROWSER")
    if named:
        return named
    found = (shutil.which(name) for name in BROWSER_NAMES)
    return next((path for path in found if path), None) or next((path for path in BROWSER_PATHS if Path(path).is_file()), None)


def install_system_packages(asked: bool) -> None:
    """With apt-get, as root, and when asked (--system) or in CI: installs the browser and Node.js if they are missing."""
    missing = [name for name, found in (("chromium", find_browser()), ("nodejs", shutil.which("node"))) if not found]
    if not missing or not (asked or os.environ.get("CI")):
        return
    if shutil.which("apt-get") is None or getattr(os, "geteuid", lambda: 1)() != 0:
        return
    say(f"Installing {' and '.join(missing)} with apt-get.")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "-q", "update"], ["apt-get", "-q", "install", "-y", *missing]):
        if subprocess.run(command, env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0:
            say(f"{' '.join(command)} failed; its message is above.")


def child_environment() -> dict[str, str]:
    """For everything that is started here: quiet, unless the user has said otherwise."""
    return {**QUIET, **os.environ}


def test_environment() -> dict[str, str]:
    """Half the cores: the models of the tests are so small that threads only get into each other's way."""
    return {"OMP_NUM_THREADS": str(max(1, min(4, (os.cpu_count() or 2) // 2))), **child_environment()}


# ----------------------------------------------------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class Step:
    """One command of a task. missing: the sentence that says why it cannot run at all, None when it can."""

    label: str
    command: Sequence[str | Path]
    missing: str | None = None


def run_steps(steps: Sequence[Step]) -> int:
    """Runs all steps, prints one summary. 0 when every one passed, else 1."""
    results: list[tuple[Step, bool, float]] = []
    for step in steps:
        start = time.monotonic()
        say(f"{step.label} …")
        if step.missing:
            say(step.missing)
            passed = False
        else:
            passed = subprocess.run([str(part) for part in step.command], cwd=ROOT, env=test_environment()).returncode == 0
        results.append((step, passed, time.monotonic() - start))
    say("Summary")
    for step, passed, duration_s in results:
        print(f"  {'passed' if passed else 'FAILED'}  {step.label:<34} {duration_s:7.1f} s", flush=True)
    failed = sum(not passed for _, passed, _ in results)
    say("Everything passed." if not failed else f"{failed} of {len(results)} failed.")
    return min(failed, 1)


def lint_steps(fix: bool = False) -> list[Step]:
    python = python_of(DEFAULT)
    mend = [
        Step("ruff check --fix", [python, "-m", "ruff", "check", "--fix", "."]),
        Step("ruff format", [python, "-m", "ruff", "format", "."]),
    ]
    check = [
        Step("ruff check", [python, "-m", "ruff", "check", "."]),
        Step("ruff format --check", [python, "-m", "ruff", "format", "--check", "."]),
    ]
    return [*(mend if fix else check), Step("mypy --strict", [python, "-m", "mypy"])]


def javascript_step() -> Step:
    node = shutil.which("node")
    files = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/js/**/*.test.*js"))
    missing = None if files else "No JavaScript test was found in tests/js."
    return Step("node --test", [node or "node", "--test", *files], missing if node else NO_NODE)


def pytest_step(generation: str, *arguments: str) -> Step:
    return Step(f"pytest with {GENERATIONS[generation]}", [python_of(generation), "-m", "pytest", *arguments])


def task_setup(options: argparse.Namespace, extra: list[str]) -> int:
    setup(options.generation or tuple(GENERATIONS))
    say("Ready: " + ", ".join(f".venv/{generation}" for generation in options.generation or GENERATIONS))
    return 0


def task_demo(options: argparse.Namespace, extra: list[str]) -> int:
    setup((DEFAULT,))
    say("Starting the standalone host. Stop it with Ctrl+C.")
    return subprocess.run(
        [python_of(DEFAULT), "-m", "vram_pilot", "serve", *extra], cwd=ROOT, env=child_environment()
    ).returncode


def task_test(options: argparse.Namespace, extra: list[str]) -> int:
    setup((DEFAULT,) if options.quick or extra else tuple(GENERATIONS))
    if extra:
        return run_steps([pytest_step(DEFAULT, *(QUICK if options.quick else ()), *extra)])
    if options.quick:
        return run_steps([*lint_steps(), javascript_step(), pytest_step(DEFAULT, *QUICK)])
    install_system_packages(options.system)
    if find_browser() is None:
        say(NO_BROWSER)
    return run_steps([*lint_steps(), javascript_step(), pytest_step("g3", *G3_TESTS), pytest_step(DEFAULT)])


def task_lint(options: argparse.Namespace, extra: list[str]) -> int:
    setup((DEFAULT,))
    return run_steps(lint_steps(options.fix))


def task_bench(options: argparse.Namespace, extra: list[str]) -> int:
    scripts = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
    if options.name not in scripts:
        raise TaskError(f"There is no benchmark '{options.name}'. Use one of: {', '.join(scripts) or '(none yet)'}.", status=2)
    setup((DEFAULT,))
    return subprocess.run([python_of(DEFAULT), scripts[options.name], *extra], cwd=ROOT, env=child_environment()).returncode


def task_test_gpu(options: argparse.Namespace, extra: list[str]) -> int:
    setup((DEFAULT,))
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([python_of(DEFAULT), "-c", probe]).returncode != 0:
        raise TaskError(
            "These tests need a CUDA device, and torch in .venv/g4 finds none. Run them on a machine with an NVIDIA card."
        )
    return run_steps([pytest_step(DEFAULT, "tests/gpu", *extra)])


def task_test_host(options: argparse.Namespace, extra: list[str]) -> int:
    folder = os.environ.get("WEBUI_DIR")
    if not folder or not (Path(folder) / "launch.py").is_file():
        found = f"WEBUI_DIR is {folder!r}, where no launch.py lies" if folder else "WEBUI_DIR is not set"
        raise TaskError(f"These tests need a real WebUI, and {found}. Set WEBUI_DIR to the folder of an installed WebUI.")
    setup((DEFAULT,))
    return run_steps([pytest_step(DEFAULT, "tests/host", *extra)])


#: Each task: what carries it out, what its help says, and whether it hands further arguments on.
TASKS: dict[str, tuple[Callable[[argparse.Namespace, list[str]], int], str, bool]] = {
    "demo": (task_demo, "the standalone page with the panel; further arguments go to 'vram_pilot serve'", True),
    "test": (task_test, "all tests; with further arguments only pytest, with those, in .venv/g4", True),
    "lint": (task_lint, "ruff and mypy", False),
    "bench": (task_bench, "one script of benchmarks/; further arguments go to it", True),
    "test-gpu": (task_test_gpu, "the tests that need a CUDA device", True),
    "test-host": (task_test_host, "the tests that need a real WebUI (WEBUI_DIR)", True),
    "setup": (task_setup, "only the set-up, of all environments or of the named ones", False),
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="tasks.py", allow_abbrev=False, description="VRAM Pilot's tasks; each does its own set-up."
    )
    commands = top.add_subparsers(dest="task", required=True, metavar="TASK")
    task = {
        name: commands.add_parser(name, help=text, description=text, allow_abbrev=False) for name, (_, text, _) in TASKS.items()
    }
    task["test"].add_argument("--quick", action="store_true", help="without gradio 3, the browser and the slow tests")
    task["test"].add_argument(
        "--system", action="store_true", help="install missing Chromium and Node.js with apt-get, as CI does"
    )
    task["lint"].add_argument("--fix", action="store_true", help="let ruff mend and format")
    task["bench"].add_argument("name", help="the script's name without .py")
    task["setup"].add_argument("generation", nargs="*", metavar="|".join(GENERATIONS), help="which environment")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser()
    options, extra = arguments.parse_known_args(argv)
    run, _, hands_on = TASKS[options.task]
    if extra and not hands_on:
        arguments.error(f"unrecognized arguments: {' '.join(extra)}")
    unknown = [name for name in getattr(options, "generation", []) if name not in GENERATIONS]
    if unknown:
        arguments.error(f"unknown environment {unknown[0]!r}, use: {', '.join(GENERATIONS)}")
    try:
        return run(options, extra)
    except TaskError as error:
        say(str(error))
        return error.status
    except KeyboardInterrupt:
        say("Stopped. Run the same command again to go on.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
