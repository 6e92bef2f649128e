"""What is kept: the mode in a picture's parameters, plots over modes, sessions, reports, settings; and nothing elsewhere."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import jsonschema
import pytest

from tests.host.client import REQUEST, Client, Pictures, pictures
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, MODES
from tests.host.webui import WebUI
from tests.project import ROOT

SCHEMA = json.loads((ROOT / "docs" / "session.schema.json").read_text(encoding="utf-8"))
SECRET = "Rumpelstiltskin"
#: For everything of ours that the WebUI loads at a start, beyond what it has loaded itself: 50 ms on an ordinary machine, and
#: as much again twice for a slow or busy one.
IMPORT_S = 0.15


# ------------------------------------------------------------------------------------------------ the picture's parameters


def test_the_mode_is_in_the_parameters(plain: Client) -> None:
    written = {
        "as-launched": plain.txt2img(AS_LAUNCHED),
        "full": plain.txt2img("full"),
        '"lowvram, budget 64 MiB"': plain.txt2img(MODES["lowvram-64"]),
    }
    for mode, made in written.items():
        parameters = plain.post("/sdapi/v1/png-info", {"image": made.encoded[0]})
        assert parameters["info"] == made.texts[0]
        expected = None if mode == "as-launched" else mode.strip('"')
        assert parameters["parameters"].get("VRAM mode") == expected
        assert (f"VRAM mode: {mode}," in made.texts[0]) == (expected is not None)
    try:
        plain.post("/sdapi/v1/options", {"vram_pilot_write_infotext": False})
        assert "VRAM mode" not in plain.txt2img("full").texts[0]
    finally:
        plain.post("/sdapi/v1/options", {"vram_pilot_write_infotext": True})


@pytest.mark.parametrize(
    ("written", "effective"),
    [
        ("medvram", {"mode": "medvram", "budget_mib": None}),
        ("lowvram, budget 48 MiB", {"mode": "lowvram", "budget_mib": 48}),
        ("full > lowvram", {"mode": "lowvram", "budget_mib": None}),
        ("lowvram, budget -31528 MiB", {"mode": "as-launched", "budget_mib": None}),
        ("lowvram, budget 99999999999 MiB", {"mode": "as-launched", "budget_mib": None}),
        ("warp drive", {"mode": "as-launched", "budget_mib": None}),
        ("tensorrt", {"mode": "as-launched", "budget_mib": None}),
    ],
)
def test_parameters_make_a_job(plain: Client, written: str, effective: dict[str, Any]) -> None:
    """B13: the API's `infotext` sets the mode; what could not be typed is ignored."""
    text = f'a cat\nSteps: 4, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 64x64, VRAM mode: "{written}", Version: v1.10.1'
    plain.post("/sdapi/v1/txt2img", {"infotext": text})
    found = plain.newest_session()["mode"]["effective"]
    assert {key: found[key] for key in effective} == effective
    assert plain.state()["mode"]["refusal"] is None


# ------------------------------------------------------------------------------------------------ plots


def plot(client: Client, **axes: tuple[str, str]) -> Pictures:
    """An X/Y/Z plot by API. axes: x, y, z to (label, values)."""
    script = next(s for s in client.get("/sdapi/v1/script-info") if s["name"] == "x/y/z plot" and not s["is_img2img"])
    labels = next(argument["choices"] for argument in script["args"] if argument["label"] == "X type")
    chosen: list[Any] = []
    for axis in "xyz":
        label, values = axes.get(axis, ("Nothing", ""))
        chosen += [labels.index(label), values, _chosen(values)]
    body = {
        **REQUEST,
        "script_name": "X/Y/Z plot",
        "script_args": [*chosen, True, True, False, False, False, False, False, 0, False],
    }
    return pictures(client.post("/sdapi/v1/txt2img", body))


def _chosen(values: str) -> list[str]:
    """As the drop-down of an axis that has choices gives them."""
    return [value.strip() for value in values.split(",") if value.strip()]


def test_a_plot_over_modes(plain: Client, record: Any) -> None:
    """Each cell is a job with a session and parameters of its own, and looks like the others."""
    expected = plain.txt2img(AS_LAUNCHED)
    modes = ["full", "as-launched", "medvram", "lowvram"]
    made = plot(plain, x=("[VRAM Pilot] Mode", ", ".join(modes)))
    record("plot", made)
    cells = made.pixels[-len(modes) :]
    assert set(cells) == set(expected.pixels)
    texts = made.texts[-len(modes) :]
    assert ["VRAM mode" in text for text in texts] == [True, False, True, True], texts
    found = plain.get(f"/vram-pilot/v1/sessions?limit={len(modes)}")["sessions"]
    whole = [plain.get(f"/vram-pilot/v1/sessions/{row['id']}") for row in reversed(found)]
    assert [session["mode"]["effective"]["mode"] for session in whole] == modes


def test_a_plot_over_budgets_and_seeds(plain: Client, record: Any) -> None:
    expected = {seed: plain.txt2img(AS_LAUNCHED, seed=seed).pixels[0] for seed in (1, 2)}
    made = plot(plain, x=("[VRAM Pilot] Budget", "0, 32, 100000"), y=("Seed", "1,2"))
    record("plot", made)
    assert list(made.pixels[-6:]) == [*[expected[1]] * 3, *[expected[2]] * 3]
    assert all("VRAM mode: " in text and "lowvram, budget" in text for text in made.texts[-6:])


def test_a_plot_over_both(plain: Client, record: Any) -> None:
    """A budget means nothing to the other modes."""
    expected = plain.txt2img(AS_LAUNCHED)
    made = plot(plain, x=("[VRAM Pilot] Mode", "full, lowvram"), y=("[VRAM Pilot] Budget", "0, 32"))
    record("plot", made)
    assert set(made.pixels[-4:]) == set(expected.pixels)
    assert plain.state()["mode"]["refusal"] is None


@pytest.mark.parametrize(
    "axis", [("[VRAM Pilot] Mode", "full, warp"), ("[VRAM Pilot] Mode", "tensorrt"), ("[VRAM Pilot] Budget", "-1")]
)
def test_a_plot_with_a_slip_in_it(plain: Client, axis: tuple[str, str]) -> None:
    """Nothing is made before the whole axis is known to be right."""
    before = plain.get("/vram-pilot/v1/sessions?limit=1")["sessions"]
    status, answer, _headers = plain.call("POST", "/sdapi/v1/txt2img", plot_body(plain, axis))
    assert status == 500 and axis[1].rpartition(",")[2].strip() in str(answer), answer
    assert plain.get("/vram-pilot/v1/sessions?limit=1")["sessions"] == before


def plot_body(client: Client, axis: tuple[str, str]) -> dict[str, Any]:
    script = next(s for s in client.get("/sdapi/v1/script-info") if s["name"] == "x/y/z plot" and not s["is_img2img"])
    labels = next(argument["choices"] for argument in script["args"] if argument["label"] == "X type")
    chosen = [labels.index(axis[0]), axis[1], _chosen(axis[1]), 0, "", [], 0, "", []]
    options = [True, True, False, False, False, False, False, 0, False]
    return {**REQUEST, "script_name": "X/Y/Z plot", "script_args": [*chosen, *options]}


# ------------------------------------------------------------------------------------------------ sessions and reports


def test_every_session_is_valid_and_is_reported(plain: Client, env: Environment, record: Any) -> None:
    """Of all the jobs so far, and of a hires one whose prompt must appear nowhere."""
    plain.txt2img("lowvram", prompt=SECRET, enable_hr=True, hr_scale=1.5, denoising_strength=0.5, hr_upscaler="Lanczos")
    validator = jsonschema.Draft202012Validator(SCHEMA)
    rows = plain.get("/vram-pilot/v1/sessions?limit=200")["sessions"]
    assert rows and rows[0]["status"] == "ok"
    for row in rows:
        session = plain.get(f"/vram-pilot/v1/sessions/{row['id']}")
        errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(session)]
        assert not errors, errors[:3]
        assert session["host"] == {"name": "AUTOMATIC1111", "version": "v1.10.1"} or session["host"]["name"] == "AUTOMATIC1111"
        assert not any(word in json.dumps(session) for word in (SECRET, "photo of a cat", str(env.webui), str(env.models)))
    newest = plain.get(f"/vram-pilot/v1/sessions/{rows[0]['id']}")
    (env.out / "session.json").write_text(json.dumps(newest, indent=1), encoding="utf-8")
    for form in plain.state()["offers"]["reports"]:
        status, body, headers = plain.call("GET", f"/vram-pilot/v1/sessions/{rows[0]['id']}/report?format={form}")
        assert status == 200, (form, body)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert SECRET.encode() not in content and str(env.webui).encode() not in content
        if form == "json":
            assert body == newest
        elif form == "html":
            assert rows[0]["id"].encode() in content and b"<script src=" not in content
            (env.out / "report.html").write_bytes(content)
        elif form == "csv":
            assert len(list(csv.reader(io.StringIO(content.decode())))) > 10
        record(form, {"bytes": len(content), "type": headers["Content-Type"]})


def test_what_a_session_says_of_a_job(plain: Client) -> None:
    plain.txt2img(MODES["lowvram-64"], n_iter=2, batch_size=2, steps=3, width=96)
    session = plain.newest_session()
    wanted = {"width": 96, "height": 64, "batch_size": 2, "n_iter": 2, "steps": 3, "sampler": "Euler a", "cfg_scale": 7.0}
    assert {key: session["request"][key] for key in wanted} == wanted and session["request"]["hires"] is None
    assert session["mode"]["requested"] == {"mode": "lowvram", "budget_mib": 64, "accelerate": "off"}
    assert session["settings"]["budget_bytes"] == 64 * 2**20
    assert session["summary"]["image_count"] == 4 and session["summary"]["step_count"] == 6
    assert all(step["streamed_bytes"] > 0 for step in session["steps"])
    total = sum(phase["duration_s"] for phase in session["phases"])
    assert total == pytest.approx(session["summary"]["duration_s"], rel=0.02)


def test_a_session_is_compared_and_deleted(plain: Client) -> None:
    plain.txt2img("full")
    plain.txt2img("lowvram")
    first, second = (row["id"] for row in plain.get("/vram-pilot/v1/sessions?limit=2")["sessions"])
    compared = plain.get(f"/vram-pilot/v1/sessions/compare?a={first}&b={second}")
    assert compared
    status, answer, _headers = plain.call("DELETE", f"/vram-pilot/v1/sessions/{first}", {})
    assert (status, answer) == (200, {"deleted": first})
    assert plain.call("GET", f"/vram-pilot/v1/sessions/{first}")[0] == 404


def test_settings_hold_at_once(plain: Client) -> None:
    """Each of ours is in the WebUI's settings; recording stops and starts with the box, the standing mode follows its field."""
    found = plain.get("/sdapi/v1/options")
    assert {"vram_pilot_mode", "vram_pilot_budget_mib", "vram_pilot_record_sessions", "vram_pilot_keep_sessions"} <= set(found)
    before = plain.get("/vram-pilot/v1/sessions?limit=1")["sessions"]
    try:
        plain.post("/sdapi/v1/options", {"vram_pilot_record_sessions": False})
        plain.txt2img("medvram")
        assert plain.get("/vram-pilot/v1/sessions?limit=1")["sessions"] == before
    finally:
        plain.post("/sdapi/v1/options", {"vram_pilot_record_sessions": True})
    plain.txt2img("medvram")
    assert plain.get("/vram-pilot/v1/sessions?limit=1")["sessions"] != before
    try:
        plain.post("/sdapi/v1/options", {"vram_pilot_mode": "lowvram", "vram_pilot_budget_mib": "40"})
        assert plain.state()["mode"]["effective"] == {"mode": "lowvram", "budget_mib": 40, "accelerate": "off"}
        plain.post("/sdapi/v1/options", {"vram_pilot_budget_mib": "plenty"})
        mode = plain.state()["mode"]
        assert mode["effective"]["budget_mib"] == 40 and "plenty" in mode["refusal"]
        plain.post("/sdapi/v1/options", {"vram_pilot_mode": "full"})
        assert plain.state()["mode"]["effective"]["mode"] == "full"
    finally:
        plain.post("/sdapi/v1/options", {"vram_pilot_mode": "as-launched", "vram_pilot_budget_mib": ""})
    assert plain.state()["mode"]["effective"]["mode"] == "as-launched"


# ------------------------------------------------------------------------------------------------ cost and traces


def test_the_start_is_hardly_longer(webui: Any, record: Any) -> None:
    """What the WebUI's own timer says of our script and our callbacks, on a start that finds everything compiled: in the best
    of three, since it counts what other programs take meanwhile."""
    seconds: list[float] = []
    while len(seconds) < 3 and not (seconds and seconds[-1] < IMPORT_S):
        with webui("timed") as running:
            records = running.client.get("/vram-pilot-probe/startup")["records"]
        ours = {name: taken for name, taken in records.items() if "vram_pilot_entry" in name}
        assert ours
        seconds.append(sum(ours.values()))
    record("seconds", seconds)
    assert min(seconds) < IMPORT_S, seconds


def test_the_state_lies_in_the_data_folder_and_nowhere_else(plain_webui: WebUI, plain: Client) -> None:
    """That the extension's own folder is as it was installed is looked at when all tests are over."""
    plain.txt2img("lowvram")
    plain.newest_session()
    folder = plain_webui.data / "vram-pilot"
    assert (folder / "sessions.sqlite3").is_file()
    assert not list(folder.glob("entering-*")), "no mode is being entered"
    ours = [path.name for path in plain_webui.data.iterdir() if "vram" in path.name.lower()]
    assert ours == ["vram-pilot"]
