"""The instruments of a whole program: a job's readings in its session, and who keeps the pump running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.host import FakeHost
from tests.fakes.models import Family
from tests.fakes.nvml import FakeNvml, scenarios
from vram_pilot.app import App
from vram_pilot.hosts.base import Component
from vram_pilot.session.records import Note, Sample
from vram_pilot.session.timeline import Timeline
from vram_pilot.settings import READINGS_MS, RECORD
from vram_pilot.telemetry import card, cuda_device, nvml, samplers
from vram_pilot.telemetry.cards import Card, CudaDevice, Instance, Match
from vram_pilot.telemetry.identity import _uuid
from vram_pilot.telemetry.samplers import Telemetry, telemetry

PARTS = ("text_encoder", "denoiser", "vae")
#: A model that computes nothing: these tests are about what is read beside it.
EMPTY = Family("empty", lambda seed: (), lambda *_: torch.zeros(1), lambda _, latent, *__: latent, lambda _, latent: latent)
UUID = "GPU-11111111-2222-3333-4444-555555555555"
LONG_S = 30.0


def host() -> FakeHost:
    return FakeHost(tuple(Component(name, name, torch.nn.Linear(1, 1)) for name in PARTS), EMPTY)


def pump_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vram-pilot-telemetry"]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(host(), tmp_path, settings={READINGS_MS.key: 100})
    app.start()
    yield app
    app.stop()
    app.store.close()
    assert pump_threads() == []


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A machine with a card, as far as NVML and torch's own words go."""
    fake = scenarios.desktop()
    monkeypatch.setattr(nvml, "_load", fake.load)
    monkeypatch.setattr(card, "Nvml", lambda: nvml.Nvml(fake.load))
    monkeypatch.setattr(cuda_device.DeviceFacts, "__call__", lambda self: CudaDevice(0, UUID))
    return fake


def wait_for_sample(timeline: Timeline, cursor: int = 0) -> Sample:
    while True:
        part = timeline.after(cursor)
        found = [record for record in part.records if isinstance(record, Sample)]
        if found:
            return found[0]
        cursor = part.cursor
        assert timeline.wait(cursor, LONG_S), "no reading came"


def newest(app: App) -> dict[str, Any]:
    app.store.flush()
    return dict(app.store.get(app.store.list(limit=1, offset=0)[0]["id"]))


def test_a_jobs_readings_are_in_its_session(app: App) -> None:
    assert isinstance(app.host, FakeHost)
    app.host.generate(steps=2, at_step=lambda index: wait_for_sample(app.timeline) and None)
    samples = newest(app)["samples"]
    assert len(samples["t_s"]) >= 1
    assert all(len(column) == len(samples["t_s"]) for column in samples.values())
    assert samples["process_rss_bytes"][0] > 0
    assert samples["allocated_bytes"][0] is None, "there is no card here, and that is no 0"
    assert all(0 <= t_s < LONG_S for t_s in samples["t_s"])


def test_an_idle_program_has_no_thread(app: App) -> None:
    assert app.telemetry is not None
    assert pump_threads() == []
    state = app.telemetry_state()
    assert state is not None
    assert not state["running"]


def test_a_watcher_wakes_the_instruments_and_stop_sends_them_to_sleep(app: App) -> None:
    with app.watching():
        wait_for_sample(app.timeline)
        assert len(pump_threads()) == 1
        app.stop()
        assert pump_threads() == []
        app.start()
        wait_for_sample(app.timeline, app.timeline.cursor)
        assert len(pump_threads()) == 1


def test_e19_three_reloads_leave_one_thread(app: App) -> None:
    with app.watching():
        for _ in range(3):
            app.stop()
            app.start()
            wait_for_sample(app.timeline, app.timeline.cursor)
            assert len(pump_threads()) == 1


def test_a_job_that_is_not_recorded_wakes_nothing(tmp_path: Path) -> None:
    app = App(host(), tmp_path, settings={RECORD.key: False})
    app.start()
    assert isinstance(app.host, FakeHost)
    app.host.generate(steps=1, at_step=lambda index: pump_threads() and pytest.fail("the instruments are read for nobody"))
    app.stop()


def test_before_the_first_start_there_is_nothing_to_watch(tmp_path: Path) -> None:
    app = App(host(), tmp_path, off=True)
    app.start()
    with app.watching():
        assert pump_threads() == []
    assert app.telemetry_state() is None


def test_the_users_period_is_the_fast_tiers(app: App) -> None:
    assert app.telemetry is not None
    periods = {sampler.name: sampler.period_s for sampler in app.telemetry.pump.samplers}
    assert periods == {"allocator": 0.1, "process": 2.0}
    app.configure({READINGS_MS.key: 200})
    assert app.telemetry.pump.samplers[0].period_s == 0.2


# -------------------------------------------------------------------------------------------------- which instruments


def names(found: Telemetry) -> list[str]:
    return [sampler.name for sampler in found.pump.samplers]


def test_e1_without_an_nvidia_card_the_rest_is_read_and_the_reason_is_said() -> None:
    found = telemetry(Timeline(), torch.device("cpu"))
    assert names(found) == ["allocator", "process"]
    assert found.match() is None
    assert found.state() == {
        "running": False,
        "card": False,
        "facts": {},
        "notes": ["This program computes on cpu: there is no NVIDIA card to read."],
    }


def test_e1_a_card_of_another_maker_has_torchs_figures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers.torch.version, "hip", "6.2")
    found = telemetry(Timeline(), torch.device("cuda"))
    assert names(found) == ["allocator", "process", "allocator-segments", "allocator-map"]
    assert "AMD" in found.state()["notes"][0]


def test_e1_a_card_without_its_driver_leaves_cpu_and_ram_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = scenarios.no_driver()
    monkeypatch.setattr(card, "Nvml", lambda: nvml.Nvml(fake.load))
    timeline = Timeline()
    found = telemetry(timeline, torch.device("cuda"))
    with found.pump.watching():
        values = wait_for_sample(timeline).values
    found.pump.stop()
    assert values["process_rss_bytes"] is not None
    assert values["gpu_used_bytes"] is None
    assert [note for note in found.state()["notes"] if "no NVIDIA driver answers" in note]


def test_a_card_is_read_and_told_about(on_a_card: FakeNvml) -> None:
    timeline = Timeline()
    found = telemetry(timeline, torch.device("cuda"))
    assert names(found) == ["allocator", "card", "card-slow", "process", "allocator-segments", "allocator-map"]
    assert on_a_card.total_calls == 0
    with found.pump.watching():
        values = wait_for_sample(timeline).values
    found.pump.stop()
    assert values["gpu_power_w"] == pytest.approx(288.25)
    assert values["gpu_outside_torch_bytes"] is None, "torch holds nothing that it could be told apart from"
    assert found.state()["facts"]["name"] == "Fake 4090"
    match = found.match()
    assert match is not None and match.card is not None
    assert (match.card.index, match.card.uuid) == (0, UUID)
    assert on_a_card.users == 0


def test_a_lost_card_leaves_a_note_for_the_session(on_a_card: FakeNvml) -> None:
    timeline = Timeline()
    found = telemetry(timeline, torch.device("cuda"), fast_s=0.001)
    with found.pump.watching():
        wait_for_sample(timeline)
        on_a_card.cards[0].lost = True
        cursor = timeline.cursor
        while not any(isinstance(record, Note) for record in timeline.after(0, 10_000).records):
            assert timeline.wait(cursor, LONG_S)
            cursor = timeline.cursor
    found.pump.stop()
    notes = [record.text for record in timeline.after(0, 100_000).records if isinstance(record, Note)]
    assert len(notes) == 1
    assert notes[0].startswith("The card can no longer be read: the card is lost.")


# ----------------------------------------------------------------------------------------------------------- identity


class Properties:
    def __init__(self, uuid: str | None) -> None:
        if uuid is not None:
            self.uuid = uuid


@pytest.mark.parametrize(
    ("torchs", "match", "uuid"),
    [
        ("1234", None, "GPU-1234"),
        (None, None, None),
        (None, Match(Card(3, "GPU-1234", None)), "GPU-1234"),
        ("1234", Match(None, reason="lost"), "GPU-1234"),
        ("1234", Match(Card(3, "GPU-1234", None), Instance("MIG-55", 0)), "MIG-55"),
    ],
)
def test_a_session_names_the_card_as_the_driver_does(torchs: str | None, match: Match | None, uuid: str | None) -> None:
    assert _uuid(Properties(torchs), match) == uuid
