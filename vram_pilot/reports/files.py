"""Files that are there whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from vram_pilot.errors import UsageError


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Writes `content` to `path` by way of a file beside it. A link is followed; a device or a pipe is written to directly.

    content: all of it, or its pieces, of which one at a time is held.

    Raises UsageError that says what is wrong with the path; an older file is then still there.
    """
    target = Path(os.path.realpath(path))
    pieces = (content,) if isinstance(content, bytes) else content
    try:
        if target.exists() and not target.is_file():
            _write_through(target, pieces)
        else:
            _write_beside(target, pieces)
    except OSError as error:
        raise _unusable(path, error) from error


def _write_through(target: Path, pieces: Iterable[bytes]) -> None:
    with open(target, "wb") as stream:
        stream.writelines(pieces)


def _write_beside(target: Path, pieces: Iterable[bytes]) -> None:
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _unusable(path: Path, error: OSError) -> UsageError:
    folder = Path(path).absolute().parent
    if Path(path).is_dir():
        return UsageError("The path of this file is a folder", found=str(path), do="Add a file name to it.")
    if not folder.exists():
        return UsageError("The folder of this file does not exist", found=str(folder), do="Create it, or name another one.")
    reason = error.strerror or type(error).__name__
    return UsageError(f"This file cannot be written: {reason}", found=str(path), do="Name another path, or make room there.")
