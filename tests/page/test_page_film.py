"""The film of a study on the page: played, stepped through, saved, and still for users who want no motion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect
from stacks import Service
from toys import grid

ASHA = {"kind": "asha", "num_trials": 8, "min_steps": 2, "max_steps": 8, "reduction_factor": 2, "sampling_seed": 1}


@pytest.fixture(scope="module")
def study(stack: Service) -> str:
    return str(stack.run(grid("page-film", tuner=ASHA))["study"])


def visible_parts(page: Page) -> Locator:
    """The visible parts of the film."""
    return page.locator(".film [data-frame][visibility=visible]")


@pytest.mark.slow
def test_it_plays_to_the_winner(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}")
    page.get_by_role("link", name="film").click()
    slider = page.get_by_role("slider", name="Moment of the film")
    expect(slider).to_have_value("120")
    expect(visible_parts(page).first).to_be_attached()
    whole = visible_parts(page).count()
    slider.fill("0")
    expect(visible_parts(page)).to_have_count(0)
    page.get_by_role("button", name="Next moment").click()
    expect(visible_parts(page).first).to_be_attached()
    assert visible_parts(page).count() < whole
    slider.fill("0")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(slider).to_have_value("120")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(visible_parts(page)).to_have_count(whole)


@pytest.mark.slow
def test_both_files_are_saved(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/film")
    with page.expect_download() as file:
        page.get_by_role("button", name="Save as SVG").click()
    assert "prefers-reduced-motion" in file.value.path().read_text()
    with page.expect_download() as file:
        page.get_by_role("link", name="Save as GIF").click()
    assert file.value.path().read_bytes().startswith(b"GIF89a")


def test_who_wants_no_motion_steps(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page("about:blank")
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{stack.url}/#/studies/{study}/film")
    expect(page.get_by_role("button", name="Previous moment")).to_be_visible()
    expect(page.get_by_role("button", name="Play")).to_have_count(0)
    expect(visible_parts(page).first).to_be_attached()
    before = visible_parts(page).count()
    page.get_by_role("button", name="Previous moment").click()
    moment = page.get_by_role("slider", name="Moment of the film")
    expect(moment).not_to_have_value("120")
    moment.press("Home")  # at its end, a study may only verify, which a film does not show
    expect(visible_parts(page)).not_to_have_count(before)
