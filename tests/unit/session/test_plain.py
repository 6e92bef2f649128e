"""Whatever an adapter passes, the session is JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram_pilot.session.facts import model_json, request_json
from vram_pilot.session.plain import plain

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.fractions()
    | st.text(st.characters(whitelist_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(ANYTHING)
def test_anything_becomes_strict_json(value: Any) -> None:
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False)
    assert json.loads(text.encode("utf-8")) == plain(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (Fraction(1, 4), 0.25),
        (Decimal("1.5"), "1.5"),
        (True, True),
        ((1, [2]), [1, [2]]),
        ("\udcff", "?"),
    ],
)
def test_values(value: object, expected: object) -> None:
    result = plain(value)
    assert result == expected
    assert type(result) is type(expected)


@given(st.dictionaries(st.sampled_from(["width", "steps", "sampler", "cfg_scale", "hires", "prompt", "n_iter"]), ANYTHING))
def test_a_request_has_its_keys_and_types_only(request: dict[str, Any]) -> None:
    known = request_json(request)
    assert set(known) == {"width", "height", "batch_size", "n_iter", "steps", "sampler", "cfg_scale", "hires"}
    assert all(known[name] is None or type(known[name]) is int for name in ("width", "height", "steps", "n_iter"))
    assert known["cfg_scale"] is None or type(known["cfg_scale"]) is float


def test_the_prompt_stays_out() -> None:
    assert "a cat" not in json.dumps(request_json({"prompt": "a cat", "hires": {"prompt": "a cat", "steps": 4}}))


def test_a_model_is_told_without_its_folder() -> None:
    model = model_json({"family": "sd1", "name": "/srv/bob/a.pt", "hash": 12})
    assert model == {"family": "sd1", "name": "a.pt", "hash": "12"}
    assert model_json("sd1") is None
