"""The extension in the WebUI: what is registered, what settings and flags mean, and what a Reload UI leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.a1111 import installed
from vram_pilot.settings import ModeRequest


@pytest.fixture
def webui(tmp_path: Path) -> Iterator[Any]:
    with installed(vram_pilot_data_dir=str(tmp_path / "state")) as found:
        yield found
        found.entry_of().app().stop()


@pytest.fixture
def entry(webui: Any) -> Any:
    from vram_pilot.hosts.a1111 import entry

    webui.entry_of = lambda: entry
    return entry


def load(webui: Any, entry: Any) -> None:
    """As the WebUI does it at a start and at every Reload UI."""
    webui.script_callbacks.clear_callbacks()
    entry.load()
    for callback in webui.script_callbacks.registered.get("before_ui", []):
        callback()


def unload(webui: Any) -> None:
    for callback in webui.script_callbacks.registered.get("script_unloaded", []):
        callback()


def count(webui: Any) -> dict[str, int]:
    return {event: len(callbacks) for event, callbacks in webui.script_callbacks.registered.items() if callbacks}


# ------------------------------------------------------------------------------------------------ starts


def test_what_is_registered(webui: Any, entry: Any) -> None:
    load(webui, entry)
    first = count(webui)
    assert first == {
        **{"app_started": 1, "before_ui": 1, "ui_settings": 1, "ui_tabs": 1, "script_unloaded": 1},
        **{"cfg_denoiser": 1, "model_loaded": 1},
    }
    for _number in range(3):
        unload(webui)
        load(webui, entry)
        assert count(webui) == first


def test_the_standing_mode_is_the_settings_at_the_start_and_stays_at_a_reload(webui: Any, entry: Any) -> None:
    webui.shared.opts.data["vram_pilot_mode"] = "medvram"
    load(webui, entry)
    controller = entry.app().controller
    assert controller.standing() == ModeRequest("medvram")
    controller.request(ModeRequest("lowvram", 7), "standing")
    unload(webui)
    load(webui, entry)
    assert controller.standing() == ModeRequest("lowvram", 7) and entry.app().controller is controller


@pytest.mark.parametrize(
    ("settings", "flag", "expected"),
    [
        ({}, None, ModeRequest()),
        ({"mode": "lowvram", "budget_mib": "12"}, None, ModeRequest("lowvram", 12)),
        ({"mode": "lowvram", "budget_mib": ""}, None, ModeRequest("lowvram")),
        ({"mode": "full", "budget_mib": "12"}, None, ModeRequest("full")),
        ({"mode": "lowvram", "budget_mib": "much"}, None, ModeRequest("lowvram")),
        ({"mode": "warp"}, None, ModeRequest()),
        ({"mode": "tensorrt"}, None, ModeRequest()),
        ({"mode": "as-launched", "accelerate": "graph"}, None, ModeRequest()),
        ({"mode": "full"}, "medvram", ModeRequest("medvram")),
        ({"mode": "full"}, "warp", ModeRequest()),
    ],
)
def test_the_standing_mode_at_the_start(
    webui: Any, entry: Any, settings: dict[str, str], flag: str | None, expected: ModeRequest
) -> None:
    """What is wrong in there costs the mode, never the start."""
    webui.shared.opts.data.update({f"vram_pilot_{key}": value for key, value in settings.items()})
    webui.shared.cmd_opts.vram_pilot_mode = flag
    load(webui, entry)
    assert entry.app().controller.standing() == expected


# ------------------------------------------------------------------------------------------------ Reload UI in mid-job


def begin_a_job(webui: Any, entry: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job that does not end while the WebUI unloads its scripts."""
    load(webui, entry)
    app = entry.app()
    app.controller.request(ModeRequest("medvram"), "standing")
    entry.host().jobs.before_process(webui.processing.StableDiffusionProcessing(), None)
    monkeypatch.setattr(app.controller, "stop", lambda: False)
    unload(webui)
    monkeypatch.undo()
    return app


def test_a_job_that_outlasts_the_unloading_is_still_heard(webui: Any, entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = begin_a_job(webui, entry, monkeypatch)
    assert app.controller.standing() == ModeRequest("medvram") and app.controller.state()["in_job"]
    load(webui, entry)
    assert count(webui)["cfg_denoiser"] == 1
    entry.host().jobs.close_lost()
    assert not app.controller.state()["in_job"]
    assert webui.processing.process_images_inner.__wrapped__, "it goes on to listen"


def test_what_is_not_loaded_again_goes_back_at_that_job_s_end(webui: Any, entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = webui.processing.process_images_inner
    begin_a_job(webui, entry, monkeypatch)
    webui.script_callbacks.clear_callbacks()
    assert webui.processing.process_images_inner is not original
    entry.host().jobs.close_lost()
    assert webui.processing.process_images_inner is original and not count(webui)


# ------------------------------------------------------------------------------------------------ settings


def test_settings_are_there_once_and_hold_at_once(webui: Any, entry: Any) -> None:
    load(webui, entry)
    opts, app = webui.shared.opts, entry.app()
    keys = list(opts.data_labels)
    assert {"vram_pilot_mode", "vram_pilot_budget_mib", "vram_pilot_record_sessions"} <= set(keys)
    assert {info.section for info in opts.data_labels.values()} == {("vram_pilot", "VRAM Pilot")}
    opts.set("vram_pilot_record_sessions", False)
    opts.set("vram_pilot_write_infotext", False)
    opts.set("vram_pilot_pinned_share", 0.25)
    assert (app.record, app.write_infotext, app.controller.bank.memory.share) == (False, False, 0.25)
    opts.set("vram_pilot_mode", "lowvram")
    opts.set("vram_pilot_budget_mib", "9")
    assert app.controller.standing() == ModeRequest("lowvram", 9)
    opts.set("vram_pilot_budget_mib", "plenty")
    assert app.controller.standing() == ModeRequest("lowvram", 9) and "plenty" in app.controller.refusal()
    opts.set("vram_pilot_mode", "full")
    assert app.controller.standing() == ModeRequest("full"), "a budget left over from another mode is no fault"
    load(webui, entry)
    assert list(opts.data_labels) == keys


def test_a_setting_goes_before_the_flag_once_it_is_changed(webui: Any, entry: Any) -> None:
    webui.shared.cmd_opts.vram_pilot_mode = "medvram"
    load(webui, entry)
    assert entry.app().controller.standing() == ModeRequest("medvram")
    webui.shared.opts.set("vram_pilot_mode", "full")
    assert entry.app().controller.standing() == ModeRequest("full")


# ------------------------------------------------------------------------------------------------ flags


def test_switched_off(webui: Any, entry: Any, tmp_path: Path) -> None:
    """Only the routes are left, which say so."""
    webui.shared.cmd_opts.vram_pilot_off = True
    before = webui.processing.process_images_inner
    load(webui, entry)
    assert count(webui) == {"app_started": 1} and not webui.shared.opts.data_labels
    assert webui.processing.process_images_inner is before and not (tmp_path / "state").exists()
    from vram_pilot.hosts.a1111.script import VramPilotScript

    assert VramPilotScript().show(False) is False


def test_shown_always_otherwise(webui: Any, entry: Any) -> None:
    from vram_pilot.hosts.a1111.script import VramPilotScript

    assert VramPilotScript().show(False) is webui.scripts.AlwaysVisible


def test_where_the_state_lies(webui: Any, entry: Any, tmp_path: Path) -> None:
    assert entry.state_dir() == tmp_path / "state"
    webui.shared.cmd_opts.vram_pilot_data_dir = None
    webui.paths.data_path = str(tmp_path)
    assert entry.state_dir() == tmp_path / "vram-pilot"
    webui.shared.cmd_opts.vram_pilot_data_dir = "~/there"
    assert entry.state_dir() == Path.home() / "there"


@pytest.mark.parametrize("flag", ["share", "listen", "server_name", "ngrok"])
def test_an_open_server_is_not_controlled_by_everybody(webui: Any, entry: Any, flag: str) -> None:
    app = entry.app()
    assert app.remote_control_allowed()
    setattr(webui.shared.cmd_opts, flag, True)
    assert not app.remote_control_allowed()
    webui.shared.cmd_opts.vram_pilot_allow_remote_control = True
    assert app.remote_control_allowed()


@pytest.mark.parametrize(
    ("flag", "expected"),
    [(None, None), ("", None), ("a:b", {"a": "b"}), ("a:b:c,d:e", {"a": "b:c", "d": "e"}), ("nonsense", {})],
)
def test_the_api_s_credentials(entry: Any, flag: str | None, expected: Any) -> None:
    assert entry.api_credentials(flag) == expected


def test_the_version(webui: Any, entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry.host().version == "v1.10.1"
    monkeypatch.setattr(webui.launch_utils, "git_tag", lambda: 1 / 0)
    assert entry._version() == "unknown"
