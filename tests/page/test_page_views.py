"""Every view of the page on a real server with real studies shows its data, reports no error, and fits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import choose, turn_to
from playwright.sync_api import Page, expect
from stacks import Service
from toys import grid, trials

VIEWS = {
    "": "Best trial",
    "tree": "Rung tree",
    "trials": "trials",
    "curves": "Learning curves",
    "tree/rungs": "Rung ladder",
    "tree/stages": "nodes",
    "timeline": "Slots over time",
    "importance": "Parallel coordinates",
    "events": "Events",
    "film": "Film",
    "moments?a=3": "Two moments",
    "compare?trials=0,1": "Curves",
    "trials/1": "Trial 1",
}
"""Each with a heading that it has."""

IS_IN_ORDER = """() => {
  const numbers = [...document.querySelectorAll('.rows .row')].map((row) => Number(row.ariaRowIndex));
  return numbers.every((number, index) => index === 0 || number > numbers[index - 1]);
}"""
"""Whether a screen reader reads the rows of the table in their visible order."""

ASHA = {"kind": "asha", "num_trials": 12, "min_steps": 2, "max_steps": 16, "reduction_factor": 2, "sampling_seed": 1}
ASHA |= {"distinct": False}  # the space has fewer than twelve
ASHA |= {"sampler": "random", "ties": "number"}  # so that six are promoted from rung 0, in whichever order they end


@pytest.fixture(scope="session")
def study(stack: Service) -> str:
    """A completed study with rungs and shared prefixes."""
    return str(stack.run(grid("page-views", tuner=ASHA))["study"])


def complaints(page: Page, axe: str) -> list[str]:
    """The findings of axe."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]


@pytest.mark.slow
def test_why_trials_failed_is_said_once_and_shown_under_the_name(
    open_page: Callable[..., Page], stack: Service, axe: str
) -> None:
    moods = ({"mood": "raise"}, 2), ({"mood": "raise"}, 3), ({}, 2), ({}, 3)
    failed = stack.run(trials("page-failed", *moods))["study"]
    page = open_page(f"{stack.url}/#/studies/{failed}")
    told = page.get_by_role("region", name="2 trials failed")
    expect(told).to_contain_text(
        "2 trials: ValueError: the loss went through the roof, after step 0, all with mood = raise"
    )
    expect(told).to_contain_text("in all: trials 0, 1")
    expect(page.locator(".story")).to_contain_text("of 2 results")
    expect(page.get_by_role("region", name="Best trial")).to_contain_text("Best of 2 trials with a result")
    assert complaints(page, axe) == []
    told.get_by_role("link", name="1", exact=True).click()
    shown = page.get_by_role("region", name="Trial 1")
    expect(shown.locator("pre")).to_contain_text("ValueError: the loss went through the roof")
    expect(shown).to_contain_text("0 steps of 3 trained")


@pytest.mark.slow
def test_names_in_sentences_are_code(open_page: Callable[..., Page], stack: Service) -> None:
    """Once the page showed backticks."""
    tied = stack.run(trials("page-tied", ({"mood": "fine"}, 2), ({"mood": "calm"}, 2)))["study"]
    page = open_page(f"{stack.url}/#/studies/{tied}")
    expect(page.locator(".story code")).to_have_text("mood")
    expect(page.locator(".story")).not_to_contain_text("`")


@pytest.mark.slow
def test_what_sharing_saved_and_what_stopping_saved_are_two_numbers(
    open_page: Callable[..., Page], stack: Service, study: str
) -> None:
    cost = stack.client.study(study)["cost"]
    page = open_page(f"{stack.url}/#/studies/{study}")
    saved, paid = (page.get_by_role("region", name=name) for name in ("Saved by sharing", "Cost, in steps"))
    for name, part in (("sharing", cost["saved_by_sharing"]), ("early stopping", cost["saved_by_stopping"])):
        expect(paid).to_contain_text(f"{round(100 * part)} % saved by {name}")
        expect(saved).to_contain_text(f"{round(100 * part)} %")
    bar = f"{cost['spared']} of {cost['taken']} steps saved by sharing"
    expect(saved.get_by_role("img", name=bar)).to_be_visible()


MOVED = {
    "rung-tree": "tree",
    "rungs": "tree/rungs",
    "slots": "timeline",
    "relations": "importance",
    "tree?node=x": "tree/stages?node=x",
}


@pytest.mark.slow
def test_addresses_of_earlier_versions_lead_to_where_their_view_is_now(
    open_page: Callable[..., Page], stack: Service, study: str
) -> None:
    page = open_page(stack.url)
    for old, new in MOVED.items():
        turn_to(page, f"#/studies/{study}/{old}")
        expect(page.get_by_role("heading", name=VIEWS[new.partition("?")[0]]).first).to_be_visible()
        assert page.evaluate("location.hash") == f"#/studies/{study}/{new}"


@pytest.mark.slow
def test_the_answer_the_tree_and_the_savings_are_on_the_first_screen(
    open_page: Callable[..., Page], stack: Service, study: str
) -> None:
    """Once the tree was below the fold."""
    best = stack.client.study(study)["best"]
    page = open_page(f"{stack.url}/#/studies/{study}", width=1440, height=900)
    answer = page.get_by_role("region", name="Best trial")
    expect(answer).to_contain_text(
        re.compile(rf"trial {best['trial']}.*lr.*Best of 12 trials with a result", re.DOTALL)
    )
    for name in ("Best trial", "Saved by sharing", "Rung tree"):
        box = page.get_by_role("region", name=name).bounding_box()
        assert box is not None and box["y"] + box["height"] <= 900, name
    assert page.get_by_role("navigation", name="Views of the study").locator(":scope > a").count() == 7


@pytest.mark.slow
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_every_view_shows_itself_and_axe_finds_nothing(
    open_page: Callable[..., Page], stack: Service, study: str, axe: str, theme: str, width: int
) -> None:
    page, found = open_page(stack.url, theme=theme, width=width), {}
    for view, heading in VIEWS.items():
        turn_to(page, f"#/studies/{study}/{view}")
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        found[view] = complaints(page, axe)
    for room, heading in (("", "Studies"), ("slots", "Slots and workers"), ("submit", "New study")):
        turn_to(page, f"#/{room}")
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        found[room or "studies"] = complaints(page, axe)
    assert {view: said for view, said in found.items() if said} == {}


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 3840])
def test_every_view_fits(open_page: Callable[..., Page], stack: Service, study: str, width: int) -> None:
    page, wide = open_page(stack.url, width=width), []
    for view, heading in VIEWS.items():
        turn_to(page, f"#/studies/{study}/{view}")
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wide.append(view)
    assert wide == []


@pytest.mark.slow
def test_the_head_takes_little_of_a_phone(open_page: Callable[..., Page], stack: Service, study: str, axe: str) -> None:
    """Once name, state and views took 245 of 844 pixels."""
    page = open_page(f"{stack.url}/#/studies/{study}", width=390, height=844)
    expect(page.get_by_role("region", name="Best trial")).to_be_visible()
    box = page.get_by_role("navigation", name="Views of the study").bounding_box()
    assert box is not None and box["y"] + box["height"] < 120
    choose(page, "Delete")
    expect(page.get_by_role("dialog", name="Delete the study")).to_be_visible()
    assert complaints(page, axe) == []


def test_with_and_without_sharing_are_on_one_clock(open_page: Callable[..., Page], stack: Service) -> None:
    """With steps that take longer than the start of a process."""
    study = str(stack.run(grid("page-both", seconds=0.1))["study"])
    cost = stack.client.study(study)["cost"]
    page = open_page(f"{stack.url}/#/studies/{study}")
    both = page.get_by_role("region", name="With and without sharing")
    expect(both.get_by_role("img", name=f"With sharing (measured): {cost['run']} steps")).to_be_visible()
    expect(both.get_by_role("img", name=f"Without sharing (computed): {cost['taken']} steps")).to_be_visible()
    expect(both).to_contain_text("steps that 6 trials share, trained once")  # it was always eight


@pytest.mark.slow
def test_the_list_of_studies_leads_to_the_winner(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    best = stack.client.study(study)["best"]
    page = open_page(stack.url)
    page.get_by_role("link", name=study).click()
    expect(page.get_by_role("region", name="Best trial")).to_contain_text(f"trial {best['trial']}")
    with page.expect_download() as weights:
        page.get_by_role("link", name="Weights").click()
    assert weights.value.suggested_filename.endswith(".safetensors")


@pytest.mark.slow
def test_the_copied_python_loads_the_weights(
    open_page: Callable[..., Page], stack: Service, study: str, tmp_path: Path
) -> None:
    """Once it named an unknown method, and no server."""
    page = open_page(f"{stack.url}/#/studies/{study}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy Python code").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    code = page.evaluate("navigator.clipboard.readText()")
    subprocess.run([sys.executable, "-c", f"{code}print(file)"], cwd=tmp_path, check=True)
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) == 1


@pytest.mark.slow
def test_more_trials_are_offered_where_the_tuner_can_go_on(
    open_page: Callable[..., Page], stack: Service, study: str
) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}")
    expect(page.get_by_role("button", name="Reopen")).to_be_visible()
    turn_to(page, f"#/studies/{stack.run(grid('page-no-more'))['study']}")
    expect(page.locator(".acts").get_by_text("Actions")).to_be_visible()
    expect(page.get_by_role("button", name="Reopen")).to_have_count(0)


@pytest.mark.slow
def test_more_loops_begin_with_those_that_there_are(open_page: Callable[..., Page], stack: Service) -> None:
    """Once two were offered for every study, and refused."""
    tuner = {"kind": "hyperband", "max_steps": 2, "reduction_factor": 2, "loops": 3, "sampling_seed": 1}
    page = open_page(
        f"{stack.url}/#/studies/{stack.run(grid('page-loops', tuner=tuner | {'distinct': False}))['study']}"
    )
    page.locator(".acts").get_by_role("button", name="Reopen").click()
    wanted = page.get_by_role("dialog").get_by_role("spinbutton")
    expect(wanted).to_have_attribute("min", "4")
    expect(wanted).to_have_value("6")


@pytest.mark.slow
def test_why_a_trial_ended_is_one_click_away(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/tree/rungs")
    page.get_by_role("button", name="rank 12 ").click()
    told = page.locator(".told").get_by_role("listitem").filter(has_text="pruned at rung 0: rank 12 of 12")
    expect(told).to_contain_text("event")
    told.get_by_role("link").click()
    wanted = page.locator(".events .wanted")
    expect(wanted).to_contain_text("starts, to step 2")
    wanted.get_by_role("link", name="trial").click()
    expect(page.get_by_role("region", name="Why")).to_contain_text("now pruned at rung 0: rank 12 of 12, 6 promoted")


@pytest.mark.slow
def test_the_rung_tree_is_told_by_arrow_keys(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    best = stack.client.study(study)["best"]["trial"]
    page = open_page(f"{stack.url}/#/studies/{study}/tree")
    page.get_by_role("img", name="Rung tree").press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text(f"trial {best}")
    page.get_by_role("img", name="Rung tree").press("Enter")
    expect(page.get_by_role("region", name="Selected trials")).to_contain_text(f"trial {best}")
    expect(page).to_have_url(re.compile(f"trials={best}"))


@pytest.mark.slow
def test_the_line_of_a_trial_with_repeats_is_told_from_its_mean(open_page: Callable[..., Page], stack: Service) -> None:
    """Once the line of its first repeat was drawn, and its last value shown as the result."""
    study = stack.run(grid("page-repeats", repeats=2))["study"]
    page = open_page(f"{stack.url}/#/studies/{study}/tree")
    page.get_by_role("img", name="Trial tree").press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("the mean of its repeats")


@pytest.mark.slow
def test_trials_are_sorted_filtered_and_compared(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/trials")
    rows = page.get_by_role("row")
    page.get_by_role("searchbox", name="Filter").fill("rung>=1")
    expect(page.get_by_role("heading", name="6 of 12 trials")).to_be_visible()
    page.get_by_role("button", name="trial", exact=True).click()
    expect(page.locator("[aria-sort=ascending]")).to_contain_text("trial")
    numbers = [int(row.get_by_role("cell").nth(1).inner_text()) for row in rows.all()[1:]]
    assert numbers == sorted(numbers) and len(numbers) == 6
    for number in numbers[:2]:
        page.get_by_role("checkbox", name=f"Choose trial {number}", exact=True).check()
    with page.expect_download() as file:
        page.get_by_role("button", name="CSV").click()
    assert len(file.value.path().read_text().splitlines()) == 7
    page.get_by_role("link", name="compare them").click()
    expect(page.get_by_role("heading", name="2 trials")).to_be_visible()


@pytest.mark.slow
def test_a_long_table_fills_its_few_rows_anew_and_keeps_them_in_order(
    open_page: Callable[..., Page], stack: Service, study: str
) -> None:
    numbers = list(range(10_000))
    columns = {"trial": numbers, "state": ["completed"] * 10_000, "value": numbers, "standing": ["trained"] * 10_000}
    page = open_page(stack.url)
    page.route("**/trials:columns*", lambda route: route.fulfill(json={"count": 10_000, "columns": columns}))
    page.goto(f"{stack.url}/#/studies/{study}/trials?sort=trial")
    table, rows = page.get_by_role("table", name="Trials"), page.get_by_role("row")
    third = page.get_by_role("checkbox", name="Choose trial 3", exact=True)
    third.check()
    for pixels, trial in ((299_100, 9_970), (150_000, 5_000), (0, 3)):
        table.evaluate("(box, to) => box.scrollTo(0, to)", pixels)
        expect(rows.filter(has=page.get_by_role("link", name=str(trial), exact=True))).to_contain_text("completed")
        page.wait_for_function(IS_IN_ORDER)
        assert rows.count() < 60
    expect(third).to_be_checked()
    expect(page).to_have_url(re.compile("trials=3"))


@pytest.mark.slow
def test_scrubbing_back_shows_the_study_as_it_was(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}")
    expect(page.locator("header.study")).to_contain_text("12 trials")
    page.get_by_role("button", name="Time travel").click()
    page.get_by_role("slider").fill("2")
    expect(page.locator("header.study")).to_contain_text("running")
    expect(page.locator("header.study")).to_contain_text("0 of 12 trials")
    expect(page).to_have_url(re.compile("at=2"))
    expect(page.locator(".acts")).to_have_count(0)
    page.get_by_role("button", name="Now").click()
    expect(page.locator("header.study")).to_contain_text("completed")


@pytest.mark.slow
def test_dragging_along_an_axis_chooses_trials(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    """The first axis is of a hyper-parameter with few values: its upper half holds some of the trials."""
    page = open_page(f"{stack.url}/#/studies/{study}/importance")
    drawing = page.get_by_role("img", name="Parallel coordinates")
    expect(page.get_by_text(re.compile(r"^Results at (each trial's end|rung \d+): \d+ of 12 trials\.$"))).to_have_count(
        2
    )
    expect(page.get_by_text("12 of 12 trials match")).to_be_visible()
    box = drawing.bounding_box()
    assert box is not None
    drawing.drag_to(drawing, source_position={"x": 46, "y": 30}, target_position={"x": 46, "y": box["height"] / 2})
    expect(page.get_by_text("12 of 12 trials match")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"brush=(hp|shape)\."))
    page.get_by_role("button", name="select them").click()
    expect(page).to_have_url(re.compile("trials="))
    page.reload()
    expect(page.get_by_text("12 of 12 trials match")).to_have_count(0)
    page.get_by_role("button", name="clear all").click()
    expect(page.get_by_text("12 of 12 trials match")).to_be_visible()


@pytest.mark.slow
def test_lengths_that_are_chosen_are_an_axis(open_page: Callable[..., Page], stack: Service) -> None:
    """Once a ladder of cooldowns was shown without the hyper-parameter that its results depend on most."""
    study = stack.run(trials("page-lengths", ({"lr": 0.1}, 3), ({"lr": 0.2}, 6)))["study"]
    page = open_page(f"{stack.url}/#/studies/{study}/importance")
    expect(
        page.get_by_role("img", name="Parallel coordinates of 2 hyper-parameters and score, 2 trials")
    ).to_be_visible()
    expect(page.get_by_role("img", name="score against steps")).to_be_visible()


def test_two_moments_are_compared(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}?at=3")
    page.get_by_role("link", name="compare with now").click()
    panel = page.get_by_role("region", name="Two moments")
    expect(panel.get_by_role("row", name="state running completed")).to_be_visible()
    expect(panel).to_contain_text("trial 11 is new")


@pytest.mark.slow
def test_events_are_filtered_and_open_at_one(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/events?event=1")
    expect(page.locator(".events .wanted pre")).to_contain_text('"trainer": "toy"')
    page.get_by_label("Type").select_option("TrialExtended")
    page.get_by_label("Find in events").fill("rung 0")
    items = page.locator(".events li")
    expect(items).to_have_count(6)
    items.first.locator("summary").click()
    items.first.get_by_role("link", name="trial", exact=False).first.click()
    expect(page.get_by_role("region", name="Why")).to_contain_text("continues to step 4: rung 0: rank")


@pytest.mark.slow
def test_another_view_begins_at_its_top(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/events?event=1")
    expect(page.locator(".events .wanted")).to_be_in_viewport()
    page.wait_for_function("scrollY > 0")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("region", name="Best trial")).to_be_visible()
    assert page.evaluate("scrollY") == 0


@pytest.mark.slow
def test_what_another_tuner_would_have_decided(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/tree/rungs")
    panel = page.get_by_role("region", name="What if")
    panel.get_by_label("had been").fill("4")
    panel.get_by_role("button").click()
    expect(panel.get_by_role("status")).to_contain_text(re.compile(r"would have requested [\d,]+ steps of 12 trials"))
    panel.get_by_label("had been").fill("none")
    panel.get_by_role("button").click()
    expect(panel.get_by_role("alert")).to_contain_text("reduction_factor")


@pytest.mark.slow
def test_a_study_without_rungs_has_nothing_to_choose_there(open_page: Callable[..., Page], stack: Service) -> None:
    """Once it said to choose a trial, and offered to change a reduction factor that the study does not have."""
    page = open_page(f"{stack.url}/#/studies/{stack.run(grid('page-no-rungs'))['study']}/tree/rungs")
    expect(page.get_by_text("The tuner grid has no rungs")).to_be_visible()
    expect(page.get_by_text("Select a trial")).to_have_count(0)
    expect(page.get_by_role("region", name="What if")).to_have_count(0)


def test_slots_give_a_trace(open_page: Callable[..., Page], stack: Service, study: str) -> None:
    page = open_page(f"{stack.url}/#/studies/{study}/timeline")
    with page.expect_download() as trace:
        page.get_by_role("button", name="Chrome trace").click()
    assert '"traceEvents"' in trace.value.path().read_text()
