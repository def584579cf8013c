"""Headless Chromium for tests that look at a page as a person does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 300_000  # milliseconds: busy machines paint slowly, and nothing here is about speed
WITHOUT = "RETAPE_TEST_WITHOUT_BROWSER"  # set: these tests are skipped


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium, driven by Playwright, which brings none of its own here."""
    if os.environ.get(WITHOUT):
        pytest.skip(f"{WITHOUT} is set")
    from playwright.sync_api import sync_playwright

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(
            f"no Chromium here. Fix: tools/system_packages.sh, or {WITHOUT}=1 to look at no page"
        )
    with sync_playwright() as driver:
        # In containers there is no user namespace to put a sandbox in, and little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=path, args=arguments, timeout=PATIENCE)
        yield browser
        browser.close()


@dataclass
class Seen:
    """A page that is open, and everything that it did."""

    page: Any
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def check_was_quiet(self, path: Path) -> None:
        assert self.console == []
        assert self.errors == []
        assert self.dialogs == []
        assert self.requests == [path.as_uri()]


@contextmanager
def look(browser: Any, path: Path, width: int = 1280, **options: Any) -> Iterator[Seen]:
    """Opens `path`, with no network. `color_scheme="dark"`, `java_script_enabled=False`."""
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    seen = Seen(page)
    page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    yield seen
    context.close()
