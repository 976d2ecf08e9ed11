"""Studies with several metrics, and averages: the page shows the front, and a node that several states lead to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import turn_to
from playwright.sync_api import Page, expect
from stacks import Service
from toys import grid

from stagetree.study import Study
from tests.page.test_page_views import complaints

METRICS = [{"name": "score", "mode": "max"}, {"name": "size", "mode": "min"}]


@pytest.mark.slow
def test_the_front_and_an_average_are_shown_on_the_page_and_in_a_report(
    open_page: Callable[..., Page], stack: Service, axe: str, tmp_path: Path
) -> None:
    spec = grid("page-front", metrics=METRICS, constraints=["score <= 1e9"])
    name = stack.run({key: each for key, each in spec.items() if key not in ("metric", "mode")})["study"]
    Study.open(name, url=stack.url).soup([0, 1])
    front = stack.wait(name)["front"]
    report = tmp_path / "report.html"
    report.write_text(stack.client.report(name), encoding="utf-8")
    page = open_page(stack.url)
    for address in (stack.url, report.as_uri()):
        page.goto(address)
        turn_to(page, f"#/studies/{name}")
        told = page.get_by_role("region", name="Pareto front")
        expect(told).to_contain_text(f"◆ {len(front)} on the front")
        expect(told).to_contain_text("0 break score <= 1e9")
        expect(told.get_by_role("link", name=f"trial {front[0]['trial']}", exact=True)).to_be_visible()
        expect(page.get_by_text("◆ the mean of the states that dotted lines come from")).to_be_visible()
        turn_to(page, f"#/studies/{name}/trials/8")
        expect(page.get_by_role("region", name="Trial 8")).to_contain_text(
            "It begins with the mean of trial 0 at step 12"
        )
    turn_to(page, f"#/studies/{name}")
    assert complaints(page, axe) == []
