"""What a job asks for: a plot's axes, then its arguments; and what its parameters say afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.a1111 import installed
from vram_pilot.errors import VramPilotError
from vram_pilot.panel.fields import STANDING
from vram_pilot.panel.options import infotext_fields
from vram_pilot.settings import ModeRequest


@pytest.fixture
def webui(tmp_path: Path) -> Iterator[Any]:
    with installed(vram_pilot_data_dir=str(tmp_path)) as found:
        yield found


LOWVRAM = ModeRequest("lowvram", 64)


@pytest.mark.parametrize(
    ("arguments", "axis", "standing", "expected"),
    [
        ((), {}, LOWVRAM, None),
        ((STANDING, "", "off"), {}, LOWVRAM, None),
        (("medvram", "", "off"), {}, LOWVRAM, ModeRequest("medvram")),
        (("lowvram", "128", "off"), {}, ModeRequest(), ModeRequest("lowvram", 128)),
        (("full", "128", "off"), {}, ModeRequest(), ModeRequest("full")),  # a budget left over in a hidden field
        (({"mode": "lowvram", "budget_mib": 5},), {}, ModeRequest(), ModeRequest("lowvram", 5)),
        (({"budget_mib": 5},), {}, LOWVRAM, ModeRequest("lowvram", 5)),
        (({"budget_mib": 5},), {}, ModeRequest("full"), ModeRequest("lowvram", 5)),
        (({},), {}, LOWVRAM, LOWVRAM),
        ((STANDING, "", "off"), {"mode": "full"}, LOWVRAM, ModeRequest("full")),
        (("medvram", "", "off"), {"mode": "full"}, LOWVRAM, ModeRequest("full")),
        ((STANDING, "", "off"), {"budget_mib": "9"}, ModeRequest("full"), ModeRequest("lowvram", 9)),
        ((STANDING, "", "off"), {"budget_mib": "9"}, LOWVRAM, ModeRequest("lowvram", 9)),
        ((STANDING, "", "off"), {"mode": "full", "budget_mib": "9"}, LOWVRAM, ModeRequest("full")),
        ((STANDING, "", "off"), {"mode": "lowvram", "budget_mib": "9"}, ModeRequest(), ModeRequest("lowvram", 9)),
        (("lowvram", "128", "off"), {"mode": "as-launched"}, ModeRequest(), ModeRequest()),
        (("lowvram", "128", "graph"), {"mode": "as-launched"}, ModeRequest(), ModeRequest()),
        (({"mode": "lowvram", "budget_mib": 1},), {"mode": "medvram"}, ModeRequest(), ModeRequest("medvram")),
        (("LowVRAM", "128", "off"), {}, ModeRequest(), ModeRequest("lowvram", 128)),
        ((STANDING, "", "off"), {"mode": " Lowvram", "budget_mib": "9"}, ModeRequest(), ModeRequest("lowvram", 9)),
        (("lowvram", "128", "graph"), {"mode": "As-Launched"}, ModeRequest(), ModeRequest()),
    ],
)
def test_what_a_job_asks_for(
    webui: Any, arguments: Any, axis: Any, standing: ModeRequest, expected: ModeRequest | None
) -> None:
    from vram_pilot.hosts.a1111.script import AXIS_VALUES, job_request

    p = SimpleNamespace(**({AXIS_VALUES: axis} if axis else {}))
    assert job_request(p, arguments, standing) == expected


@pytest.mark.parametrize(
    "arguments", [("warp",), ({"mode": "warp"},), ({"colour": 1},), (5,), ("lowvram", "x"), ({"budget_mib": -1},)]
)
def test_what_makes_no_sense_is_refused(webui: Any, arguments: Any) -> None:
    from vram_pilot.hosts.a1111.script import job_request

    with pytest.raises(VramPilotError):
        job_request(SimpleNamespace(), arguments, ModeRequest())


def script_of(webui: Any) -> tuple[Any, Any]:
    from vram_pilot.hosts.a1111 import entry
    from vram_pilot.hosts.a1111.script import VramPilotScript

    entry.app().start()
    return VramPilotScript(), entry


def test_a_fault_in_the_arguments_still_tells_of_the_job(webui: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, entry = script_of(webui)
    import vram_pilot.hosts.a1111.script as module

    monkeypatch.setattr(module, "job_request", lambda *_: 1 / 0)
    script.before_process(webui.processing.StableDiffusionProcessing())
    state = entry.app().controller.state()
    assert state["in_job"] and "ZeroDivisionError" in state["refusal"]
    entry.app().stop()


def test_a_refusal_is_shown_with_the_picture(webui: Any) -> None:
    script, entry = script_of(webui)
    p = webui.processing.StableDiffusionProcessing()
    script.before_process(p, {"mode": "warp"})
    script.process(p)
    assert len(p.comments) == 1 and "warp" in str(p.comments) and "standing mode" in str(p.comments)
    entry.host().jobs.close_lost()
    p = webui.processing.StableDiffusionProcessing()
    script.before_process(p)
    script.process(p)
    assert not p.comments
    entry.app().stop()


def test_the_parameters_name_the_modes_that_were_in_force(webui: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot's cells share the mapping: what an earlier cell wrote does not stay."""
    script, entry = script_of(webui)
    p = webui.processing.StableDiffusionProcessing()
    app = entry.app()
    for modes, expected in (
        ([ModeRequest("full")], "full"),
        ([ModeRequest(), LOWVRAM], "as-launched > lowvram, budget 64 MiB"),
        ([ModeRequest()], None),
    ):
        monkeypatch.setattr(app.controller, "job_modes", lambda modes=modes: tuple(modes))
        script.postprocess_batch(p, batch_number=0)
        assert p.extra_generation_params.get("VRAM mode") == expected
    app.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("medvram", ("medvram", "", "off")),
        ("lowvram, budget 64 MiB", ("lowvram", "64", "off")),
        ("full > lowvram, budget 0 MiB", ("lowvram", "0", "off")),
        ("lowvram, budget -31528 MiB", (None, None, None)),
        ("lowvram, budget 99999999999 MiB", (None, None, None)),
        ("tensorrt", (None, None, None)),
        ("warp drive", (None, None, None)),
        (None, (STANDING, "", "off")),
    ],
)
def test_pasted_parameters(text: str | None, expected: tuple[str | None, ...]) -> None:
    """B13: None leaves a field as it is."""
    fields = infotext_fields(["mode", "budget", "accelerate"])
    assert [component for component, _read in fields] == ["mode", "budget", "accelerate"]
    pasted = {} if text is None else {"VRAM mode": text}
    assert tuple(read(pasted) for _component, read in fields) == expected


# ------------------------------------------------------------------------------------------------ axes


def test_axes_are_added_once(webui: Any) -> None:
    import xyz_grid

    from vram_pilot.hosts.a1111.xyz import LABELS, add_axes

    add_axes()
    webui.scripts.scripts_data.append(SimpleNamespace(module=SimpleNamespace(__file__="other.py")))
    webui.scripts.scripts_data.append(SimpleNamespace(module=xyz_grid))
    for _number in range(3):
        add_axes()
    axes = {option.label: option for option in xyz_grid.axis_options}
    assert [option.label for option in xyz_grid.axis_options] == ["Nothing", *LABELS]
    mode, budget = (axes[label] for label in LABELS)
    assert "lowvram" in mode.choices() and "tensorrt" not in mode.choices()
    first, second = SimpleNamespace(), SimpleNamespace()
    mode.apply(first, "full", [])
    second.__dict__.update(first.__dict__)
    budget.apply(second, "5", [])
    assert first.vram_pilot_axis == {"mode": "full"} and second.vram_pilot_axis == {"mode": "full", "budget_mib": "5"}
    mode.confirm(None, ["full", "medvram"])
    budget.confirm(None, ["0", "17"])
    for option, values in ((mode, ["full", "warp"]), (mode, ["tensorrt"]), (budget, ["1", "-1"]), (budget, ["many"])):
        with pytest.raises(VramPilotError):
            option.confirm(None, values)
