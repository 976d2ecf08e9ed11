"""The built page in the system's Chromium. Without one, CI fails and names the package; a laptop skips."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsers import EXPECTED, skip_without
from locks import alone
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from stacks import ROOT

PAGE = ROOT / "app" / "page"
PATIENCE = 180_000
"""Milliseconds. No test asserts the speed of a page."""

expect.set_options(timeout=PATIENCE)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def page_folder() -> Path:
    """The page, built from the current sources."""
    command = [sys.executable, str(ROOT / "hatch_build.py")]
    with alone(PAGE / "package.json"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        skip_without(f"the page cannot be built: {done.stderr}")
    return PAGE / "dist"


@pytest.fixture(scope="session")
def axe(page_folder: Path) -> str:
    """The script of axe, which finds barriers, from npm like the page's other packages."""
    script = PAGE / "node_modules" / "axe-core" / "axe.min.js"
    with alone(PAGE / "package.json"):
        if not script.is_file():
            subprocess.run([sys.executable, str(ROOT / "hatch_build.py"), "ci"], check=True)
        return script.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser(page_folder: Path) -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        skip_without("the page's tests need a browser: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def errors() -> list[str]:
    """The complaints of browsers in the test, which must be empty at its end."""
    return []


@pytest.fixture
def open_page(browser: Browser, errors: list[str]) -> Iterator[Callable[..., Page]]:
    """Open a new page in its own browser context, with a width and a theme."""
    contexts: list[BrowserContext] = []

    def make(url: str, *, width: int = 1280, height: int = 800, theme: str = "light") -> Page:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: errors.extend(complaint(message)))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield make
    for context in contexts:
        for page in context.pages:
            page.unroute_all(behavior="wait")
        context.close()
    assert errors == []


def complaint(message: ConsoleMessage) -> list[str]:
    is_expected = any(text in message.text for text in EXPECTED)
    return [message.text] if message.type in ("error", "warning") and not is_expected else []
