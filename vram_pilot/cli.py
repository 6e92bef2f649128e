"""The command line. Exit 0: done; 1: the work failed, and the message says what to do; 2: wrong usage.

Results go to standard output, messages and logs to standard error. A command's module is imported only when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from vram_pilot import __version__
from vram_pilot.errors import VramPilotError


class Command(Protocol):
    """What a module of `vram_pilot.commands` has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def execute(self, args: argparse.Namespace) -> int:
        """Does the work. Answers the exit status; raises VramPilotError for what the user must know."""


@dataclass(frozen=True)
class Entry:
    """A command as the list of commands shows it; its module is `vram_pilot.commands.<name>`."""

    name: str
    help: str


COMMANDS = (
    Entry("run", "make one generation in the standalone host and report on it"),
    Entry("serve", "start the standalone host with its page and the panel"),
    Entry("sessions", "list, show, export and delete what was recorded"),
    Entry("measure", "measure how fast this machine copies between host and card"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Never raises for anything that the user did or lacks."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _run(arguments)
    except VramPilotError as error:
        return _fail(str(error), error.exit_status)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "vram_pilot"):
            raise
        return _fail(
            f"The package {package} is needed for this and is not installed. "
            "Install it, or run 'python3 tasks.py setup' and use .venv/bin/python.",
            1,
        )
    except KeyboardInterrupt:
        return _fail("Stopped.", 130)
    except BrokenPipeError:  # whoever read our output has gone; what is left of it must not be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    entry = next((entry for entry in COMMANDS if entry.name == chosen), None)
    command = None if entry is None else cast(Command, importlib.import_module(f"vram_pilot.commands.{entry.name}"))
    try:
        options = _parser(entry, command).parse_args(arguments)
    except SystemExit as stop:  # argparse has said what is wrong, or has shown its help
        return int(stop.code or 0)
    return 2 if command is None else command.execute(options)


def _parser(chosen: Entry | None, command: Command | None) -> argparse.ArgumentParser:
    """Knows every command's name, and the arguments of the chosen one only."""
    top = argparse.ArgumentParser(prog="vram_pilot", description="Memory modes that switch at run time.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"vram_pilot {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for entry in COMMANDS:
        parser = commands.add_parser(entry.name, help=entry.help, description=entry.help, allow_abbrev=False)
        if entry is chosen and command is not None:
            command.add_arguments(parser)
    return top


def _fail(message: str, status: int) -> int:
    print(f"vram_pilot: {message}", file=sys.stderr)
    return status
