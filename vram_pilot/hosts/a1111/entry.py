"""Puts the extension into the WebUI: one app for the process, callbacks at every load of the scripts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from modules import paths, script_callbacks, shared

from vram_pilot.app import App
from vram_pilot.errors import VramPilotError
from vram_pilot.hosts.a1111.host import A1111Host
from vram_pilot.panel.fields import takes_accelerate, takes_budget
from vram_pilot.settings import (
    ACCELERATE,
    BUDGET,
    MACHINE_SETTINGS,
    MODE,
    REQUEST_SETTINGS,
    ModeRequest,
    Setting,
    parse_mode_request,
)

log = logging.getLogger(__name__)

PREFIX = "vram_pilot_"
_SECTION, _CATEGORY = ("vram_pilot", "VRAM Pilot"), "system"

_app: App | None = None
_gradio_app: Any = None
_started = False  # the settings have given the standing mode once; a Reload UI keeps what has been chosen since


def app() -> App:
    """The app of this process; built at the first call."""
    global _app
    if _app is None:
        _app = App(
            A1111Host(_version()),
            state_dir(),
            off=bool(_flag("vram_pilot_off")),
            allow_control=_control_allowed,
            settings=_machine_settings(),
        )
    return _app


def host() -> A1111Host:
    found = app().host
    assert isinstance(found, A1111Host)
    return found


def load() -> None:
    """Called by the entry script each time the WebUI loads its scripts (at start and at every Reload UI)."""
    script_callbacks.on_app_started(_app_started)
    if not app().off:
        script_callbacks.on_before_ui(_before_ui)
        script_callbacks.on_ui_settings(_ui_settings)
        script_callbacks.on_ui_tabs(_ui_tabs)
        script_callbacks.on_script_unloaded(unload)


def unload() -> None:
    """Puts the WebUI back as it was launched."""
    app().stop()


def state_dir() -> Path:
    chosen = _flag("vram_pilot_data_dir")
    return Path(chosen).expanduser() if chosen else Path(paths.data_path) / "vram-pilot"


def _before_ui() -> None:
    """The first callback of a start, also with --nowebui, where no settings page is built."""
    from vram_pilot.hosts.a1111.xyz import add_axes

    global _started
    _ui_settings()
    app().start(None if _started else _standing())
    _started = True
    host().jobs.register_callbacks()
    add_axes()


def _ui_settings() -> None:
    from vram_pilot.panel import options

    for setting in (*REQUEST_SETTINGS, *MACHINE_SETTINGS):
        key = PREFIX + setting.key
        if key in shared.opts.data_labels or not options.is_offered(setting):
            continue
        component, arguments = options.setting_component(setting)
        default = setting.default if setting.default is not None else ""
        info = shared.OptionInfo(default, setting.label, component, arguments, section=_SECTION, category_id=_CATEGORY).info(
            setting.help
        )
        info.onchange = _standing_changed if setting in REQUEST_SETTINGS else _machine_changed
        shared.opts.add_option(key, info)


def _standing_changed() -> None:
    """The settings page changed the standing mode. A refusal is shown in the panel, and the page keeps what was chosen."""
    try:
        app().controller.request(_settings_request(strict=True), scope="standing", reason="settings")
    except VramPilotError as error:
        log.warning("VRAM Pilot: %s", error)
        app().controller.refuse(str(error))


def _machine_changed() -> None:
    app().configure(_machine_settings())


def _machine_settings() -> dict[str, Any]:
    return {setting.key: _chosen(setting) for setting in MACHINE_SETTINGS}


def _standing() -> ModeRequest:
    """The standing mode at the start: the flag's, else the settings'. What is wrong in there counts as as-launched."""
    flag = _flag("vram_pilot_mode")
    try:
        return parse_mode_request({"mode": flag}) if flag else _settings_request()
    except VramPilotError as error:
        log.warning("VRAM Pilot: %s This start is as launched.", error)
        return ModeRequest()


def _settings_request(*, strict: bool = False) -> ModeRequest:
    """What the settings ask for; a budget or a way to accelerate that the mode does not take is left over from another one.

    Raises UsageError (only when `strict`) or RefusedError.
    """
    mode = _chosen(MODE, strict=strict)
    asked = {MODE.key: mode}
    if takes_budget(mode):
        asked[BUDGET.key] = _chosen(BUDGET, strict=strict)
    if takes_accelerate(mode):
        asked[ACCELERATE.key] = _chosen(ACCELERATE, strict=strict)
    return parse_mode_request(asked)


def _chosen(setting: Setting, *, strict: bool = False) -> Any:
    """The value in the WebUI's settings, the default when there is none or, unless `strict`, it is not allowed."""
    raw = shared.opts.data.get(PREFIX + setting.key, setting.default)
    try:
        return setting.parse(raw)
    except VramPilotError as error:
        if strict:
            raise
        log.warning("VRAM Pilot: %s The default is used.", error)
        return setting.default


def _ui_tabs() -> list[tuple[Any, str, str]]:
    from vram_pilot.panel import view

    return [(view.tab(app()), "VRAM Pilot", "vram_pilot")]


def _app_started(_demo: Any, fastapi_app: Any) -> None:
    from vram_pilot.panel.auth import Auth
    from vram_pilot.panel.routes import register

    global _gradio_app
    _gradio_app = fastapi_app
    login = bool(getattr(fastapi_app, "auth", None))
    names = ("*",) if _flag("vram_pilot_allow_remote_control") else ()
    auth = Auth(lambda: _gradio_app, api_credentials(_flag("api_auth")), login, allowed_hosts=names)
    register(fastapi_app, app(), auth)


def api_credentials(flag: str | None) -> dict[str, str] | None:
    """ "user:password,user:password" as the WebUI reads --api-auth."""
    if not flag:
        return None
    pairs = (part.split(":", 1) for part in flag.split(",") if ":" in part)
    return {user: password for user, password in pairs}


def _control_allowed() -> bool:
    """Open servers need a flag before strangers may change what holds for everybody."""
    open_to_others = bool(_flag("share") or _flag("listen") or _flag("server_name") or _flag("ngrok"))
    return not open_to_others or bool(_flag("vram_pilot_allow_remote_control"))


def _flag(name: str) -> Any:
    return getattr(shared.cmd_opts, name, None)


def _version() -> str:
    try:
        from modules import launch_utils

        return str(launch_utils.git_tag())
    except Exception:  # whatever the WebUI does to find its version: the word "unknown" costs nothing
        return "unknown"
