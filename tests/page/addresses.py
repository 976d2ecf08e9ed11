"""The address of a page, and the actions on a study."""

from __future__ import annotations

from playwright.sync_api import Page, expect

TURN = """(hash) => new Promise((taken) => {
  addEventListener("hashchange", () => taken(), { once: true });
  location.hash = hash;
})"""


def turn_to(page: Page, hash: str) -> None:
    """Change the part after the #, and return when the page shows it.

    `Page.goto` returns before: the view from before is still there to a busy browser, and two changes are one.
    """
    page.evaluate(TURN, hash)


def choose(page: Page, action: str) -> None:
    """Press the button of an action on the study, which may be in the menu."""
    expect(page.locator(".acts")).to_be_visible()
    button = page.locator(".acts").get_by_role("button", name=action, exact=True)
    if not button.is_visible():
        page.locator(".acts summary").filter(has_text="Actions").click()
    button.click()


def expect_report(page: Page, text: str) -> None:
    """The dialog is closed, and a message reports the action."""
    expect(page.locator(".toast").filter(has_text=text)).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
