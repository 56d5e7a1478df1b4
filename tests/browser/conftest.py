"""A real Chromium, headless, that may reach nothing but the node under test.

Nodes are shared by the tests of a module: each test makes topics and groups under names of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.node import ChronikNode

CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DEADLINE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with its module: while Playwright runs, its event loop keeps other tests from having their own."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CANDIDATES)), None)
    if found is None:
        pytest.fail(
            "The console's tests need a browser: install Chromium, on Debian with apt install chromium."
        )
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(FLAGS), headless=True)
        yield started
        started.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    server = ChronikNode(tmp_path_factory.mktemp("node"))
    with server:
        yield server


@pytest.fixture(scope="module")
def base(node: ChronikNode) -> str:
    return f"http://127.0.0.1:{node.settings['http_port']}"


class Watched:
    """What a page did that it should not have done."""

    def __init__(self, page: Page, base: str) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.may_fail = False
        """Set while the node is away on purpose: the browser itself reports every refused request."""
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._request(request.url, base))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not (self.may_fail and "Failed to load" in message.text):
            self.errors.append(message.text)

    def _request(self, url: str, base: str) -> None:
        if not url.startswith((base, "data:", "blob:")):
            self.strangers.append(url)


@pytest.fixture
def watched(page: Page, base: str) -> Iterator[Watched]:
    watched = Watched(page, base)
    yield watched
    assert watched.errors == []
    assert watched.strangers == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme="light")
    context.set_default_timeout(DEADLINE_MS)
    yield context.new_page()
    context.close()
