"""The page over time: a study is submitted, grows, and is changed, and its server stops and restarts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from addresses import choose, expect_report, turn_to
from playwright.sync_api import Locator, Page, Route, expect
from stacks import TOYS, Cluster, Service, wait_for
from toys import grid, hold_steps, trials

from app.embedded.machine import reserve
from app.embedded.stack import Embedded
from stagetree.client import Client

PRICED = re.compile(r"^2 new steps of 8; 6 are shared(, and \d are trained again)?\.$")
"""Answers of the server; a state may be kept at the step."""


@pytest.mark.slow
def test_a_study_is_submitted_and_watched_while_it_grows(
    open_page: Callable[..., Page], stack: Service, tmp_path: Path
) -> None:
    page = open_page(f"{stack.url}/#/submit")
    with hold_steps(tmp_path / "journal") as let_go:
        spec = grid("page-live", runtime_args={"journal": str(tmp_path / "journal")})
        page.get_by_label("Study file").fill(yaml.safe_dump(spec))
        page.get_by_role("button", name="Preview cost").click()
        expect(page.get_by_role("region", name="Cost preview").last).to_contain_text("unique steps")
        page.get_by_role("button", name="Submit").click()
        expect(page.locator("header.study")).to_contain_text("running")
        expect(page.locator(".badge")).to_contain_text("live")
        let_go()
        expect(page.locator("header.study")).to_contain_text("completed")
    expect(page.get_by_role("region", name="Cost, in steps")).to_contain_text("56")
    expect(page.locator(".badge")).to_contain_text("ended")


@pytest.mark.slow
def test_a_study_is_paused_resumed_and_cancelled(open_page: Callable[..., Page], stack: Service) -> None:
    study = stack.submit(trials("page-acts", ({}, 4000), seconds=0.05))
    page = open_page(f"{stack.url}/#/studies/{study}")
    for verb, said in (("Pause", "paused"), ("Resume", "running")):
        choose(page, verb)
        page.get_by_role("dialog").get_by_role("button", name=verb).click()
        expect_report(page, f"The study is {said}.")
        expect(page.locator("header.study")).to_contain_text(said)
    choose(page, "Add a trial")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Hyper-parameters").fill("{")
    dialog.get_by_role("button", name="Add it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not JSON")
    dialog.get_by_label("Hyper-parameters").fill(json.dumps({"lr": 0.2}))
    dialog.get_by_label("Steps").fill("3")
    expect(dialog.get_by_role("status")).to_contain_text("3 new steps of 3; 0 are shared")
    dialog.get_by_role("button", name="Add it").click()
    expect_report(page, "Added as trial 1")
    choose(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    expect(page.locator("header.study")).to_contain_text("cancelled")


@pytest.mark.slow
def test_what_was_done_is_undone_from_its_message(open_page: Callable[..., Page], stack: Service) -> None:
    study = stack.submit(trials("page-undo", ({}, 4000), seconds=0.05))
    page = open_page(f"{stack.url}/#/studies/{study}")
    choose(page, "Pause")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect_report(page, "The study is paused.")
    page.get_by_role("button", name="Undo").click()
    expect_report(page, "The study is running.")
    assert stack.client.study(study)["state"] == "running"
    choose(page, "Tags")
    page.get_by_role("dialog").get_by_label("Tags").fill("one")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect_report(page, "Tags: one.")
    page.locator(".toast").filter(has_text="Tags").get_by_role("button", name="Undo").click()
    expect_report(page, "as before")
    assert stack.client.study(study)["tags"] == []
    stack.client.cancel(study)


@pytest.mark.slow
def test_the_price_of_a_branch_is_told_before_it_is_made(open_page: Callable[..., Page], stack: Service) -> None:
    study = str(stack.run(trials("page-branch", ({"lr": 0.1}, 8)))["study"])
    page = open_page(f"{stack.url}/#/studies/{study}/trials/0")
    page.get_by_role("button", name="Branch").click()
    dialog = page.get_by_role("dialog", name="Branch off trial 0")
    dialog.get_by_label("After step").fill("6")
    dialog.get_by_label("What differs").fill("lr = 0.5")
    expect(dialog.get_by_role("status")).to_contain_text("2 new steps of 8; 6 are shared")
    assert len(stack.client.study(study)["trials"]) == 1
    dialog.get_by_role("button", name="Branch").click()
    expect_report(page, "Branched as trial 1: 2 new steps.")
    assert len(stack.wait(study)["trials"]) == 2


@pytest.mark.slow
def test_a_click_on_a_line_of_the_tree_branches_off_there(open_page: Callable[..., Page], stack: Service) -> None:
    """Once a branch was possible only from the page of a trial, at a typed step."""
    study = str(stack.run(trials("page-branch-line", ({"lr": 0.1}, 8)))["study"])
    page = open_page(f"{stack.url}/#/studies/{study}/tree?x=linear")
    place = on_the_line(page, page.get_by_role("img", name="Trial tree"), 6 / 8)
    expect(page.locator(".tip")).to_contain_text("Click to branch off trial 0 after step 6: 2 new steps")
    page.mouse.click(*place)
    branch_off(page, stack, study)


@pytest.mark.slow
def test_a_click_with_shift_on_a_bar_of_the_tree_branches_off_there(
    open_page: Callable[..., Page], stack: Service
) -> None:
    study = str(stack.run(trials("page-branch-bar", ({"lr": 0.1}, 8)))["study"])
    page = open_page(f"{stack.url}/#/studies/{study}/tree/stages")
    bars = page.get_by_role("img", name="The tree by steps")
    expect(bars).to_be_visible()
    box = bars.bounding_box()
    assert box is not None
    place = box["x"] + 8 + (box["width"] - 16) * 6 / 8, box["y"] + box["height"] / 2
    page.mouse.move(*place)
    expect(page.locator(".tip")).to_contain_text("Shift and click to branch off trial 0 after step 6: 2 new steps")
    page.keyboard.down("Shift")
    page.mouse.click(*place)
    page.keyboard.up("Shift")
    branch_off(page, stack, study)


def on_the_line(page: Page, drawing: Locator, part: float) -> tuple[float, float]:
    """A place on the only line, at a part of the steps from left to right."""
    expect(drawing).to_be_visible()
    box = drawing.bounding_box()
    assert box is not None
    x = box["x"] + 52 + (box["width"] - 52 - 16) * part
    for y in range(30, int(box["height"]) - 40, 6):
        page.mouse.move(x, box["y"] + y)
        page.evaluate("new Promise(requestAnimationFrame)")
        if page.locator(".tip").filter(has_text="branch off").count():
            return x, box["y"] + y
    raise AssertionError("there is no line")


def branch_off(page: Page, stack: Service, study: str) -> None:
    """The dialog is filled in but for what differs, and makes the branch."""
    dialog = page.get_by_role("dialog", name="Branch off trial 0")
    expect(dialog.get_by_label("After step")).to_have_value("6")
    expect(dialog.get_by_role("status")).to_contain_text("2 new steps of 8; 6 are shared")
    dialog.get_by_label("What differs").fill("lr = 0.5")
    expect(dialog.get_by_role("status")).to_have_text(PRICED)
    dialog.get_by_role("button", name="Branch").click()
    expect_report(page, "Branched as trial 1: 2 new steps.")
    assert [trial["steps"] for trial in stack.wait(study)["trials"]] == [8, 8]


@pytest.mark.slow
def test_what_happens_while_a_page_opens_is_not_missed(open_page: Callable[..., Page], stack: Service) -> None:
    """Once a study cancelled between the page's first two answers was shown as paused for ever."""
    study = stack.submit(trials("page-between", ({}, 4000), seconds=0.05))
    stack.client.pause(study)
    wait_for("its rest", lambda: not stack.running(study))
    page = open_page("about:blank")

    def cancel(route: Route) -> None:
        stack.client.cancel(study)
        route.continue_()

    page.route("**/history", cancel)
    page.goto(f"{stack.url}/#/studies/{study}")
    expect(page.locator("header.study")).to_contain_text("cancelled")


@pytest.mark.slow
def test_two_pages_of_a_browser_share_one_stream(open_page: Callable[..., Page], stack: Service) -> None:
    study = stack.submit(trials("page-shared", ({}, 4000), seconds=0.05))
    first = open_page(f"{stack.url}/#/studies/{study}")
    expect(first.locator(".badge")).to_contain_text("live")
    second, asked = first.context.new_page(), []
    second.on("request", lambda request: asked.append(request.url))
    second.goto(first.url)
    expect(second.locator(".badge")).to_contain_text("live")
    assert not [url for url in asked if "/events?after" in url]
    stack.client.cancel(study)
    expect(second.locator("header.study")).to_contain_text("cancelled")


@pytest.mark.slow
def test_a_lost_server_is_said_and_the_page_goes_on_when_it_is_back(
    open_page: Callable[..., Page], stack: Service
) -> None:
    study = stack.submit(trials("page-lost", ({}, 4000), seconds=0.05))
    page = open_page(f"{stack.url}/#/studies/{study}")
    expect(page.locator(".badge")).to_contain_text("live")
    page.context.set_offline(True)
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("alert").first).to_contain_text("has not responded since")
    page.context.set_offline(False)
    expect(page.locator(".away")).to_have_count(0)
    stack.client.cancel(study)
    expect(page.locator("header.study")).to_contain_text("cancelled")


@pytest.mark.slow
def test_how_a_study_ended_is_shown_without_waiting_for_the_next_look(
    open_page: Callable[..., Page], stack: Service
) -> None:
    """Slow answers are requested seldom; here time stands still, so there would be no further request."""
    study = stack.submit(trials("page-ended", ({}, 4000), seconds=0.05))
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{stack.url}/#/studies/{study}")
    expect(page.locator(".badge")).to_contain_text("live")
    page.clock.pause_at(page.evaluate("Date.now()") + 5000)
    stack.client.cancel(study)
    expect(page.locator("header.study")).to_contain_text("cancelled")


@pytest.mark.slow
def test_a_page_left_open_over_a_restart_of_the_server_goes_on(open_page: Callable[..., Page], tmp_path: Path) -> None:
    """The whole stack ends while its study runs, and is started again in the same folder at the same address."""
    port, kept = reserve("127.0.0.1", 0)
    embedded = Embedded(tmp_path, 1, TOYS, port)
    try:
        embedded.start()
        with Client(embedded.url) as client:
            study = client.submit(trials("page-restart", ({}, 4000), seconds=0.05)).study
            page = open_page(f"{embedded.url}/#/studies/{study}")
            expect(page.locator(".badge")).to_contain_text("live")
            embedded.stop()
            expect(page.get_by_role("alert").first).to_contain_text("has not responded since")
            expect(page.locator(".badge")).to_contain_text("connection lost")
            expect(page.get_by_role("region", name="Cost, in steps")).to_contain_text("4,000")
            embedded.start()
            expect(page.locator(".away")).to_have_count(0)
            expect(page.locator(".badge")).to_contain_text("live")
            client.cancel(study)
            expect(page.locator("header.study")).to_contain_text("cancelled")
    finally:
        embedded.stop()
        kept.close()


def expect_gone(page: Page) -> None:
    expect(page.get_by_role("alert").filter(has_text="may have been deleted")).to_be_visible()


@pytest.mark.slow
def test_a_study_that_somebody_else_deletes_is_said_to_be_gone(open_page: Callable[..., Page], stack: Service) -> None:
    study = str(stack.run(trials("page-gone-elsewhere", ({}, 2)))["study"])
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{stack.url}/#/studies/{study}")
    expect(page.locator(".badge")).to_contain_text("ended")
    stack.client.delete(study)
    page.clock.fast_forward(60_000)
    expect_gone(page)


@pytest.mark.slow
def test_a_stream_that_ends_with_the_deletion_says_so_at_once(open_page: Callable[..., Page], stack: Service) -> None:
    study = str(stack.run(trials("page-gone-at-once", ({}, 2)))["study"])
    page, asked = open_page("about:blank"), list[str]()

    def end(route: Route) -> None:
        asked.append(route.request.url)
        stack.client.delete(study)
        route.fulfill(content_type="text/event-stream", body='event: end\ndata: {"state": "deleted"}\n\n')

    page.route("**/events?after=*", end)
    page.goto(f"{stack.url}/#/studies/{study}")
    expect_gone(page)
    assert len(asked) == 1, "a second stream would have reported it later"
    page.get_by_role("link", name="All studies").click()
    expect(page.get_by_role("heading", name="Studies")).to_be_visible()


@pytest.mark.slow
def test_an_event_of_a_later_version_is_shown_by_its_name(open_page: Callable[..., Page], stack: Service) -> None:
    """For example written by another server during an upgrade. Later events are shown as usual."""
    study = str(stack.run(trials("page-tomorrow", ({}, 2)))["study"])
    page = open_page("about:blank")
    tomorrow = {"position": 90, "version": 90, "type": "OfTomorrow", "at": 2e9, "data": {"study": study}}
    known = {"position": 91, "version": 91, "type": "StudyPaused", "at": 2e9, "data": {"study": study}}
    body = "".join(f"id: {each['position']}\ndata: {json.dumps(each)}\n\n" for each in (tomorrow, known))
    page.route("**/events?after=*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{stack.url}/#/studies/{study}")
    expect(page.locator(".recent")).to_contain_text("OfTomorrow")
    expect(page.locator(".recent")).to_contain_text("the study was paused")


@pytest.mark.slow
def test_a_note_is_written_and_shown_where_it_belongs(open_page: Callable[..., Page], stack: Service) -> None:
    study = str(stack.run(trials("page-notes", ({}, 2)))["study"])
    page = open_page(f"{stack.url}/#/studies/{study}")
    choose(page, "Note")
    write_down(page, "the data were <b>shuffled</b>")
    turn_to(page, f"#/studies/{study}/trials/0")
    page.get_by_role("region", name="Trial 0").get_by_role("button", name="Note").click()
    write_down(page, "look at this one again")
    notes = page.get_by_role("region", name="Notes")
    expect(notes.get_by_role("listitem")).to_have_count(1)
    page.get_by_role("link", name="Overview").click()
    expect(notes.get_by_role("listitem")).to_have_count(2)
    expect(notes).to_contain_text("the data were <b>shuffled</b>")
    notes.get_by_role("button", name="Correct the note of event").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Text")).to_have_value("the data were <b>shuffled</b>")
    dialog.get_by_label("Text").fill("the data were sorted")
    dialog.get_by_role("button", name="Correct it").click()
    expect_report(page, "The note is corrected.")
    expect(notes.get_by_role("listitem").first).to_contain_text(re.compile("the data were sorted.*corrected", re.S))
    notes.get_by_role("link", name="event").last.click()
    expect(page.locator(".events .wanted")).to_contain_text("a note about trial 0: look at this one again")


@pytest.mark.slow
def test_a_study_is_tagged_and_found_by_its_tag(open_page: Callable[..., Page], stack: Service) -> None:
    study = str(stack.run(trials("page-tags", ({}, 2)))["study"])
    page = open_page(f"{stack.url}/#/studies/{study}")
    choose(page, "Tags")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("paper, page-v2")
    dialog.get_by_label("Attributes").fill("dataset = v3")
    dialog.get_by_role("button", name="Save").click()
    expect_report(page, "Tags: paper, page-v2.")
    expect(page.locator("header.study")).to_contain_text("dataset = v3")
    page.locator("header.study").get_by_role("link", name="page-v2").click()
    expect(page.get_by_role("searchbox", name="Find a study")).to_have_value("tag:page-v2")
    expect(page.get_by_role("checkbox")).to_have_count(1)
    assert stack.client.study(study)["attributes"] == {"dataset": "v3"}


def write_down(page: Page, text: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Text").fill(text)
    dialog.get_by_role("button", name="Save").click()
    expect_report(page, "The note is saved as event")
    report = page.locator(".toast").filter(has_text="The note is saved as event")
    report.get_by_role("button", name="Dismiss").click()  # the next note is reported in almost the same words
    expect(report).to_have_count(0)


@pytest.mark.slow
def test_a_deleted_study_leads_back_to_the_list(open_page: Callable[..., Page], stack: Service) -> None:
    study = str(stack.run(trials("page-gone", ({}, 2)))["study"])
    page = open_page(f"{stack.url}/#/studies/{study}")
    expect(page.locator("header.study")).to_contain_text("completed")
    choose(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect_report(page, "The study is deleted.")
    expect(page.get_by_role("heading", name="Studies")).to_be_visible()


PANELS = {
    "/tree": ("", "Trial tree", "Best trial"),
    "/history": ("", "Best measurement so far", "Best trial"),
    "/schedules": ("", "Best trial", "Saved by sharing"),
    "/importance": ("importance", "Importance", "Parallel coordinates"),
    "/rungs": ("tree/rungs", "Rung ladder", "What if"),
}
"""For each answer a view, a panel that needs the answer, and a panel that does not."""


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["<html>", '{"count": 1}'])
def test_a_malformed_answer_stays_in_its_panel(open_page: Callable[..., Page], stack: Service, answer: str) -> None:
    study = str(stack.run(grid("page-malformed"))["study"])
    page = open_page(stack.url)
    for path, (view, broken, whole) in PANELS.items():
        page.route(f"**{path}*", lambda route: answer_malformed(route, answer))
        page.goto(f"{stack.url}/#/studies/{study}/{view}")
        page.reload()
        expect(page.get_by_role("region", name=broken).get_by_role("alert")).to_be_visible()
        expect(page.get_by_role("region", name=whole)).to_be_visible()
        expect(page.get_by_role("region", name=whole).get_by_role("alert")).to_have_count(0)
        page.unroute_all(behavior="wait")


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["<html>", '{"study": 1}'])
def test_a_study_that_cannot_be_read_is_said_and_asked_for_again(
    open_page: Callable[..., Page], stack: Service, answer: str
) -> None:
    study = str(stack.run(trials("page-unreadable", ({}, 2)))["study"])
    page = open_page(stack.url)
    page.route("**?trials=false", lambda route: answer_malformed(route, answer))
    turn_to(page, f"#/studies/{study}")
    expect(page.get_by_role("alert").first).to_be_visible()
    page.unroute_all(behavior="wait")
    turn_to(page, "#/slots")
    expect(page.get_by_role("heading", name="Slots")).to_be_visible()
    turn_to(page, f"#/studies/{study}")
    expect(page.get_by_role("region", name="Best trial")).to_contain_text("score")


def answer_malformed(route: Route, answer: str) -> None:
    route.fulfill(status=200, content_type="application/json", body=answer)


@pytest.mark.slow
def test_it_works_behind_a_prefix(open_page: Callable[..., Page], stack: Service) -> None:
    """The same server, unaware of its prefix, answers under /tools/stagetree/."""
    page = open_page("about:blank")
    prefix = f"{stack.url}/tools/stagetree/"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def pass_on(route: Route) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace(prefix, f"{stack.url}/")))

    page.route(f"{prefix}**", pass_on)
    page.goto(prefix)
    expect(page.get_by_role("heading", name="Studies")).to_be_visible()
    assert asked and all(url.startswith(prefix) for url in asked)


@pytest.mark.night
def test_two_hosts_show_what_they_printed_and_logged(open_page: Callable[..., Page], cluster: Cluster) -> None:
    """Each slot of the cluster has a disk of its own, which the API does not see."""
    chatty = [({"lr": rate, "mood": "chatty"}, 12) for rate in (0.1, 0.2)]
    study = cluster.submit(trials("page-hosts", *chatty, seconds=0.2))
    assert cluster.wait(study)["state"] == "completed"
    for trial in range(2):
        wait_for("its curve", lambda trial=trial: cluster.client.trial_log(study, trial).count("hello") == 12)
        page = open_page(f"{cluster.client.url}/#/studies/{study}/trials/{trial}")
        printed, logged = (page.get_by_role("region", name=name) for name in ("Output", "Logged metrics"))
        printed.get_by_role("button", name="show").click()
        expect(printed).to_contain_text("step 11 says hello")
        logged.get_by_role("button", name="show").click()
        expect(logged.get_by_role("img", name=f"push of trial {trial} by step")).to_be_visible()
