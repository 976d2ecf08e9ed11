"""A server that needs a token, in the browser: by an address that has one, or by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from addresses import expect_report
from playwright.sync_api import Page, expect

from app.domain.terms import Scope
from app.main import create_app
from app.service.access import create
from app.settings import Settings
from tests.api.world import STUDY, serving, study_file

TRAINER = 'from stagetree import Trainer\n\nclass Digits(Trainer):\n    name = "digits"\n    version = "1"\n'


@pytest.fixture
def guarded_server(sqlite_url: str, tmp_path: Path, page_folder: Path) -> Iterator[tuple[str, str, str]]:
    """The address of a server that requires tokens, a token of a study's owner, and one to read."""
    import httpx

    (tmp_path / "trainer.py").write_text(TRAINER)
    how = {"database_url": sqlite_url, "broker_url": "memory://", "trainers": str(tmp_path / "trainer.py")}
    app = create_app(Settings(access="always", **how))
    token = create(app.state.services.records, "anna", Scope.SUBMIT, "", 1, time.time())
    reading = create(app.state.services.records, "ben", Scope.READ, "", 1, time.time())
    with serving(app) as url:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(f"{url}/api/v1/studies", json=STUDY, headers=headers)
        assert answer.status_code == 201, answer.text
        yield url, token, reading


@pytest.mark.slow
def test_an_address_with_a_token_signs_in_and_forgets_it(
    open_page: Callable[..., Page], guarded_server: tuple[str, str, str]
) -> None:
    url, token, _ = guarded_server
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
    expect_report(page, "The study is paused.")
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.locator("ol.events")).to_contain_text("by anna")


@pytest.mark.slow
def test_without_one_the_page_asks_for_it(open_page: Callable[..., Page], guarded_server: tuple[str, str, str]) -> None:
    url, token, _ = guarded_server
    page = open_page(url)
    box = page.get_by_role("textbox", name="Token")
    box.fill("nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This token is not valid")
    box.fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="digits-again")).to_be_visible()


@pytest.mark.slow
def test_who_may_only_read_sees_suggestions_and_no_buttons(
    open_page: Callable[..., Page], guarded_server: tuple[str, str, str]
) -> None:
    import httpx

    url, token, reading = guarded_server
    tuner = {"kind": "asha", "num_trials": 4, "min_steps": 10, "max_steps": 40}
    body = study_file(name="searched", space={"lr": {"loguniform": [0.1, 1]}}, tuner=tuner, suggestions=[{"lr": 0.5}])
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.post(f"{url}/api/v1/studies", json=body, headers=headers).status_code == 201
    for holder, number in ((token, 1), (reading, 0)):
        page = open_page(f"{url}/#token={holder}")
        page.get_by_role("link", name="searched").click()
        page.locator("nav.views summary").click()
        page.get_by_role("link", name="Sampler", exact=True).click()
        suggestions = page.get_by_role("region", name="Suggestions")
        expect(suggestions).to_contain_text("0.5")
        expect(page.get_by_role("region", name="Next proposal")).to_contain_text("Suggestion 0")
        expect(suggestions.get_by_role("button", name="Suggest", exact=True)).to_have_count(number)
        expect(suggestions.get_by_role("button", name="Withdraw")).to_have_count(number)
        if holder == token:
            suggestions.get_by_role("button", name="Suggest", exact=True).click()
            page.get_by_role("dialog").get_by_label("Values").fill("lr = 0.25")
            expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("40 new steps of 40")
