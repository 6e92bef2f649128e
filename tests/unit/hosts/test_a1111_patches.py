"""Replaced functions come back, and do nothing where they cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vram_pilot.hosts.a1111.patches import Patches


class Base:
    def method(self, value: int) -> int:
        return value


class Child(Base):
    pass


def counting(calls: list[Any]) -> Any:
    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    return around


def test_a_function_is_wrapped_and_put_back() -> None:
    calls: list[Any] = []
    original = lambda value=1: value * 2  # noqa: E731
    owner = SimpleNamespace(function=original)
    patches = Patches()
    patches.wrap(owner, "function", counting(calls))
    assert owner.function(3) == 6 and owner.function(value=4) == 8
    assert len(calls) == 2 and len(patches) == 1
    patches.undo()
    assert owner.function is original and len(patches) == 0
    patches.undo()


def test_a_method_of_a_base_class_is_put_back_into_no_child() -> None:
    calls: list[Any] = []
    patches = Patches()
    patches.wrap(Child, "method", counting(calls))
    assert Child().method(3) == 3 and Base().method(3) == 3 and len(calls) == 1
    patches.undo()
    assert "method" not in vars(Child)
    assert Child().method(5) == 5 and len(calls) == 1


def test_the_same_name_twice_is_undone_in_reverse() -> None:
    owner = SimpleNamespace(function=lambda: "original")
    original = owner.function
    patches = Patches()
    patches.wrap(owner, "function", lambda call: "inner " + call())
    patches.wrap(owner, "function", lambda call: "outer " + call())
    assert owner.function() == "outer inner original"
    patches.undo()
    assert owner.function is original


def test_what_another_has_wrapped_stays_and_does_nothing() -> None:
    calls: list[Any] = []
    owner = SimpleNamespace(function=lambda: "original")
    patches = Patches()
    patches.wrap(owner, "function", counting(calls))
    ours = owner.function
    theirs = owner.function = lambda: "theirs " + ours()
    patches.undo()
    assert owner.function is theirs and owner.function() == "theirs original" and not calls
    patches.wrap(owner, "function", counting(calls))
    assert owner.function() == "theirs original" and len(calls) == 1, "the dead one below counts nothing"
    patches.undo()
    assert owner.function is theirs


def test_names_and_signature_are_those_of_the_original() -> None:
    import inspect

    def function(sd_model: Any = None, vae_file: Any = "none") -> None:
        """What it does."""

    owner = SimpleNamespace(function=function)
    Patches().wrap(owner, "function", counting([]))
    assert owner.function.__name__ == "function" and owner.function.__doc__ == "What it does."
    assert list(inspect.signature(owner.function).parameters) == ["sd_model", "vae_file"]
