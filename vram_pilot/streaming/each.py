"""Work that is to be done for everything, also where some of it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def for_each(items: Iterable[_Item], work: Callable[[_Item], _Answer]) -> list[_Answer]:
    """Does `work` for every item, also behind one that failed; then the first failure is raised."""
    failure: Exception | None = None
    answers = []
    for item in items:
        try:
            answers.append(work(item))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers
