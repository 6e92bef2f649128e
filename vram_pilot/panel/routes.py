"""The HTTP surface, registered on the host's own server under its root path.

Nothing here knows fastapi or pydantic: plain routes work on every generation that the hosts use. Handlers answer JSON; blocking
work runs in a worker thread, the events stream on the server's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vram_pilot.errors import NotFoundError, RefusedError, UsageError, VramPilotError
from vram_pilot.panel import assets, sessions
from vram_pilot.panel.auth import Auth
from vram_pilot.panel.base import PanelApp
from vram_pilot.panel.checks import check_own_request, read_json, whole_number
from vram_pilot.panel.errors import ForbiddenError, LoginNeededError, MethodError
from vram_pilot.panel.state import OFF, state
from vram_pilot.panel.stream import EventStream, Hub, dumps, polled
from vram_pilot.settings import SCOPES, parse_mode_request

log = logging.getLogger(__name__)

V1 = "/vram-pilot/v1"
MAX_CURSOR = 2**53
MAX_LISTED = 200
#: What every address listens to, so that a wrong method is answered as clearly as any other mistake.
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: A report shown by the browser may run its own script and reach nothing else.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


class Panel:
    """One application on one server. `close` ends its streams."""

    def __init__(self, app: PanelApp, auth: Auth) -> None:
        self.app = app
        self.auth = auth
        self._hub: Hub | None = None
        self._closed = False

    @property
    def hub(self) -> Hub:
        """Made when first asked for: an application that is off has no timeline to watch."""
        if self._hub is None:
            self._hub = Hub(self.app.timeline, self._is_ending, watching=self.app.watching)
        return self._hub

    def close(self) -> None:
        """Ends every events stream, also those to come. Any thread; idempotent."""
        self._closed = True
        if self._hub is not None:
            self._hub.wake_all()

    def _is_ending(self) -> bool:
        return self._closed or self.auth.server_is_stopping()


Handler = Callable[[Panel, Request], Awaitable[Response]]


@dataclass(frozen=True)
class _Endpoint:
    method: str
    path: str
    handler: Handler
    answers_off: bool = False


# ------------------------------------------------------------------------------------------------------------ handlers


async def _state(panel: Panel, request: Request) -> Response:
    if panel.app.off:
        return _json(OFF)
    return _json(await run_in_threadpool(state, panel.app, panel.hub))


async def _events(panel: Panel, request: Request) -> Response:
    hub = panel.hub
    cursor, reset = _start(hub, request)
    memory_map = _is_set(request, "map")
    if _is_set(request, "poll"):
        return _json(polled(hub, cursor, reset, memory_map))
    return EventStream(hub, cursor, reset, memory_map)


def _is_set(request: Request, name: str) -> bool:
    return request.query_params.get(name, "0") not in ("", "0")


def _start(hub: Hub, request: Request) -> tuple[int, bool]:
    """Where to read on: the cursor, and whether what the client has is of another process and worth nothing."""
    asked = whole_number(request, "since", hub.timeline.cursor, MAX_CURSOR)
    last = request.headers.get("last-event-id", "")
    if last.isascii() and last.isdigit():
        asked = min(int(last), MAX_CURSOR)
    foreign = request.query_params.get("stream", hub.stream_id) != hub.stream_id or asked > hub.timeline.cursor
    return (hub.timeline.after(-1, 0).cursor, True) if foreign else (asked, False)


async def _mode(panel: Panel, request: Request) -> Response:
    body = await read_json(request)
    scope = body.pop("scope", None)
    if scope is not None and scope not in SCOPES:
        raise UsageError("scope has a value that is not allowed", found=scope, do="Use one of: " + ", ".join(SCOPES) + ".")
    return await run_in_threadpool(_set_mode, panel.app, body, scope)


def _set_mode(app: PanelApp, body: dict[str, Any], scope: str | None) -> Response:
    controller = app.controller
    wanted = scope or ("job" if controller.state()["in_job"] else "standing")
    if wanted == "standing":
        _check_remote_control(app, "The standing mode")
    requested = None
    try:
        requested = parse_mode_request(body, controller.effective() if "mode" not in body else None)
        return _json(controller.request(requested, wanted).to_json())
    except VramPilotError as error:
        answer = {
            "requested": None if requested is None else requested.to_json(),
            "effective": controller.effective().to_json(),
            "applies": None,
            "refusal": str(error),
        }
        return _json({**error.to_json(), **answer}, error.http_status)


async def _list(panel: Panel, request: Request) -> Response:
    limit = whole_number(request, "limit", 50, MAX_LISTED)
    offset = whole_number(request, "offset", 0, MAX_CURSOR)
    return _json(await run_in_threadpool(sessions.listed, panel.app, limit, offset))


async def _compare(panel: Panel, request: Request) -> Response:
    first, second = (request.query_params.get(name) for name in ("a", "b"))
    if not first or not second:
        raise UsageError("Two sessions are needed", do="Name them as ?a=ID&b=ID.")
    return _json(await run_in_threadpool(sessions.compared, panel.app, first, second))


async def _show(panel: Panel, request: Request) -> Response:
    return _json(await run_in_threadpool(sessions.get, panel.app, request.path_params["id"]))


async def _delete(panel: Panel, request: Request) -> Response:
    _check_remote_control(panel.app, "A session")
    session_id = request.path_params["id"]
    await run_in_threadpool(sessions.delete, panel.app, session_id)
    return _json({"deleted": session_id})


async def _report(panel: Panel, request: Request) -> Response:
    session_id, name = request.path_params["id"], request.query_params.get("format", "html")
    content, media_type = await run_in_threadpool(sessions.report, panel.app, session_id, name)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": REPORT_POLICY}
    if name != "html" or _is_set(request, "download"):
        headers["Content-Disposition"] = f'attachment; filename="{sessions.file_name(session_id, name)}"'
    return Response(content, media_type=media_type, headers=headers)


async def _asset(panel: Panel, request: Request) -> Response:
    name = request.path_params["name"]
    path = assets.FILES.get(name)
    if path is None:
        raise NotFoundError("There is no such file here", found=name)
    content = await run_in_threadpool(path.read_bytes)
    return Response(content, media_type=assets.media_type(name), headers={"Cache-Control": "no-cache"})


_ENDPOINTS = (
    _Endpoint("GET", f"{V1}/state", _state, answers_off=True),
    _Endpoint("GET", f"{V1}/events", _events),
    _Endpoint("POST", f"{V1}/mode", _mode),
    _Endpoint("GET", f"{V1}/sessions", _list),
    _Endpoint("GET", f"{V1}/sessions/compare", _compare),
    _Endpoint("GET", f"{V1}/sessions/{{id}}", _show),
    _Endpoint("DELETE", f"{V1}/sessions/{{id}}", _delete),
    _Endpoint("GET", f"{V1}/sessions/{{id}}/report", _report),
    _Endpoint("GET", "/vram-pilot/assets/{name:path}", _asset, answers_off=True),
)
#: Every route as (method, path), in the order of registration.
ROUTES = tuple((endpoint.method, endpoint.path) for endpoint in _ENDPOINTS)


# -------------------------------------------------------------------------------------------------------- registration


def register(fastapi_app: Starlette, app: PanelApp, auth: Auth) -> Panel:
    """Puts the routes on the host's server, in the place of those that an earlier call put there."""
    routes = fastapi_app.router.routes
    for old in [route for route in routes if isinstance(route, PanelRoute)]:
        old.panel.close()
        routes.remove(old)
    panel = Panel(app, auth)
    for path in dict.fromkeys(endpoint.path for endpoint in _ENDPOINTS):
        routes.append(PanelRoute(panel, path, {e.method: e for e in _ENDPOINTS if e.path == path}))
    return panel


class PanelRoute(Route):
    """One address of ours. Its type is how a later registration knows it."""

    def __init__(self, panel: Panel, path: str, by_method: dict[str, _Endpoint]) -> None:
        super().__init__(path, _guarded(panel, by_method), methods=list(METHODS), include_in_schema=False)
        self.panel = panel


def _guarded(panel: Panel, by_method: dict[str, _Endpoint]) -> Any:
    """An endpoint that obeys the host's login, refuses other sites' pages, and answers every error as JSON."""

    async def answer(request: Request) -> Response:
        try:
            panel.auth.check(request)
            endpoint = by_method.get(request.method)
            if endpoint is None:
                raise MethodError("Not with this method", found=request.method, do="Use " + " or ".join(by_method) + ".")
            if endpoint.method != "GET":
                check_own_request(request, panel.auth.allowed_hosts)
            if panel.app.off and not endpoint.answers_off:
                raise RefusedError("VRAM Pilot is off", do="Start the host without --vram-pilot-off.")
            return await endpoint.handler(panel, request)
        except VramPilotError as error:
            return _error(error, off=panel.app.off)
        except Exception as error:  # the gate: a fault of ours must reach the caller as an answer, and the log once
            log.exception("VRAM Pilot: %s %s failed", request.method, request.url.path)
            return _error(VramPilotError("This did not work", found=type(error).__name__, do="The host's log says more."))

    return answer


def _check_remote_control(app: PanelApp, what: str) -> None:
    if not app.remote_control_allowed():
        raise ForbiddenError(
            f"{what} holds for everybody who uses this server, so it cannot be changed from here",
            do="Start the host with --vram-pilot-allow-remote-control, or choose the mode of your own job.",
        )


def _json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    every = {"Cache-Control": "no-store", **(headers or {})}
    return Response(dumps(content), status_code=status, headers=every, media_type="application/json")


def _error(error: VramPilotError, *, off: bool = False) -> Response:
    challenge = error.challenge if isinstance(error, LoginNeededError) else None
    headers = {} if challenge is None else {"WWW-Authenticate": challenge}
    return _json({**error.to_json(), **({"off": True} if off else {})}, error.http_status, headers)
