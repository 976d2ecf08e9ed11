"""The list of studies: found by words, chosen, and compared beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from addresses import turn_to
from playwright.sync_api import Page, expect
from stacks import Service
from toys import grid

from tests.page.test_page_views import complaints


@pytest.mark.slow
def test_studies_are_found_chosen_and_compared(open_page: Callable[..., Page], stack: Service, axe: str) -> None:
    """The second one has the plan of the first, so that all it wants is trained already."""
    spec = grid("page-compared")
    first, second = (stack.run(spec | {"name": f"page-compared-{name}"}) for name in "ab")
    other = stack.run(grid("page-apart"))["study"]
    page = open_page(stack.url)
    page.get_by_role("searchbox", name="Find a study").fill("page-compared state:completed")
    expect(page.get_by_role("checkbox")).to_have_count(2)
    page.get_by_role("checkbox", name=f"Choose {first['study']}").check()
    expect(page.get_by_text("choose another one to compare them")).to_be_visible()
    page.get_by_role("checkbox", name=f"Choose {second['study']}").check()
    page.get_by_role("link", name="Compare them").click()
    expect(page.get_by_role("heading", name="2 studies")).to_be_visible()
    expect(page.get_by_role("row", name=second["study"])).to_contain_text(str(second["cost"]["known"]))
    expect(page.get_by_role("row", name=second["study"])).to_contain_text("A")
    expect(page.get_by_role("img", name="Best score of 2 studies against slots")).to_be_visible()
    assert second["cost"]["known"] == first["cost"]["run"] and complaints(page, axe) == []
    turn_to(page, f"#/compare?studies={first['study']},{other}")
    expect(page.get_by_text("No two of them share a search plan")).to_be_visible()
    page.get_by_role("link", name="choose others").click()
    expect(page).to_have_url(re.compile(f"studies={first['study']}"))
    page.get_by_role("searchbox", name="Find a study").fill("nothing-of-this-name")
    expect(page.get_by_text("studies matches")).to_be_visible()
