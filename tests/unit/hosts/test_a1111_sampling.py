"""Rounds of the denoiser ("r") and reports of the sampler ("c"), in the order in which samplers make them, to steps."""

from __future__ import annotations

import pytest

from vram_pilot.hosts.a1111.sampling import StepCounter


def rounds_of_each_step(course: str, *, name: str = "Euler", second_order: bool = False) -> list[int]:
    counter = StepCounter(4, name=name, second_order=second_order)
    steps: list[int] = []
    for mark in course:
        if mark == "c":
            counter.report()
        elif counter.round():
            steps.append(1)
            assert counter.index == len(steps) - 1
        else:
            steps[-1] += 1
    return steps


@pytest.mark.parametrize(
    ("course", "more", "expected"),
    [
        ("rc rc rc rc", {}, [1, 1, 1, 1]),
        ("rcr rcr rcr rc", {"second_order": True}, [2, 2, 2, 1]),  # Heun, DPM2, DPM++ SDE: the report comes between
        ("rrc rrc rrc rc", {"second_order": True}, [2, 2, 2, 1]),
        ("rrc rc rc rc", {"name": "PLMS"}, [2, 1, 1, 1]),
        ("r rc rc rc c", {"name": "UniPC"}, [1, 1, 1, 1]),
        ("rcrr rcrr", {"name": "DPM fast"}, [1, 3, 2]),  # reports after the first of three rounds
        ("r", {}, [1]),
        ("", {}, []),
        ("cc rc", {}, [1]),
    ],
)
def test_steps(course: str, more: dict[str, object], expected: list[int]) -> None:
    assert rounds_of_each_step(course.replace(" ", ""), **more) == expected  # type: ignore[arg-type]
