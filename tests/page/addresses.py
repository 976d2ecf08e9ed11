"""The address of a page."""

from __future__ import annotations

from playwright.sync_api import Page

TURN = """(hash) => new Promise((taken) => {
  addEventListener("hashchange", () => taken(), { once: true });
  location.hash = hash;
})"""


def turn_to(page: Page, hash: str) -> None:
    """Change the part behind the #, and return when the page has taken it in.

    `Page.goto` returns before: the view from before is still there to a busy browser, and two changes are one.
    """
    page.evaluate(TURN, hash)
