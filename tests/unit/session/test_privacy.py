"""Case E17: no full path, and so no user name, in what is kept or exported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.privacy import base_name, redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No such file: '/srv/bob/models/a.safetensors'", "No such file: '…/a.safetensors'"),
        ("[Errno 2] C:\\Users\\Bob Smith\\models\\a.ckpt is missing", "[Errno 2] …/a.ckpt is missing"),
        ("open \\\\server\\share\\bob\\x.pt", "open …/x.pt"),
        ("see ~/sd/webui.log", "see …/webui.log"),
        ("/srv/bob/a.pt or /srv/bob/b.pt", "…/a.pt or …/b.pt"),
        ("D:/sd/outputs/", "…/"),
        ("shapes 3/4 and 512/8 differ", "shapes 3/4 and 512/8 differ"),
        ("https://example.org/a/b?c=/d/e", "https://example.org/a/b?c=…/e"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("", ""),
    ],
)
def test_paths_become_names(text: str, expected: str) -> None:
    assert redact(text) == expected


WORD = st.text(st.characters(whitelist_categories=("L", "N")), min_size=1, max_size=12)


@given(st.lists(WORD, min_size=1, max_size=5), WORD, st.sampled_from(["/", "C:\\", "\\\\"]))
def test_no_folder_survives(folders: list[str], name: str, root: str) -> None:
    separator = "/" if root == "/" else "\\"
    text = f"cannot read '{root}{separator.join([*folders, name])}' now"
    assert redact(text) == f"cannot read '…/{name}' now"


@given(st.text(max_size=3000))
def test_any_text_is_bounded(text: str) -> None:
    assert len(redact(text)) <= 500


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.safetensors", "a.safetensors"), ("sub/a.pt", "a.pt"), ("C:\\x\\a.pt", "a.pt"), ("folder/", "folder"), ("", "")],
)
def test_base_name(name: str, expected: str) -> None:
    assert base_name(name) == expected
