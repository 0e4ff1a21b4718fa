"""Debian's chromium without a screen, driven by playwright; it reaches loopback alone."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium")


def explain_missing() -> str:
    """Return why there is no browser; empty: there is one."""
    if CHROMIUM is None:
        return "there is no chromium on the PATH: `make test-page` installs it on Debian"
    if find_spec("playwright") is None:
        return "playwright is not installed: `make test-page` installs it"
    return ""


@contextmanager
def open_browser() -> "Iterator[Browser]":
    """Start a browser, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            # As root there is no sandbox; what it opens here are pages of this project.
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()
