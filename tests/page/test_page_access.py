"""A server that needs a token, in the browser: by an address that has one, or by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.domain.terms import Scope
from app.main import create_app
from app.service.access import create
from app.settings import Settings
from tests.api.world import STUDY, serving

TRAINER = 'from stagetree import Trainer\n\nclass Digits(Trainer):\n    name = "digits"\n    version = "1"\n'


@pytest.fixture
def guarded(sqlite_url: str, tmp_path: Path, built: Path) -> Iterator[tuple[str, str]]:
    """The address of a server that needs a token of everybody, and a token of a study's owner."""
    import httpx

    (tmp_path / "trainer.py").write_text(TRAINER)
    how = {"database_url": sqlite_url, "broker_url": "memory://", "trainers": str(tmp_path / "trainer.py")}
    app = create_app(Settings(access="always", **how))
    token = create(app.state.services.records, "anna", Scope.SUBMIT, "", 1, time.time())
    with serving(app) as url:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(f"{url}/api/v1/studies", json=STUDY, headers=headers)
        assert answer.status_code == 201, answer.text
        yield url, token


def test_an_address_with_a_token_signs_in_and_forgets_it(
    open_page: Callable[..., Page], guarded: tuple[str, str]
) -> None:
    url, token = guarded
    page = open_page(f"{url}/#token={token}")
    page.get_by_role("link", name="digits-again").click()
    expect(page.get_by_role("heading", name="digits-again")).to_be_visible()
    assert token not in page.evaluate("location.href + document.cookie + JSON.stringify(localStorage)")
    page.reload()
    expect(page.get_by_role("heading", name="digits-again")).to_be_visible()
    # It is followed and changed with the cookie alone.
    page.locator(".acts").get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator("header.study")).to_contain_text("paused")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.locator("ol.events")).to_contain_text("by anna")


def test_without_one_the_page_asks_for_it(open_page: Callable[..., Page], guarded: tuple[str, str]) -> None:
    url, token = guarded
    page = open_page(url)
    box = page.get_by_role("textbox", name="Token")
    box.fill("nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This token lets nobody in")
    box.fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="digits-again")).to_be_visible()
