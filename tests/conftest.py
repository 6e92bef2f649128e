"""What every test gets: no network, few threads, a browser that fails with a sentence where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tasks

# before torch, gradio or diffusers is imported anywhere
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name, value in tasks.QUIET.items():
    os.environ.setdefault(name, value)

BROWSER_TESTS = Path(__file__).parent / "browser"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies in tests/browser is a browser test, so that --quick leaves it out without fail."""
    for item in items:
        if BROWSER_TESTS in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The Chromium or Chrome of this machine. Fails, not skips, where there is none."""
    path = tasks.find_browser()
    if path is None:
        pytest.fail(tasks.NO_BROWSER)
    return path
