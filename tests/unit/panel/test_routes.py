"""Each route, with an application in which nothing generates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import vram_pilot
from tests.fakes.panel_app import FakeApp, session
from vram_pilot.errors import StoreError
from vram_pilot.panel import assets
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.routes import ROUTES, register
from vram_pilot.settings import ACCELERATES, BUILT_ACCELERATES, BUILT_MODES, MODES, ModeRequest

OPEN = Auth(lambda: None)
FIRST, SECOND, UNKNOWN = "20260101-000000-00000001", "20260102-000000-00000002", "20260103-000000-00000003"
V1 = "/vram-pilot/v1"


class Asked:
    """An application and somebody who asks it from this machine."""

    def __init__(self, app: FakeApp, auth: Auth = OPEN) -> None:
        self.app, self.target = app, FastAPI()
        self.panel = register(self.target, app, auth)
        self.client = TestClient(self.target, base_url="http://127.0.0.1:7860", raise_server_exceptions=False)

    def get(self, path: str, **more: Any) -> Any:
        return self.client.get(f"{V1}/{path}", **more)

    def mode(self, body: object, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(f"{V1}/mode", content=content, headers={"Content-Type": "application/json", **headers})

    def delete(self, session_id: str, **headers: str) -> Any:
        return self.client.delete(f"{V1}/sessions/{session_id}", headers=headers or {"X-VRAM-Pilot": "1"})


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(FakeApp(tmp_path))


def is_clear(answer: Any, status: int, error: str) -> bool:
    """An error that says what failed and what to do."""
    content = answer.json()
    assert (answer.status_code, content["error"]) == (status, error), content
    return bool(content["message"]) and bool(content["do"])


# ---------------------------------------------------------------------------------------------------------------- state


def test_state_tells_mode_model_host_and_what_is_offered(asked: Asked) -> None:
    content = asked.get("state").json()
    assert content["off"] is False and content["version"] == vram_pilot.__version__
    assert content["mode"]["effective"] == ModeRequest().to_json()
    assert content["host"]["name"] == "fake" and content["host"]["device"] == "cuda:0"
    assert content["model"] == {"family": "sd1", "name": "v1-5-pruned", "digest": "6ce0161689"}
    assert content["offers"]["modes"] == list(BUILT_MODES)
    assert content["memory"] is None and content["remote_control"] is True and content["store_note"] is None


def test_state_without_a_model_says_none(asked: Asked) -> None:
    asked.app.host.loaded = None
    assert asked.get("state").json()["model"] is None


def test_state_shows_the_newest_memory_figures(asked: Asked) -> None:
    asked.app.step(FIRST, 0, allocated_bytes=10, reserved_bytes=20)
    asked.app.step(FIRST, 1, allocated_bytes=11, reserved_bytes=None)
    memory = asked.get("state").json()["memory"]
    assert (memory["allocated_bytes"], memory["reserved_bytes"]) == (11, None)


def test_state_follows_the_newest_job(asked: Asked) -> None:
    assert asked.get("state").json()["job"] is None
    asked.app.note("before")
    asked.app.start_job(FIRST)
    asked.app.sample(gpu_power_w=100.0)
    for index, duration in enumerate((0.9, 0.1, None, 0.2)):
        asked.app.step(FIRST, index, duration)
    job = asked.get("state").json()["job"]
    assert (job["session_id"], job["running"], job["steps"], job["cursor"]) == (FIRST, True, 4, 1)
    assert job["steps_per_s"] == pytest.approx(5)
    asked.app.finish_job(FIRST)
    assert asked.get("state").json()["job"]["running"] is False


def test_off_answers_off_and_nothing_else(tmp_path: Path) -> None:
    asked = Asked(FakeApp(tmp_path))
    asked.app.off = True
    for name in ("controller", "timeline", "store", "host"):
        delattr(asked.app, name)
    assert asked.get("state").json() == {"off": True, "version": vram_pilot.__version__}
    for path in ("events?poll=1", "sessions", f"sessions/{FIRST}", f"sessions/{FIRST}/report"):
        answer = asked.get(path)
        assert answer.json()["off"] is True and is_clear(answer, 409, "RefusedError")
    assert asked.mode({"mode": "full"}).json()["off"] is True
    assert asked.client.get("/vram-pilot/assets/style.css").status_code == 200


# ----------------------------------------------------------------------------------------------------------------- mode


def test_a_mode_is_asked_for_and_answered(asked: Asked) -> None:
    answer = asked.mode({"mode": "lowvram", "budget_mib": 512})
    wanted = {"mode": "lowvram", "budget_mib": 512, "accelerate": "off"}
    assert answer.status_code == 200
    assert answer.json() == {"requested": wanted, "effective": wanted, "applies": "now", "refusal": None}
    [(request, scope, thread)] = asked.app.controller.requests
    assert (request, scope) == (ModeRequest("lowvram", 512), "standing")
    assert "AnyIO" in thread, "weights may move: not on the server's event loop"


@pytest.mark.parametrize(("scope", "taken"), [(None, "job"), ("job", "job"), ("standing", "standing")])
def test_in_a_job_the_job_is_meant_unless_said_otherwise(asked: Asked, scope: str | None, taken: str) -> None:
    asked.app.start_job()
    answer = asked.mode({"mode": "full", **({"scope": scope} if scope else {})})
    assert answer.json()["applies"] == "next_step" and answer.json()["effective"]["mode"] == "as-launched"
    assert asked.app.controller.requests[0][1] == taken


def test_a_budget_alone_keeps_the_mode_in_force(asked: Asked) -> None:
    asked.mode({"mode": "lowvram"})
    assert asked.mode({"budget_mib": 256}).json()["effective"] == {"mode": "lowvram", "budget_mib": 256, "accelerate": "off"}


@pytest.mark.parametrize("null", [None, "", "auto"])
def test_an_empty_budget_is_the_programs_choice(asked: Asked, null: object) -> None:
    assert asked.mode({"mode": "lowvram", "budget_mib": null}).json()["effective"]["budget_mib"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"mode": "no such mode"},
        {"mode": 7},
        {"mode": None},
        {"mode": ["full"]},
        {"mode": "lowvram", "budget_mib": -1},
        {"mode": "lowvram", "budget_mib": 1e30},
        {"mode": "lowvram", "budget_mib": 1.5},
        {"mode": "lowvram", "budget_mib": True},
        {"mode": "lowvram", "budget_mib": {}},
        {"mode": "full", "budget_mib": 512},
        {"mode": "full", "accelerate": "warp"},
        {"mode": "as-launched", "accelerate": "graph"},
        {"mode": "full", "colour": "red"},
        {"mode": "full", "scope": "everything"},
        {"mode": "full", "scope": []},
        [],
        "full",
        None,
        b"",
        b"{",
        b"\xff\xfe",
        b'{"mode": "lowvram", "budget_mib": NaN}',
        b"[" * 20_000,
    ],
    ids=repr,
)
def test_bad_input_is_named_and_changes_nothing(asked: Asked, body: object) -> None:
    assert is_clear(asked.mode(body), 400, "UsageError")
    assert asked.app.controller.requests == []


NOT_BUILT = [{"mode": mode} for mode in MODES if mode not in BUILT_MODES]
NOT_BUILT += [{"mode": "full", "accelerate": way} for way in ACCELERATES if way not in BUILT_ACCELERATES]


@pytest.mark.parametrize("body", NOT_BUILT, ids=repr)
def test_what_is_not_built_is_refused_by_name(asked: Asked, body: dict[str, str]) -> None:
    answer = asked.mode(body)
    assert is_clear(answer, 409, "RefusedError") and "not in this version" in answer.json()["refusal"]
    assert answer.json()["applies"] is None and answer.json()["effective"]["mode"] == "as-launched"


def test_a_refusal_of_the_mode_itself_is_the_answer(asked: Asked) -> None:
    asked.app.controller.refuses = "full cannot be used: the card is too small"
    answer = asked.mode({"mode": "full"})
    assert is_clear(answer, 409, "RefusedError") and answer.json()["requested"]["mode"] == "full"
    assert answer.json()["refusal"].startswith("full cannot be used")


def test_a_body_over_64_kib_is_not_read(asked: Asked) -> None:
    assert is_clear(asked.mode(b" " * (64 * 1024 + 1)), 413, "TooLargeError")
    assert asked.mode(b'{"mode": "full"' + b" " * 60_000 + b"}").status_code == 200


def test_the_standing_mode_needs_permission_and_the_message_names_the_flag(asked: Asked) -> None:
    asked.app.open = False
    answer = asked.mode({"mode": "full"})
    assert is_clear(answer, 403, "ForbiddenError") and "--vram-pilot-allow-remote-control" in answer.json()["do"]
    assert asked.app.controller.requests == [] and asked.get("state").json()["remote_control"] is False
    asked.app.start_job()
    assert asked.mode({"mode": "full", "scope": "standing"}).status_code == 403
    assert asked.mode({"mode": "full"}).status_code == 200, "a running job's own mode is its owner's"


# ----------------------------------------------------------------------------------------------- other sites' pages


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Origin": "http://[half"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"},
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": ""},
    ],
    ids=repr,
)
def test_a_page_of_another_site_changes_nothing(asked: Asked, headers: dict[str, str]) -> None:
    asked.app.keep(session(FIRST))
    assert is_clear(asked.mode({"mode": "full"}, **headers), 403, "ForbiddenError")
    assert is_clear(asked.delete(FIRST, **{"X-VRAM-Pilot": "1"}, **headers), 403, "ForbiddenError")
    assert asked.app.controller.requests == [] and len(asked.app.store.list(10, 0)) == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_not_taken(asked: Asked, kind: str) -> None:
    assert is_clear(asked.mode({"mode": "full"}, **{"Content-Type": kind}), 415, "ContentTypeError")
    assert is_clear(asked.delete(FIRST, **{"Content-Type": kind}), 415, "ContentTypeError")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:7860", "Sec-Fetch-Site": "same-origin"},
        {"Host": "localhost:7860", "Origin": "http://localhost:7860"},
        {"Host": "[::1]:7860", "Origin": "http://[::1]:7860"},
        {"Host": "192.168.1.5", "Origin": "https://192.168.1.5"},
        {"Content-Type": "application/json; charset=utf-8"},
    ],
    ids=repr,
)
def test_the_own_page_and_programs_are_heard(asked: Asked, headers: dict[str, str]) -> None:
    assert asked.mode({"mode": "full"}, **headers).status_code == 200


@pytest.mark.parametrize("allowed", ["sd.example.org", "*"])
def test_a_name_that_the_host_allows_is_its_own(tmp_path: Path, allowed: str) -> None:
    asked = Asked(FakeApp(tmp_path), Auth(lambda: None, allowed_hosts=(allowed,)))
    own = {"Host": "sd.example.org", "Origin": "https://sd.example.org"}
    assert asked.mode({"mode": "full"}, **own).status_code == 200
    assert asked.mode({"mode": "full"}, **{**own, "Origin": "https://evil.example"}).status_code == 403


# ------------------------------------------------------------------------------------------------------------- sessions


def test_sessions_are_listed_newest_first_and_by_page(asked: Asked) -> None:
    for session_id in (FIRST, SECOND):
        asked.app.keep(session(session_id))
    content = asked.get("sessions").json()
    assert [row["id"] for row in content["sessions"]] == [SECOND, FIRST] and content["note"] is None
    page = asked.get("sessions?limit=1&offset=1").json()
    assert [row["id"] for row in page["sessions"]] == [FIRST] and (page["limit"], page["offset"]) == (1, 1)


@pytest.mark.parametrize("query", ["limit=-1", "limit=x", "limit=201", "offset=1e3", "offset=" + "9" * 400, "limit="])
def test_a_page_that_makes_no_sense_is_refused(asked: Asked, query: str) -> None:
    assert is_clear(asked.get(f"sessions?{query}"), 400, "UsageError")


def test_one_session_is_shown_whole(asked: Asked) -> None:
    kept = session(FIRST, "lowvram")
    asked.app.keep(kept)
    assert asked.get(f"sessions/{FIRST}").json() == kept


@pytest.mark.parametrize("session_id", [UNKNOWN, "nonsense", "..", "%2e%2e%2fpasswd", "a" * 500, "compare%00"])
def test_an_unknown_session_is_not_found(asked: Asked, session_id: str) -> None:
    for answer in (asked.get(f"sessions/{session_id}"), asked.get(f"sessions/{session_id}/report"), asked.delete(session_id)):
        assert answer.status_code == 404


def test_an_unknown_session_says_what_to_do(asked: Asked) -> None:
    assert is_clear(asked.get(f"sessions/{UNKNOWN}"), 404, "NotFoundError")
    assert is_clear(asked.get("sessions/nonsense/report"), 404, "NotFoundError")
    assert is_clear(asked.delete("nonsense"), 404, "NotFoundError")


def test_two_sessions_are_compared(asked: Asked) -> None:
    asked.app.keep(session(FIRST, "full", step_s=0.05))
    asked.app.keep(session(SECOND, "lowvram", step_s=0.1))
    rows = {row["name"]: row for row in asked.get(f"sessions/compare?a={FIRST}&b={SECOND}").json()["rows"]}
    assert (rows["mode"]["a"], rows["mode"]["b"]) == ("full", "lowvram")
    assert rows["step_p50_s"]["ratio"] == pytest.approx(2) and rows["step_p50_s"]["better"] == "a"
    assert is_clear(asked.get(f"sessions/compare?a={FIRST}&b={UNKNOWN}"), 404, "NotFoundError")
    assert is_clear(asked.get(f"sessions/compare?a={FIRST}"), 400, "UsageError")


def test_a_session_is_deleted_once(asked: Asked) -> None:
    asked.app.keep(session(FIRST))
    assert asked.delete(FIRST, **{"Content-Type": "application/json"}).json() == {"deleted": FIRST}
    assert asked.get("sessions").json()["sessions"] == []
    assert is_clear(asked.delete(FIRST), 404, "NotFoundError")


def test_deleting_needs_permission(asked: Asked) -> None:
    asked.app.keep(session(FIRST))
    asked.app.open = False
    answer = asked.delete(FIRST)
    assert is_clear(answer, 403, "ForbiddenError") and "--vram-pilot-allow-remote-control" in answer.json()["do"]
    assert asked.get(f"sessions/{FIRST}").status_code == 200


def test_a_running_session_is_not_deleted(asked: Asked) -> None:
    asked.app.keep(session(FIRST, status="running"))
    assert is_clear(asked.delete(FIRST), 409, "RefusedError")


def test_a_store_that_fails_is_told_with_its_advice(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise StoreError("The store cannot be read", do="Free some space.")

    monkeypatch.setattr(asked.app.store, "list", broken)
    assert is_clear(asked.get("sessions"), 503, "StoreError")


def test_a_fault_of_ours_is_an_answer_and_in_the_log(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asked.app.controller, "state", lambda: 1 / 0)
    assert is_clear(asked.get("state"), 500, "VramPilotError")
    assert "ZeroDivisionError" in caplog.text


# --------------------------------------------------------------------------------------------------------------- events


def test_polling_goes_on_where_it_ended(asked: Asked) -> None:
    for index in range(3):
        asked.app.step(FIRST, index)
    first = asked.get("events?poll=1&since=1").json()
    assert [record["cursor"] for record in first["records"]] == [2, 3] and (first["cursor"], first["lost"]) == (3, 0)
    asked.app.step(FIRST, 3)
    second = asked.get(f"events?poll=1&since={first['cursor']}&stream={first['stream']}").json()
    assert [record["index"] for record in second["records"]] == [3] and second["reset"] is False


def test_polling_passes_over_the_map_unless_it_is_asked_for(asked: Asked) -> None:
    for _ in range(3):
        asked.app.column([255], [0])
    plain, drawn = (asked.get(f"events?poll=1&since=0{more}").json() for more in ("", "&map=1"))
    assert (plain["records"], plain["cursor"], plain["more"]) == ([], 3, False)
    assert [record["held"] for record in drawn["records"]] == ["/w=="] * 3


def test_polling_without_a_cursor_begins_now(asked: Asked) -> None:
    asked.app.step(FIRST, 0)
    content = asked.get("events?poll=1").json()
    assert content["records"] == [] and content["cursor"] == 1


def test_a_long_backlog_comes_in_parts(asked: Asked) -> None:
    for index in range(700):
        asked.app.step(FIRST, index)
    first = asked.get("events?poll=1&since=0").json()
    rest = asked.get(f"events?poll=1&since={first['cursor']}").json()
    assert first["more"] is True and rest["more"] is False
    assert [record["index"] for record in first["records"] + rest["records"]] == list(range(700))


def test_what_fell_out_is_said(asked: Asked) -> None:
    for index in range(20_050):
        asked.app.step(FIRST, index)
    content = asked.get("events?poll=1&since=10").json()
    assert content["lost"] == 40 and content["records"][0]["cursor"] == 51


@pytest.mark.parametrize("query", ["since=99", "since=1&stream=another"])
def test_a_cursor_of_another_process_begins_anew(asked: Asked, query: str) -> None:
    asked.app.step(FIRST, 0)
    content = asked.get(f"events?poll=1&{query}").json()
    assert content["reset"] is True and [record["cursor"] for record in content["records"]] == [1] and content["lost"] == 0


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "9" * 40])
def test_a_cursor_that_is_none_is_refused(asked: Asked, since: str) -> None:
    assert is_clear(asked.get(f"events?poll=1&since={since}"), 400, "UsageError")


def test_a_number_that_is_none_is_null(asked: Asked) -> None:
    asked.app.step(FIRST, 0, float("nan"))
    assert asked.get("events?poll=1&since=0").json()["records"][0]["duration_s"] is None


# --------------------------------------------------------------------------------------------------------- registration


def paths(target: FastAPI) -> list[str]:
    return [route.path for route in target.routes if "vram-pilot" in getattr(route, "path", "")]


def test_e19_registering_again_replaces(asked: Asked, tmp_path: Path) -> None:
    before = paths(asked.target)
    other = FakeApp(tmp_path / "other")
    other.host.loaded = None
    for _ in range(3):
        register(asked.target, other, OPEN)
    assert paths(asked.target) == before
    assert asked.get("state").json()["model"] is None
    assert asked.panel.hub.ended, "the streams of the one before end"


def test_e19_a_new_application_gets_a_set_of_its_own(asked: Asked) -> None:
    later = Asked(asked.app)
    assert paths(later.target) == paths(asked.target)
    assert later.get("state").status_code == asked.get("state").status_code == 200


def test_the_table_of_routes_is_what_is_registered(asked: Asked) -> None:
    assert sorted(set(path for _, path in ROUTES)) == sorted(paths(asked.target))
    assert ROUTES.index(("GET", f"{V1}/sessions/compare")) < ROUTES.index(("GET", f"{V1}/sessions/{{id}}"))


def test_a_wrong_method_is_answered(asked: Asked) -> None:
    answer = asked.get("mode")
    assert is_clear(answer, 405, "MethodError") and "POST" in answer.json()["do"]


def test_e16_the_routes_answer_under_a_sub_path(asked: Asked) -> None:
    proxy = FastAPI()
    proxy.mount("/sub", asked.target)
    assert TestClient(proxy, base_url="http://127.0.0.1").get(f"/sub{V1}/state").status_code == 200


def test_e15_the_routes_need_no_page(asked: Asked) -> None:
    """--nowebui: a plain application has them all, none needs a gradio application, and gradio is not even imported."""
    code = "import sys, vram_pilot.panel.routes, vram_pilot.panel.fields; sys.exit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
    assert asked.get("state").status_code == asked.get("sessions").status_code == asked.get("events?poll=1").status_code == 200


# --------------------------------------------------------------------------------------------------------------- assets


@pytest.mark.parametrize("name", assets.FILES)
def test_every_file_of_the_panel_is_served(asked: Asked, name: str) -> None:
    answer = asked.client.get(f"/vram-pilot/assets/{name}")
    assert answer.status_code == 200 and answer.content == assets.FILES[name].read_bytes()
    assert answer.headers["Content-Type"].split(";")[0] == ("text/css" if name.endswith("css") else "text/javascript")


@pytest.mark.parametrize(
    "name", ["../README.md", "%2e%2e/README.md", "vram_pilot/../../README.md", "routes.py", "", "/etc/passwd"]
)
def test_no_other_file_is_served(asked: Asked, name: str) -> None:
    assert asked.client.get(f"/vram-pilot/assets/{name}").status_code == 404
