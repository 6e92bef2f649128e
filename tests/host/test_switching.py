"""The mode is changed while a job runs, by POST: it holds from the next step on, and the picture is the one as launched."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.host.client import Client, Pictures
from tests.host.modes import AS_LAUNCHED

#: Every ordered pair of two modes once, as one way round.
ROUND = (
    *("as-launched", "full", "medvram", "lowvram", "as-launched", "medvram", "full", "lowvram", "medvram", "as-launched"),
    *("lowvram", "full", "as-launched"),
)
STEPS = len(ROUND)


class Running:
    """A request that runs in a thread of its own."""

    def __init__(self, make: Callable[[], Pictures]) -> None:
        self._made: list[Pictures] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(make,))
        self._thread.start()

    def _run(self, make: Callable[[], Pictures]) -> None:
        try:
            self._made.append(make())
        except BaseException as error:
            self._failed.append(error)

    def result(self) -> Pictures:
        self._thread.join(120)
        if self._failed:
            raise self._failed[0]
        return self._made[0]


@contextmanager
def held(client: Client, at: int, make: Callable[[], Pictures]) -> Iterator[Running]:
    """The job waits at its denoiser round `at` while the block begins; the block lets it go on."""
    client.post("/vram-pilot-probe/hold", {"at": at})
    running = Running(make)
    try:
        assert client.get("/vram-pilot-probe/held")["held"], "the job never came to that step"
        yield running
    finally:
        client.post("/vram-pilot-probe/release", {"next_at": None})
        running._thread.join(120)


def go_on_to(client: Client, at: int | None) -> None:
    client.post("/vram-pilot-probe/release", {"next_at": at})
    if at is not None:
        assert client.get("/vram-pilot-probe/held")["held"]


def test_every_ordered_pair_is_in_the_round() -> None:
    pairs = set(itertools.pairwise(ROUND))
    modes = set(ROUND)
    assert pairs == {(a, b) for a in modes for b in modes if a != b}


def test_every_ordered_pair_of_modes_in_one_job(plain: Client, record: Any) -> None:
    expected = plain.txt2img(AS_LAUNCHED, steps=STEPS)
    record("as-launched", expected)
    with held(plain, 0, lambda: plain.txt2img(steps=STEPS)) as running:
        for step, mode in enumerate(ROUND[1:], start=1):
            go_on_to(plain, step)
            answer = plain.mode(mode)
            assert answer["requested"]["mode"] == mode and answer["refusal"] is None
            assert (answer["applies"], answer["effective"]["mode"]) == ("next_step", ROUND[step - 1])
        go_on_to(plain, None)
        made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels
    session = plain.newest_session()
    changes = [(entry["step"], entry["from"], entry["to"]) for entry in session["mode"]["history"] if entry["step"] is not None]
    assert changes == [(step, ROUND[step - 1], ROUND[step]) for step in range(1, STEPS)]
    assert not any(entry["failed"] for entry in session["mode"]["history"])
    assert plain.state()["mode"]["effective"]["mode"] == "as-launched", "a change in mid-job lasts to the job's end"


def test_budgets_change_in_mid_job(plain: Client, record: Any) -> None:
    expected = plain.txt2img(AS_LAUNCHED, steps=6)
    with held(plain, 0, lambda: plain.txt2img("lowvram", steps=6)) as running:
        for step, budget in enumerate((1, 1000, 40, 0), start=1):
            go_on_to(plain, step)
            plain.mode("lowvram", budget_mib=budget)
            resident = plain.state()["mode"]["resident_bytes"]
            assert resident is not None
        go_on_to(plain, 5)
        assert plain.state()["mode"]["effective"] == {"mode": "lowvram", "budget_mib": 0, "accelerate": "off"}
        go_on_to(plain, None)
        made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels


def test_the_scope_job_ends_with_the_job_and_standing_outlives_it(plain: Client) -> None:
    plain.mode("medvram", "standing")
    with held(plain, 1, lambda: plain.txt2img()) as running:
        assert plain.mode("lowvram", "job")["applies"] == "next_step"
        assert plain.state()["mode"]["standing"]["mode"] == "medvram"
        go_on_to(plain, None)
        running.result()
    state = plain.state()["mode"]
    assert (state["standing"]["mode"], state["effective"]["mode"]) == ("medvram", "medvram")
    with held(plain, 1, lambda: plain.txt2img()) as running:
        assert plain.mode("full", "standing")["applies"] == "next_step"
        go_on_to(plain, None)
        running.result()
    state = plain.state()["mode"]
    assert (state["standing"]["mode"], state["effective"]["mode"]) == ("full", "full")
    assert "full" in plain.newest_session()["mode"]["history"][-1]["to"]


def test_a_mode_of_its_own_goes_before_the_standing_mode(plain: Client) -> None:
    plain.mode("medvram", "standing")
    made = plain.txt2img("lowvram")
    assert plain.newest_session()["mode"]["effective"]["mode"] == "lowvram"
    assert "VRAM mode: lowvram" in made.texts[0]
    assert plain.state()["mode"]["effective"]["mode"] == "medvram"
    made = plain.txt2img()
    assert plain.newest_session()["mode"]["effective"]["mode"] == "medvram"
    assert "VRAM mode: medvram" in made.texts[0]


def test_a_switch_in_the_second_pass_and_the_second_batch(plain: Client, record: Any) -> None:
    request = {"n_iter": 2, "enable_hr": True, "hr_scale": 1.5, "denoising_strength": 0.6, "hr_upscaler": "Lanczos"}
    expected = plain.txt2img(AS_LAUNCHED, **request)
    with held(plain, 5, lambda: plain.txt2img(**request)) as running:
        plain.mode("lowvram")
        go_on_to(plain, 9)
        plain.mode("medvram")
        go_on_to(plain, 13)
        plain.mode("full")
        go_on_to(plain, None)
        made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels
    history = [(entry["from"], entry["to"]) for entry in plain.newest_session()["mode"]["history"]]
    assert history[:3] == [("as-launched", "lowvram"), ("lowvram", "medvram"), ("medvram", "full")]
    assert "VRAM mode: as-launched > lowvram," in made.texts[0]


def test_a_switch_between_the_rounds_of_a_second_order_step(plain: Client, record: Any) -> None:
    """Asked for in the middle of a step, it holds from the next one on."""
    expected = plain.txt2img(AS_LAUNCHED, sampler_name="Heun")
    with held(plain, 3, lambda: plain.txt2img(sampler_name="Heun")) as running:
        plain.mode("lowvram")
        go_on_to(plain, None)
        made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels
    assert [entry["step"] for entry in plain.newest_session()["mode"]["history"] if entry["step"] is not None] == [2]


def test_requests_without_waiting_for_steps(plain: Client, record: Any) -> None:
    """As a user does it: whenever. Each is answered at once, and the picture is right."""
    expected = plain.txt2img(AS_LAUNCHED, steps=30)
    running = Running(lambda: plain.txt2img(steps=30))
    answers = []
    for mode in ("medvram", "lowvram", "full") * 5:
        answers.append(plain.mode(mode, "standing")["applies"])
    made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels
    assert set(answers) <= {"now", "next_step", "next_job"}
    assert plain.state()["mode"]["effective"]["mode"] == "full"
