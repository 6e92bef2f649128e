"""The host's login on every route, with the real gradio's applications. Case E17."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.fakes.panel_app import FakeApp
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.routes import ROUTES, register

JSON = {"Content-Type": "application/json"}
SESSION = "20260101-000000-00000001"


def gradio_application(users: dict[str, str]) -> Any:
    """What gradio itself serves a page with a login with."""
    with gr.Blocks(analytics_enabled=False) as blocks:
        gr.Markdown("page")
    blocks.auth, blocks.auth_message = list(users.items()), None
    application = gr.routes.App.create_app(blocks)
    application.auth, application.tokens = dict(users), {}
    return application


def client(tmp_path: Path, auth: Auth, application: Any | None = None) -> TestClient:
    target = application or FastAPI()
    app = FakeApp(tmp_path)
    register(target, app, auth)
    return TestClient(target, base_url="http://127.0.0.1")


def answers(asking: TestClient, **more: Any) -> dict[tuple[str, str], int]:
    """Each route's status, the endless one in its polled form."""
    found = {}
    for method, path in ROUTES:
        url = path.replace("{id}", SESSION).replace("{name:path}", "style.css")
        body = {"content": b'{"mode": "full"}', "headers": {**JSON, **more.get("headers", {})}} if method != "GET" else more
        found[method, path] = asking.request(method, url + ("?poll=1" if path.endswith("events") else ""), **body).status_code
    return found


@pytest.mark.parametrize(
    "auth",
    [
        Auth(lambda: None, {"api": "secret"}),
        Auth(lambda: SimpleNamespace(tokens={"token": "user"}), None, True),
        Auth(lambda: None, {"api": "secret"}, True),
    ],
    ids=["api-auth", "gradio-auth", "both"],
)
def test_e17_every_route_needs_the_login(tmp_path: Path, auth: Auth) -> None:
    assert set(answers(client(tmp_path, auth)).values()) == {401}


def test_without_a_login_every_route_answers(tmp_path: Path) -> None:
    assert 401 not in answers(client(tmp_path, Auth(lambda: None))).values()


def test_e17_the_cookie_of_gradios_own_login_opens_every_route(tmp_path: Path) -> None:
    application = gradio_application({"user": "word"})
    asking = client(tmp_path, Auth(lambda: application, None, True), application)
    assert asking.get("/vram-pilot/v1/state").status_code == 401
    assert asking.post("/login", data={"username": "user", "password": "word"}).status_code == 200
    assert 401 not in answers(asking).values()


@pytest.mark.parametrize("cookie", ["wrong", "", "null"])
def test_e17_a_wrong_cookie_opens_nothing(tmp_path: Path, cookie: str) -> None:
    application = SimpleNamespace(tokens={"token": "user"}, cookie_id="id")
    asking = client(tmp_path, Auth(lambda: application, None, True))
    for name in ("access-token", "access-token-id", "access-token-unsecure-id"):
        asking.cookies.set(name, cookie)
    assert set(answers(asking).values()) == {401}


def test_gradio_4_knows_its_cookie_by_the_applications_own_name(tmp_path: Path) -> None:
    application = SimpleNamespace(tokens={"token": "user"}, cookie_id="id")
    asking = client(tmp_path, Auth(lambda: application, None, True))
    asking.cookies.set("access-token", "token")
    assert asking.get("/vram-pilot/v1/state").status_code == 401
    asking.cookies.set("access-token-unsecure-id", "token")
    assert asking.get("/vram-pilot/v1/state").status_code == 200


def test_a_program_around_gradio_names_its_own_users(tmp_path: Path) -> None:
    application = SimpleNamespace(tokens={}, auth_dependency=lambda request: request.headers.get("x-user"))
    asking = client(tmp_path, Auth(lambda: application, None, True))
    assert asking.get("/vram-pilot/v1/state").status_code == 401
    assert asking.get("/vram-pilot/v1/state", headers={"X-User": "me"}).status_code == 200


def test_e17_basic_credentials_open_every_route(tmp_path: Path) -> None:
    asking = client(tmp_path, Auth(lambda: None, {"other": "x", "api": "sécret"}))
    asking.auth = ("api", "sécret")
    assert 401 not in answers(asking).values()


@pytest.mark.parametrize(
    "header",
    ["Basic YXBpOndyb25n", "Basic", "Basic !!!", "Bearer YXBpOnNlY3JldA==", "Basic YXBp", "Basic /w==", ""],
    ids=["password", "nothing", "no base64", "bearer", "no colon", "no text", "empty"],
)
def test_e17_wrong_credentials_open_nothing(tmp_path: Path, header: str) -> None:
    asking = client(tmp_path, Auth(lambda: None, {"api": "secret"}))
    assert set(answers(asking, headers={"Authorization": header}).values()) == {401}


@pytest.mark.parametrize(("page_login", "challenged"), [(False, True), (True, False)])
def test_only_where_no_page_asks_for_the_login_does_the_browser(tmp_path: Path, page_login: bool, challenged: bool) -> None:
    answer = client(tmp_path, Auth(lambda: None, {"api": "secret"}, page_login)).get("/vram-pilot/v1/state")
    assert ("WWW-Authenticate" in answer.headers) is challenged
    assert answer.json()["error"] == "LoginNeededError" and "Basic credentials" in answer.json()["do"]


def test_e17_a_page_login_without_its_application_opens_nothing(tmp_path: Path) -> None:
    asking = client(tmp_path, Auth(lambda: None, None, True))
    asking.cookies.set("access-token", "token")
    assert set(answers(asking).values()) == {401}
