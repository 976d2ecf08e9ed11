"""The list of studies: found by words, chosen, and compared beside each other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from addresses import expect_report, turn_to
from playwright.sync_api import Page, expect
from stacks import Service
from toys import grid, trials

from stagetree.study import Study
from tests.page.test_page_views import VIEWS, complaints


@pytest.mark.slow
def test_studies_are_found_chosen_and_compared(open_page: Callable[..., Page], stack: Service, axe: str) -> None:
    """The second study has the plan of the first, so all of its steps are trained."""
    spec = grid("page-compared")
    first, second = (stack.run(spec | {"name": f"page-compared-{name}"}) for name in "ab")
    other = stack.run(grid("page-apart"))["study"]
    page = open_page(stack.url)
    page.get_by_role("searchbox", name="Find a study").fill("page-compared state:completed")
    expect(page.get_by_role("checkbox")).to_have_count(2)
    page.get_by_role("checkbox", name=f"Choose {first['study']}").check()
    expect(page.get_by_text("select another study to compare")).to_be_visible()
    page.get_by_role("checkbox", name=f"Choose {second['study']}").check()
    page.get_by_role("link", name="Compare them").click()
    expect(page.get_by_role("heading", name="2 studies")).to_be_visible()
    expect(page.get_by_role("row", name=second["study"])).to_contain_text(str(second["cost"]["known"]))
    expect(page.get_by_role("row", name=second["study"])).to_contain_text("A")
    expect(page.get_by_role("img", name="Best score of 2 studies against slots")).to_be_visible()
    assert second["cost"]["known"] == first["cost"]["run"] and complaints(page, axe) == []
    turn_to(page, f"#/compare?studies={first['study']},{other}")
    expect(page.get_by_text("No two of these studies share a search plan")).to_be_visible()
    page.get_by_role("link", name="select others").click()
    expect(page).to_have_url(re.compile(f"studies={first['study']}"))
    page.get_by_role("searchbox", name="Find a study").fill("nothing-of-this-name")
    expect(page.get_by_text("studies matches")).to_be_visible()


@pytest.mark.slow
def test_the_list_says_what_failed_when_and_that_nothing_was_saved(
    open_page: Callable[..., Page], stack: Service
) -> None:
    """Once a failed trial was not shown, and 0 % was as green as a success."""
    failed = stack.run(trials("page-listed", ({"mood": "raise"}, 2), ({}, 2)))["study"]
    for width in (1280, 390):
        page = open_page(stack.url, width=width)
        expect(page.get_by_role("searchbox", name="Find a study")).to_have_attribute(
            "placeholder", re.compile("^Search")
        )
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(failed)))
        expect(row).to_contain_text("▲ 1 failed")
        expect(row).to_contain_text(re.compile(r"\d+ \w{3} 20\d\d, \d\d:\d\d"))
        expect(row.get_by_text("0 %").first).to_have_class("n quiet")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        row.get_by_role("link", name="1 failed").click()
        expect(page.get_by_role("heading", name="1 of 2 trials")).to_be_visible()


@pytest.mark.slow
def test_keys_search_go_through_rows_and_to_other_views(open_page: Callable[..., Page], stack: Service) -> None:
    study = stack.run(trials("page-keys", ({}, 2), ({"lr": 0.5}, 2)))["study"]
    page = open_page(f"{stack.url}/#/studies/{study}/trials")
    expect(page.get_by_role("row")).to_have_count(3)
    links = page.locator(".rows .body a")
    for key, place in (("j", 0), ("j", 1), ("k", 0)):
        page.keyboard.press(key)
        top = page.evaluate("document.activeElement.getBoundingClientRect().top")
        tops = sorted(links.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().top)"))
        assert top == tops[place]
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Filter")).to_be_focused()
    page.keyboard.type("gs")
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("gs")
    page.keyboard.press("Tab")
    for keys, heading in (("ge", "Events"), ("go", "Best trial"), ("gs", "Studies")):
        for key in keys:
            page.keyboard.press(key)
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    page.keyboard.press("?")
    expect_report(page, "/ search")


# Studies with several metrics, and averages: the page shows the front, and a node that several states lead to.


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
        expect(told).to_contain_text("0 violate score <= 1e9")
        expect(told.get_by_role("link", name=f"trial {front[0]['trial']}", exact=True)).to_be_visible()
        expect(page.get_by_text("◆ mean of the states at the dotted lines")).to_be_visible()
        turn_to(page, f"#/studies/{name}/trials/8")
        expect(page.get_by_role("region", name="Trial 8")).to_contain_text(
            "It starts from the mean of trial 0 at step 12"
        )
    turn_to(page, f"#/studies/{name}")
    assert complaints(page, axe) == []


# The view of a sampler: its model, its proposals, and trials that are enqueued and withdrawn there.


SPACE = {"lr": {"loguniform": [0.001, 1]}, "momentum": [0.5, 0.9]}


def one_rung(number: int, steps: int, **more: Any) -> dict[str, Any]:
    return {"kind": "asha", "num_trials": number, "min_steps": steps, "max_steps": steps, **more}


@pytest.mark.slow
def test_what_a_sampler_proposed_and_would_propose(open_page: Callable[..., Page], stack: Service, axe: str) -> None:
    spec = grid("page-trunks", space=SPACE, tuner=one_rung(6, 6, sampler="trunks"), suggestions=[{"lr": 0.25}])
    study = stack.run(spec)["study"]
    page = open_page(f"{stack.url}/#/studies/{study}")
    page.locator("nav.views summary").click()
    page.get_by_role("link", name="Sampler", exact=True).click()
    told = page.get_by_role("region", name="Sampler", exact=True)
    expect(told).to_contain_text("Trunks models 6 results at the last step of each trial.")
    expect(told).to_contain_text("6 of 6 trials have begun.")
    page.locator(".acts").get_by_role("button", name="Reopen").click()
    expect(page.get_by_role("dialog")).to_contain_text("Trials in all")
    page.get_by_role("button", name="Back").click()
    expect(page.get_by_role("region", name="Suggestions")).to_contain_text(
        "No more suggestions are accepted: it is over."
    )
    expect(page.get_by_role("region", name="Recent proposals")).to_contain_text("Suggestion 0")
    expect(page.get_by_role("region", name="Recent proposals")).to_contain_text("Priced at")
    expect(page.get_by_role("button", name="Suggest")).to_have_count(0)
    assert complaints(page, axe) == []
    turn_to(page, f"#/studies/{study}/sampler?at=2")
    expect(told).to_contain_text("draws at random until it has 4 results, and has 0 results")
    expect(page.get_by_role("region", name="Recent proposals")).to_contain_text("No trial has started.")


@pytest.mark.slow
def test_a_suggestion_is_made_and_withdrawn(open_page: Callable[..., Page], stack: Service, axe: str) -> None:
    study = stack.submit(grid("page-suggest", seconds=0.05, space=SPACE, tuner=one_rung(20, 4000)))
    stack.client.pause(study)
    page = open_page(f"{stack.url}/#/studies/{study}/sampler", width=360)
    suggestions = page.get_by_role("region", name="Suggestions")
    expect(suggestions).to_contain_text("No suggestions.")
    suggestions.get_by_role("button", name="Suggest").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Values").fill("lr = 7")
    dialog.get_by_role("button", name="Suggest it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("suggestions[0].lr must be a number from 0.001 to 1")
    dialog.get_by_label("Values").fill("lr = 0.125\nmomentum = 0.9")
    dialog.get_by_role("button", name="Suggest it").click()
    expect_report(page, "Saved as suggestion 0")
    expect(suggestions).to_contain_text("queued")
    assert stack.client.suggestions(study)[0]["hp"] == {"lr": 0.125, "momentum": 0.9}
    expect(page.get_by_role("region", name="Next proposal")).to_contain_text("Suggestion 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert complaints(page, axe) == []
    suggestions.get_by_role("button", name="Withdraw suggestion 0").click()
    dialog.get_by_role("button", name="Withdraw it").click()
    expect_report(page, "will not become a trial")
    expect(suggestions).to_contain_text("withdrawn")
    stack.client.cancel(study)


# A study as one file: the report of `stagetree report` shows every view without a server or a request.


ASHA = {"kind": "asha", "num_trials": 6, "min_steps": 2, "max_steps": 8, "reduction_factor": 2, "sampling_seed": 1}
REPORTED = {view: heading for view, heading in VIEWS.items() if not view.startswith("moments")}
REPORTED |= {"trials": "6 trials", "importance": "Sequences by shape", "events?event=1": "Events"}
REPORTED |= {"compare?trials=0,1": "Schedules"}
"""The views of a report, each with a heading that it has."""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--public"]], ids=["whole", "public"])
def test_a_report_shows_every_view_without_a_server(
    open_page: Callable[..., Page], stack: Service, tmp_path: Path, options: list[str]
) -> None:
    study = str(stack.run(grid("page-report", tuner=ASHA))["study"])
    file = tmp_path / "report.html"
    command = [sys.executable, "-m", "stagetree", "report", study, "--server", stack.url, "--to", str(file), *options]
    subprocess.run(command, check=True)
    page, asked = open_page("about:blank"), list[str]()
    page.context.set_offline(True)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    for view, heading in REPORTED.items():
        turn_to(page, f"#/studies/{study}/{view}")
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert page.get_by_role("link", name="the study at this event").count() == 0
