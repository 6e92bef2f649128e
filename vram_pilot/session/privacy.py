"""Keeps folders, and with them user names, out of what is recorded. Pure."""

from __future__ import annotations

import re

_WORD = r"[^\s\\/'\"<>|:*?,;()\[\]{}]+"
#: A drive, UNC or absolute POSIX path with at least one folder; folders may hold single spaces. Not part of a URL or a word.
_PATH = re.compile(rf"(?<![\w:/\\.])(?:[A-Za-z]:[\\/]|\\\\|~?/)(?:{_WORD}(?: {_WORD})*[\\/])+(?P<name>(?:{_WORD})?)")
_LONGEST = 500


def redact(text: str) -> str:
    """`text` with every full path cut down to its last part, at most 500 characters."""
    short = _PATH.sub(lambda match: f"…/{match['name']}", text[: 4 * _LONGEST])
    return short if len(short) <= _LONGEST else short[: _LONGEST - 1] + "…"


def base_name(name: str) -> str:
    """A model's or program's name without its folders."""
    return re.split(r"[\\/]", name.rstrip("\\/"))[-1]
