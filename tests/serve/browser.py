"""A real browser, for the page at `/`: Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="NO BROWSER: pip install playwright")
from playwright.sync_api import Browser, Page  # noqa: E402 - likewise

NAMES = ("chromium", "chromium-browser", "google-chrome")
NEEDED = "ALULA_NEEDS_BROWSER"
"""Where this is set, a machine without a browser fails."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, or the one that Playwright brought."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    # Its sandbox is not for root, who runs tests in containers.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as play:
        if found is None and not os.path.exists(play.chromium.executable_path):
            said = "NO BROWSER: the page at / was not tested; apt-get install chromium, or playwright install chromium"
            if os.environ.get(NEEDED):
                pytest.fail(said)
            pytest.skip(said)
        browser = play.chromium.launch(executable_path=found, args=args)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One page of a server, and whatever goes wrong on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        page.set_default_timeout(10_000)
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._asked(request.url, url))
        self.anew()

    def _asked(self, asked: str, ours: str) -> None:
        if urlsplit(asked).scheme not in {"data", "blob"} and not asked.startswith(ours):
            self.elsewhere.append(asked)

    def anew(self) -> None:
        """Load the page again."""
        self.page.goto(self.url)
        self.page.wait_for_selector("main[data-key]")

    def go(self, key: str) -> None:
        """Show one entry of the list."""
        self.page.click(f'nav a[data-key="{key}"]')
        self.page.wait_for_selector(f'main[data-key="{key}"]')

    def ask(self, key: str) -> str:
        """Ask a model what its form holds already; what is shown then."""
        self.go(key)
        self.page.click("main .primary")
        self.answered()
        return self.page.inner_text(".answer .shown")

    def answered(self) -> None:
        """Wait for an answer; an error is none."""
        self.page.wait_for_selector(".told.bad, .answer:not([aria-busy]) .behind details")
        assert self.page.locator(".told.bad").count() == 0, self.page.inner_text(".told.bad")
