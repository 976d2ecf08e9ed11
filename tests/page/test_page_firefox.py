"""The page in the system's Firefox: each view renders, fits, and reports no error, like in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import EXPECTED, skip_without
from firefox import Firefox, firefox
from stacks import Service
from toys import grid

from tests.page.test_page_views import ASHA, VIEWS

pytestmark = pytest.mark.night
NO_MORE_EVENTS = "can’t establish a connection to the server"
"""Its message about an event stream that the server ended."""


@pytest.fixture
def browser(page_folder: Path, tmp_path: Path) -> Iterator[Firefox]:
    binary = shutil.which("firefox-esr") or shutil.which("firefox")
    if binary is None:
        skip_without("the night's tests of the page need Firefox: apt-get install firefox-esr")
    with firefox(binary, tmp_path) as running:
        yield running


@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_shows_itself_in_firefox(browser: Firefox, stack: Service, width: int) -> None:
    study = stack.run(grid(f"page-firefox-{width}", tuner=ASHA))["study"]
    browser.resize(width, 844)
    browser.open(stack.url)
    too_wide = []
    for view, heading in VIEWS.items():
        browser.evaluate(f"location.hash = '#/studies/{study}/{view}'")
        browser.wait_for(
            f"[...document.querySelectorAll('h1, h2, h3')].some((head) => head.innerText.includes('{heading}'))"
        )
        browser.wait_for("!document.body.innerText.includes('Loading …')")
        if browser.evaluate("document.documentElement.scrollWidth") > width:
            too_wide.append(view)
    assert too_wide == []
    assert [told for told in browser.errors if not any(text in told for text in (*EXPECTED, NO_MORE_EVENTS))] == []
