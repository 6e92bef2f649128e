"""Shows on a terminal, or as plain lines, where a job is. Standard library only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

Progress = Callable[[], Mapping[str, Any] | None]


class ProgressLine:
    """While in its block, a thread of its own reads `progress` and writes to `stream`: one line that is written over on a
    terminal, else a line for each phase."""

    def __init__(self, progress: Progress, stream: TextIO, period_s: float = 0.2) -> None:
        self._progress = progress
        self._stream = stream
        self._period_s = period_s
        self._terminal = stream.isatty()
        self._last = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vram-pilot-progress", daemon=True)

    def __enter__(self) -> ProgressLine:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if self._terminal and self._last:
            self._write("\r" + " " * len(self._last) + "\r")

    def _run(self) -> None:
        while not self._done.wait(self._period_s):
            self.show()

    def show(self) -> None:
        """Writes what is new since the last call."""
        found = self._progress()
        text = "" if found is None else describe(found, steps=self._terminal)
        if not text or text == self._last:
            return
        padding = " " * max(len(self._last) - len(text), 0)
        self._last = text
        self._write(f"\r{text}{padding}" if self._terminal else text + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # whoever read it has gone
            self._done.set()


def describe(progress: Mapping[str, Any], *, steps: bool) -> str:
    """ "denoise, step 3 of 20, image 2, hires pass": of a recorder's progress."""
    parts = [str(progress["phase"])]
    if steps and progress["step"] is not None:
        parts.append(f"step {progress['step'] + 1} of {progress['steps']}")
    if progress["image"]:
        parts.append(f"batch {progress['image'] + 1}")
    if progress["pass"] == "hires":
        parts.append("hires pass")
    return ", ".join(parts)
