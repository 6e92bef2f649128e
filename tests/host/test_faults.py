"""What goes wrong: interruptions, exceptions, memory that runs out, modes that cannot be entered, input that makes no sense."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from tests.host.client import REQUEST, AnswerError, Client
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, MODES
from tests.host.test_switching import go_on_to, held
from tests.host.webui import WebUI

# ------------------------------------------------------------------------------------------------ stopped by the user


@pytest.mark.parametrize("how", ["interrupt", "skip"])
@pytest.mark.parametrize("label", list(MODES))
def test_a_stopped_job_and_the_next_one(plain: Client, launched: Any, how: str, label: str, record: Any) -> None:
    """B16: stopped at step 5 in a streamed mode: the session says so, and the next job is right."""
    expected = launched()
    plain.mode(**MODES[label], scope="standing")
    with held(plain, 5, lambda: plain.txt2img(steps=12)) as running:
        plain.post(f"/sdapi/v1/{how}", {})
        go_on_to(plain, None)
        running.result()
    session = plain.newest_session()
    assert session["status"] == "interrupted" and session["summary"]["image_count"] is None
    assert [step["index"] for step in session["steps"]] == list(range(6))
    made = plain.txt2img()
    record("next", made)
    assert made.pixels == expected.pixels
    assert plain.newest_session()["status"] == "ok"


def test_one_skipped_picture_of_three(plain: Client, launched: Any) -> None:
    expected = launched(n_iter=3, steps=6)
    with held(plain, 8, lambda: plain.txt2img("lowvram", n_iter=3, steps=6)) as running:
        plain.post("/sdapi/v1/skip", {})
        go_on_to(plain, None)
        made = running.result()
    ends = [made.pixels[index] for index in (-3, -1)]
    assert ends == [expected.pixels[index] for index in (-3, -1)], "the others are whole"
    assert made.pixels[-2] != expected.pixels[-2]
    assert plain.newest_session()["status"] == "interrupted"


# ------------------------------------------------------------------------------------------------ failures inside the denoiser


@pytest.mark.parametrize(("kind", "status"), [("error", "error"), ("oom", "oom"), ("oom_text", "oom")])
@pytest.mark.parametrize("label", list(MODES))
def test_a_failure_inside_the_denoiser(plain: Client, launched: Any, kind: str, status: str, label: str, record: Any) -> None:
    """A4, A7: the API answers an error, the session ends by it, the model is as before, and the next picture is right."""
    expected = launched()
    plain.mode(**MODES[label], scope="standing")
    plain.txt2img()
    before = plain.get("/vram-pilot-probe/model")
    plain.post("/vram-pilot-probe/fault", {"kind": kind, "at": 2})
    with pytest.raises(AnswerError) as failure:
        plain.txt2img()
    assert failure.value.status == 500 and "injected" in str(failure.value)
    session = plain.newest_session()
    assert session["status"] == status and "injected" in session["error"], session["error"]
    assert session["summary"]["image_count"] is None and len(session["steps"]) == 3
    after = plain.get("/vram-pilot-probe/model")
    assert after == before, "the failure left something behind"
    made = plain.txt2img()
    record("next", made)
    assert made.pixels == expected.pixels
    plain.mode("as-launched", "standing")
    assert plain.txt2img().pixels == expected.pixels


def test_a_job_that_fails_before_it_samples(plain: Client, launched: Any, env: Environment) -> None:
    """While its checkpoint is loaded, which the WebUI does before the job proper: nothing waits for its end."""
    expected = launched()
    plain.mode("lowvram", "standing")
    with pytest.raises(AnswerError):
        plain.txt2img(enable_hr=True, hr_scale=1.5, denoising_strength=0.5, hr_upscaler="no such upscaler")
    assert plain.newest_session()["status"] == "error"
    plain.post("/vram-pilot-probe/break-loading", {})
    with pytest.raises(AnswerError):
        plain.txt2img(override_settings={"sd_model_checkpoint": env.names.sd1[1]})
    session = plain.newest_session()
    assert session["status"] == "oom" and "injected" in session["error"] and not session["steps"]
    assert not plain.state()["mode"]["in_job"]
    answer = plain.mode("medvram", "standing")
    assert (answer["applies"], answer["effective"]["mode"]) == ("now", "medvram")
    assert plain.txt2img().pixels == expected.pixels


def test_a_mode_that_cannot_be_entered(plain: Client, launched: Any, record: Any) -> None:
    """The mode before it is in force again; the job goes on, and says why."""
    expected = launched()
    before = plain.get("/vram-pilot-probe/model")
    plain.post("/vram-pilot-probe/break-activation", {"how": "raise"})
    with pytest.raises(AnswerError) as failure:
        plain.mode("medvram", "standing")
    assert failure.value.status == 500 and failure.value.body["error"] == "ActivationError"
    assert "injected" in failure.value.body["message"]
    mode = plain.state()["mode"]
    assert (mode["effective"]["mode"], mode["standing"]["mode"]) == ("as-launched", "as-launched")
    assert plain.get("/vram-pilot-probe/model") == before
    plain.mode("full", "standing")
    plain.post("/vram-pilot-probe/break-activation", {"how": "raise"})
    made = plain.txt2img("lowvram")
    record("refused", made)
    assert made.pixels == expected.pixels
    session = plain.newest_session()
    assert session["mode"]["effective"]["mode"] == "full" and "injected" in str(session["notes"])
    assert "lowvram" in plain.state()["mode"]["refusal"]
    assert plain.txt2img("lowvram").pixels == expected.pixels
    assert plain.newest_session()["mode"]["effective"]["mode"] == "lowvram"


def test_a_switch_that_fails_in_mid_job(plain: Client, launched: Any, record: Any) -> None:
    expected = launched(steps=6)
    with held(plain, 2, lambda: plain.txt2img("medvram", steps=6)) as running:
        plain.post("/vram-pilot-probe/break-activation", {"how": "raise"})
        assert plain.mode("lowvram")["applies"] == "next_step"
        go_on_to(plain, 4)
        assert "lowvram" in plain.state()["mode"]["refusal"]
        go_on_to(plain, None)
        made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels
    failed = [(entry["from"], entry["to"]) for entry in plain.newest_session()["mode"]["history"] if entry["failed"]]
    assert failed == [("medvram", "lowvram")]


# ------------------------------------------------------------------------------------------------ input that makes no sense


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"mode": "fastest"}, 400, "fastest"),
        ({"mode": "tensorrt"}, 409, "tensorrt"),
        ({"mode": 5}, 400, "mode"),
        ({"mode": "lowvram", "budget_mib": -1}, 400, "-1"),
        ({"mode": "lowvram", "budget_mib": 10**12}, 400, str(10**12)),
        ({"mode": "lowvram", "budget_mib": "much"}, 400, "much"),
        ({"mode": "lowvram", "budget_mib": 1.5}, 400, "1.5"),
        ({"mode": "medvram", "budget_mib": 100}, 400, "lowvram"),
        ({"mode": "full", "speed": 9}, 400, "speed"),
        ({"mode": "full", "scope": "for ever"}, 400, "for ever"),
        ({"mode": "full", "scope": "job"}, 409, "job"),
        ([1, 2], 400, "object"),
    ],
)
def test_a_request_for_a_mode_that_makes_no_sense(plain: Client, body: Any, status: int, word: str) -> None:
    found, answer, _headers = plain.call("POST", "/vram-pilot/v1/mode", body)
    assert found == status and word in answer["message"] and answer["do"], answer
    assert plain.state()["mode"]["effective"]["mode"] == "as-launched"


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"mode": "full"' + b" " * 70_000])
def test_a_body_that_is_no_json(plain: Client, raw: bytes) -> None:
    found, answer, _headers = plain.call("POST", "/vram-pilot/v1/mode", raw=raw)
    assert found in (400, 413) and answer["do"]


@pytest.mark.parametrize("path", ["sessions/nothing", "sessions/20200101-000000-00000000", "sessions/..%2f..%2fetc/report"])
def test_a_session_that_is_not_there(plain: Client, path: str) -> None:
    found, answer, _headers = plain.call("GET", f"/vram-pilot/v1/{path}")
    assert found == 404
    assert "session" in str(answer).lower() or "Not Found" in str(answer)


@pytest.mark.parametrize(
    "arguments",
    [
        [{"mode": "fastest"}],
        [{"mode": "tensorrt"}],
        [{"mode": "lowvram", "budget_mib": -5}],
        [{"mode": "lowvram", "budget_mib": 10**15}],
        [{"mode": "full", "colour": "red"}],
        [{"mode": {"of": "course"}}],
        [{}, {"mode": "full"}],
        ["fastest"],
        [5],
        [[1, 2, 3]],
        [None, None],
        ["lowvram", "much"],
        ["lowvram", "1", 2, 3, 4, 5, 6, 7],
        [],
    ],
    ids=str,
)
def test_arguments_of_a_job_that_make_no_sense(plain: Client, launched: Any, arguments: list[Any], record: Any) -> None:
    """The picture is made all the same, and what was wrong can be read."""
    expected = launched()
    made = plain.txt2img(arguments)
    record("made", made)
    assert made.pixels == expected.pixels
    session, refusal = plain.newest_session(), plain.state()["mode"]["refusal"]
    assert session["status"] == "ok"
    harmless = arguments in ([], [None, None], [{}, {"mode": "full"}])
    assert (refusal is None) is harmless, refusal
    if not harmless:
        assert session["mode"]["effective"]["mode"] == "as-launched"
        assert "Use" in refusal and "standing mode" in refusal and refusal in str([note["text"] for note in session["notes"]])


def test_arguments_that_are_no_list(plain: Client, launched: Any) -> None:
    """Refused by the WebUI itself, before there is a job."""
    expected = launched()
    for arguments in ({"mode": "full"}, "full", 5):
        body = {**REQUEST, "alwayson_scripts": {"VRAM Pilot": {"args": arguments}}}
        plain.call("POST", "/sdapi/v1/txt2img", body)
    assert plain.txt2img(AS_LAUNCHED).pixels == expected.pixels


def test_other_sites_cannot_change_the_mode(plain: Client, plain_webui: WebUI) -> None:
    for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "elsewhere.example"}, {"Content-Type": "text/plain"}):
        found, answer, _sent = plain.call("POST", "/vram-pilot/v1/mode", {"mode": "full"}, headers=headers)
        assert found in (403, 415), answer
    assert plain.state()["mode"]["effective"]["mode"] == "as-launched"
    request = urllib.request.Request(plain_webui.url + "/vram-pilot/v1/state")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert "access-control-allow-origin" not in {name.lower() for name in answer.headers}
