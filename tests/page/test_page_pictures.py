"""Key views, compared with pictures of them.

The letters of machines differ, so the pictures are compared only where letters are drawn as on the machine that took
them. After a change that is meant, STAGETREE_TEST_PICTURES=1 takes them again: look at them before you commit them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.large_study import STUDY, whole

PICTURES = Path(__file__).parent / "pictures"
LETTERS = PICTURES / "letters.txt"
TAKES = bool(os.environ.get("STAGETREE_TEST_PICTURES"))
VIEWS = ("", "trials", "curves", "tree", "tree/rungs", "tree/stages", "importance", "timeline")
LOOKS = [*((view, "light", 1280) for view in VIEWS), ("", "dark", 1280), ("", "light", 390)]
MOST_DIFFERENT = 0.01
"""The largest part of the pixels that may differ, by more than `FAINT` of 255 levels of grey."""
FAINT = 40
TRIALS = 40

pytestmark = pytest.mark.slow(together=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, page_folder: Path) -> Iterator[Path]:
    """A report of a simulated study, which is the same at every run."""
    folder = tmp_path_factory.mktemp("pictures")
    whole(folder, TRIALS)
    (folder / "log.db").rename(folder / "stagetree.db")
    command = [sys.executable, "-c", "from app.cli import main; main()", "open", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        text = httpx.get(f"{found[0]}/api/v1/studies/{STUDY}/report", timeout=60).raise_for_status().text
        process.send_signal(signal.SIGINT)
    file = folder / "report.html"
    file.write_text(text, encoding="utf-8")
    yield file


@contextlib.contextmanager
def open_view(browser: Browser, address: str, theme: str, width: int) -> Iterator[Page]:
    size: Any = {"width": width, "height": 800}
    context = browser.new_context(
        viewport=size,
        color_scheme=theme,  # type: ignore[arg-type]
        timezone_id="UTC",
        locale="en-GB",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def letters(browser: Browser) -> str:
    """A hash of how this machine draws letters."""
    with open_view(
        browser, "data:text/html,<p style='font: 16px system-ui'>Hamburgefonstiv 0123456789 ✓ △ ▾</p>", "light", 400
    ) as page:
        return hashlib.sha256(page.screenshot()).hexdigest()


@pytest.mark.parametrize(("view", "theme", "width"), LOOKS)
def test_a_view_looks_as_it_did(browser: Browser, report: Path, view: str, theme: str, width: int) -> None:
    image = pytest.importorskip("PIL.Image")
    chops = pytest.importorskip("PIL.ImageChops")
    if TAKES:
        PICTURES.mkdir(exist_ok=True)
        LETTERS.write_text(letters(browser))
    elif not LETTERS.is_file() or LETTERS.read_text() != letters(browser):
        pytest.skip("letters are drawn in another way on this machine")
    with open_view(browser, f"{report.as_uri()}#/studies/{STUDY}/{view}", theme, width) as page:
        expect(page.locator("main .panel").first).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        page.wait_for_timeout(300)  # drawings follow in the next frame
        taken = image.open(io.BytesIO(page.screenshot())).convert("L")
    taken = taken.resize((taken.width // 2, taken.height // 2))
    file = PICTURES / f"{view.replace('/', '-') or 'overview'}-{theme}-{width}.png"
    if TAKES:
        taken.save(file, optimize=True)
        return
    before = image.open(file)
    assert before.size == taken.size
    different = sum(chops.difference(before, taken).point(lambda level: int(level > FAINT)).tobytes())
    assert different / (taken.width * taken.height) < MOST_DIFFERENT, f"{file.name} looks different"
