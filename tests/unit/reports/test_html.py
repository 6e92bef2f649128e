"""The page: whole, escaped, and free of anything that could be loaded."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.jobs import Bench, plain_session, rich_session
from tests.fakes.readings import with_readings
from vram_pilot.hosts.base import StepInfo
from vram_pilot.reports import interactive, words
from vram_pilot.reports.html import render

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Counts what opens and closes, and keeps every tag, attribute and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def page(session: dict[str, Any]) -> Page:
    made = Page(render(session))
    assert made.open == []
    return made


@pytest.fixture(autouse=True)
def as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page as it is without plotly; what plotly adds to it is tested by itself."""
    monkeypatch.setattr(interactive, "is_installed", lambda: False)


@pytest.mark.parametrize(
    "session", [plain_session(), rich_session(), with_readings(rich_session())], ids=["plain", "rich", "with readings"]
)
def test_nothing_is_loaded(session: dict[str, Any]) -> None:
    text = render(session)
    for tag, attributes in page(session).tags:
        assert tag not in {"script", "iframe", "object", "embed", "img", "form", "base", "audio", "video", "use", "image"}
        assert not any(name.startswith("on") or name in {"src", "action", "xlink:href", "style"} for name in attributes)
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://|url\(|@import", text)


def test_the_policy_allows_this_style_and_nothing_else() -> None:
    made = page(plain_session())
    (policy,) = [tag["content"] or "" for name, tag in made.tags if tag.get("http-equiv") == "Content-Security-Policy"]
    style = render(plain_session()).partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_it_says_what_happened_in_words() -> None:
    text = page(rich_session()).text
    assert "2 images and 56 steps in lowvram, budget 0 MiB took" in text
    assert "The mode changed 3 times." in text
    assert "step 5 of hires, batch 2" in text
    assert "NVIDIA GeForce RTX 3060" in text


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("ok", "finished"),
        ("interrupted", "It was interrupted before its last image."),
        ("oom", "It ended for lack of device memory. CUDA out of memory"),
        ("error", "It ended with an error. CUDA out of memory"),
        ("aborted", "The program ended while it ran"),
        ("running", "It is still running."),
    ],
)
def test_every_ending(status: str, said: str) -> None:
    session = {**plain_session(), "status": status, "error": "CUDA out of memory" if status in ("oom", "error") else None}
    assert said in page(session).text


def test_the_header_of_an_aborted_session() -> None:
    """Nothing was measured: the page says so and shows no empty chart."""
    bench = Bench()
    bench.start()
    made = page({**bench.started[0], "status": "aborted"})
    assert "No step was recorded." in made.text
    assert not [tag for tag, attributes in made.tags if tag == "svg" and "chart" in (attributes.get("class") or "")]


def test_without_an_allocator_it_says_so() -> None:
    bench = Bench(memory=lambda: None)
    bench.start()
    bench.steps([0.1, 0.1])
    assert "Not recorded: the work did not run on a device" in page(bench.finish()).text


def test_steps_that_could_not_be_timed() -> None:
    bench = Bench()
    bench.start()
    bench.device.broken = True
    bench.recorder.step_started(StepInfo(0, 1))
    assert "The steps could not be timed." in page(bench.finish()).text


def test_a_mode_that_did_not_change_and_one_that_failed() -> None:
    assert "The mode did not change" in page(plain_session()).text
    session = rich_session()
    session["mode"]["history"][0]["failed"] = True
    text = page(session).text
    assert "(failed, undone)" in text
    assert "The mode changed 2 times." in text


def long_session(readings: int) -> dict[str, Any]:
    bench = Bench()
    bench.start(steps=10_000)
    bench.steps([0.01 + 0.001 * (index % 7) for index in range(10_000)])
    return with_readings(bench.finish(), readings)


def test_a_long_job_stays_a_small_page() -> None:
    assert len(render(long_session(4000))) < 400_000


def test_the_words_tell_of_the_card() -> None:
    text = page(with_readings(rich_session())).text
    assert "All programs together used at most 5.39 GiB of the card’s 12.0 GiB, up to 1.37 GiB by other programs." in text
    assert "The card was busy 91 % of the time, drew up to 165 W and reached 72 °C." in text
    assert "The card" not in page(rich_session()).text


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=40))
def test_any_text_is_only_text(text: str) -> None:
    text = f"{text}<script>alert(1)</script>\"'&"
    session = copy.deepcopy(rich_session())
    session["model"] = {"family": text, "name": text, "hash": text}
    session["host"], session["software"] = {"name": text, "version": text}, {text: text}
    session["error"], session["status"] = text, "error"
    session["request"]["sampler"] = session["settings"]["dtype"] = session["started_at"] = session["id"] = text
    session["gpus"][0]["name"] = text
    session["notes"] = [{"t_s": 0.0, "text": text}]
    for change in session["mode"]["history"]:
        change.update({"from": text, "to": text, "reason": text})
    session["mode"]["effective"]["mode"] = text
    session["steps"][0]["pass"] = text
    made = page(session)
    assert not [tag for tag, _ in made.tags if tag == "script"]


def test_the_page_is_the_same_each_time() -> None:
    session = rich_session()
    before = copy.deepcopy(session)
    assert render(session) == render(session)
    assert session == before


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0312, "0.0312"), (0.5, "0.500"), (2.468, "2.47"), (24.91, "24.9"), (1240.4, "1,240")]
)
def test_numbers(value: float, text: str) -> None:
    assert words.number(value) == text


def test_a_title_of_what_is_known() -> None:
    session = plain_session()
    assert words.title(session) == "dream.safetensors · 512 × 512 · full"
    session["model"], session["mode"]["effective"] = None, None
    session["request"]["width"] = None
    assert words.title(session) == "A generation"
