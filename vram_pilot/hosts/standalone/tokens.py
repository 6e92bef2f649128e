"""Prompt to token numbers. The vocabulary is CLIP's own where the package that carries it is installed."""

from __future__ import annotations

import gzip
import importlib.util
import json
import logging
import re
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from vram_pilot.errors import HostError
from vram_pilot.hosts.standalone.architectures import CONTEXT, END_TOKEN, START_TOKEN

log = logging.getLogger(__name__)

#: Merges that CLIP uses out of the file's list: the vocabulary less the byte marks and the two special ones.
_MERGES = 49152 - 256 - 2


class Tokenizer(Protocol):
    def tokens(self, text: str) -> list[int]:
        """The text's token numbers, without the two marks, of any length."""


def encode(tokenizer: Tokenizer, text: str, pad_token: int) -> list[int]:
    """CONTEXT token numbers: start mark, text, end mark, padding. What does not fit is left out, with a line in the log."""
    room = CONTEXT - 2
    tokens = tokenizer.tokens(text)
    if len(tokens) > room:
        log.warning("The prompt has %d tokens; the last %d are left out", len(tokens), len(tokens) - room)
    found = [START_TOKEN, *tokens[:room], END_TOKEN]
    return found + [pad_token] * (CONTEXT - len(found))


class HashTokenizer:
    """Stands in for the vocabulary with random weights: each word gets a number of its own, always the same."""

    def tokens(self, text: str) -> list[int]:
        return [zlib.crc32(word.encode()) % START_TOKEN for word in re.findall(r"\w+|[^\w\s]", text.lower())]


class ClipTokenizer:
    """CLIP's byte-pair encoding by transformers' own class."""

    def __init__(self, merges: list[str]) -> None:
        self._clip = _clip_tokenizer(merges)

    def tokens(self, text: str) -> list[int]:
        return list(self._clip(text, add_special_tokens=False)["input_ids"])


def any_tokenizer() -> Tokenizer:
    """CLIP's tokenizer, or a stand-in where its vocabulary is not installed."""
    path = vocabulary_file()
    return HashTokenizer() if path is None else _cached(path)


def clip_tokenizer() -> Tokenizer:
    """CLIP's tokenizer. Raises HostError that says what to install."""
    path = vocabulary_file()
    if path is None:
        raise HostError(
            "A real checkpoint needs the CLIP vocabulary, which is not installed",
            do="Run: python -m pip install --no-deps open_clip_torch",
        )
    return _cached(path)


def vocabulary_file() -> Path | None:
    """open_clip's copy of the vocabulary, found without importing that package (its imports need more than we use)."""
    spec = importlib.util.find_spec("open_clip")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "bpe_simple_vocab_16e6.txt.gz"
        if path.is_file():
            return path
    return None


@lru_cache(maxsize=1)
def _cached(path: Path) -> ClipTokenizer:
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    return ClipTokenizer(lines[1 : _MERGES + 1])


def _clip_tokenizer(merges: list[str]) -> Any:
    """transformers takes files only, which it has read when its constructor returns."""
    from transformers import CLIPTokenizer

    with tempfile.TemporaryDirectory(prefix="vram-pilot-") as folder:
        vocab_file, merges_file = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        vocab_file.write_text(json.dumps(vocabulary(merges)), encoding="utf-8")
        merges_file.write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
        return CLIPTokenizer(str(vocab_file), str(merges_file))


def vocabulary(merges: list[str]) -> dict[str, int]:
    """Token to number: the byte marks, the same at a word's end, each merge in its order, the two special marks."""
    marks = _byte_marks()
    tokens = [*marks, *(mark + "</w>" for mark in marks), *("".join(merge.split()) for merge in merges)]
    return {token: number for number, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}


def _byte_marks() -> list[str]:
    """A printable character for each byte, printable bytes first: the order that CLIP's numbers follow."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = len(set(range(256)) - set(printable))
    return [chr(number) for number in printable] + [chr(256 + index) for index in range(others)]
