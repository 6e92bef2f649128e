"""What the panel's browser tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.panel import Watched, watched
from tests.fakes.panel_app import FakeApp


@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def app(tmp_path: Path) -> FakeApp:
    return FakeApp(tmp_path)


@pytest.fixture
def seen(browser: Browser, app: FakeApp) -> Iterator[Watched]:
    with watched(browser, app) as page_:
        yield page_
