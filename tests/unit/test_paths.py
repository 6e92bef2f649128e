"""Where state is kept when no host names a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from vram_pilot.paths import default_state_dir

HOME = Path("/home/someone")


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({}, "linux", HOME / ".local/share/vram-pilot"),
        ({"XDG_DATA_HOME": "/data"}, "linux", Path("/data/vram-pilot")),
        ({}, "darwin", HOME / "Library/Application Support/vram-pilot"),
        ({"LOCALAPPDATA": "/c/Local"}, "win32", Path("/c/Local/vram-pilot")),
        ({}, "win32", HOME / "AppData/Local/vram-pilot"),
        ({"VRAM_PILOT_DATA_DIR": "/elsewhere", "XDG_DATA_HOME": "/data"}, "linux", Path("/elsewhere")),
        ({"VRAM_PILOT_DATA_DIR": ""}, "linux", HOME / ".local/share/vram-pilot"),
    ],
)
def test_folder(environ: dict[str, str], platform: str, expected: Path) -> None:
    assert default_state_dir(environ, platform, HOME) == expected


def test_nothing_is_created(tmp_path: Path) -> None:
    folder = default_state_dir({}, "linux", tmp_path)
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []
