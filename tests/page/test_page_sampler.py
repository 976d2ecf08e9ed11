"""The view of a sampler: what it knows and proposes, and suggestions that are made and withdrawn there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from addresses import turn_to
from playwright.sync_api import Page, expect
from stacks import Service
from toys import grid

from tests.page.test_page_views import complaints

SPACE = {"lr": {"loguniform": [0.001, 1]}, "momentum": [0.5, 0.9]}


def one_rung(number: int, steps: int, **more: Any) -> dict[str, Any]:
    return {"kind": "asha", "num_trials": number, "min_steps": steps, "max_steps": steps, **more}


@pytest.mark.slow
def test_what_a_sampler_proposed_and_would_propose(open_page: Callable[..., Page], stack: Service, axe: str) -> None:
    spec = grid("page-trunks", space=SPACE, tuner=one_rung(6, 6, sampler="trunks"), suggestions=[{"lr": 0.25}])
    study = stack.run(spec)["study"]
    page = open_page(f"{stack.url}/#/studies/{study}")
    page.get_by_role("link", name="Sampler", exact=True).click()
    told = page.get_by_role("region", name="Sampler", exact=True)
    expect(told).to_contain_text("Trunks models 6 results at step 6.")
    expect(told).to_contain_text("6 of 6 trials have begun.")
    page.locator(".acts").get_by_role("button", name="Reopen").click()
    expect(page.get_by_role("dialog")).to_contain_text("Trials in all")
    page.get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("region", name="Suggestions")).to_contain_text("No more are taken: it is over.")
    expect(page.get_by_role("region", name="Proposed so far")).to_contain_text("Suggestion 0")
    expect(page.get_by_role("region", name="Proposed so far")).to_contain_text("Priced at")
    expect(page.get_by_role("button", name="Suggest")).to_have_count(0)
    assert complaints(page, axe) == []
    turn_to(page, f"#/studies/{study}/sampler?at=2")
    expect(told).to_contain_text("draws at random until it has 4 results, and has 0 results")
    expect(page.get_by_role("region", name="Proposed so far")).to_contain_text("No trial has begun.")


@pytest.mark.slow
def test_a_suggestion_is_made_and_withdrawn(open_page: Callable[..., Page], stack: Service, axe: str) -> None:
    study = stack.submit(grid("page-suggest", seconds=0.05, space=SPACE, tuner=one_rung(20, 4000)))
    stack.client.pause(study)
    page = open_page(f"{stack.url}/#/studies/{study}/sampler", width=360)
    suggestions = page.get_by_role("region", name="Suggestions")
    expect(suggestions).to_contain_text("Nothing was suggested.")
    suggestions.get_by_role("button", name="Suggest").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Values").fill("lr = 7")
    dialog.get_by_role("button", name="Suggest it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("suggestions[0].lr must be a number from 0.001 to 1")
    dialog.get_by_label("Values").fill("lr = 0.125\nmomentum = 0.9")
    dialog.get_by_role("button", name="Suggest it").click()
    expect(dialog).to_contain_text("It is suggestion 0")
    dialog.get_by_role("button", name="Close").click()
    expect(suggestions).to_contain_text("waits for the next place")
    assert stack.client.suggestions(study)[0]["hp"] == {"lr": 0.125, "momentum": 0.9}
    expect(page.get_by_role("region", name="Next proposal")).to_contain_text("Suggestion 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert complaints(page, axe) == []
    suggestions.get_by_role("button", name="Withdraw suggestion 0").click()
    dialog.get_by_role("button", name="Withdraw it").click()
    expect(dialog).to_contain_text("it does not become a trial")
    dialog.get_by_role("button", name="Close").click()
    expect(suggestions).to_contain_text("withdrawn")
    stack.client.cancel(study)
