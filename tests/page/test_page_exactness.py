"""A study's exactness on the page: marks beside numbers, and an audit on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from addresses import choose, expect_report
from audits import TRAINER, serving, study
from playwright.sync_api import Page, expect
from stacks import Service, wait_for

pytestmark = pytest.mark.slow(together=True)

MARK = re.compile("unchecked: it resumed from the state of step [68], which was not compared")
OF_STUDY = re.compile(
    "Exactness: unchecked: trials? [0-2].* resumed from the state of step [68], which was not compared"
)
VERIFIED = "Exactness: verified: every step at which trials part was compared, and a whole trial was equal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proofs")


@pytest.fixture(scope="module")
def running_stack(folder: Path) -> Iterator[Service]:
    """Slots that verify, and studies from before they did."""
    (folder / "trainer.py").write_text(TRAINER)
    with serving(folder, proofs="0") as service:
        for spec in (study("right"), study("late"), study("right", "waiting")):
            service.run(spec)
    with serving(folder, proofs="1") as service:
        yield service


@pytest.fixture
def study_id(running_stack: Service) -> Callable[[str], str]:
    """The id of a study, by its name."""
    return {each.name: each.study for each in running_stack.client.studies()}.__getitem__


def audit(page: Page) -> None:
    choose(page, "Audit")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("is trained again, alone and from its beginning, and compared bit for bit")
    dialog.get_by_role("button", name="Audit it").click()
    expect_report(page, "Its trials are trained again and compared")


def test_marks_stand_beside_numbers_until_all_of_it_is_compared(
    open_page: Callable[..., Page], running_stack: Service, study_id: Callable[[str], str]
) -> None:
    page = open_page(f"{running_stack.url}/#/studies/{study_id('right')}")
    badge = page.locator(".verification")
    expect(badge.locator("summary")).to_contain_text("unchecked")
    expect(badge).to_contain_text(OF_STUDY)
    marked = next(trial for trial in running_stack.client.trials(study_id("right")) if trial.get("exactness"))
    page.get_by_role("link", name="Trials", exact=True).click()
    expect(page.get_by_text(MARK).first).to_be_visible()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(marked["trial"]), exact=True))
    assert re.search("[*†‡]", row.inner_text())
    page.get_by_role("link", name="Overview", exact=True).click()
    audit(page)
    expect(badge).to_contain_text(VERIFIED)
    page.locator(".acts summary").first.click()
    expect(page.locator(".acts").get_by_role("button", name="Delete")).to_be_visible()
    expect(page.locator(".acts").get_by_role("button", name="Audit")).to_have_count(0)
    expect(page.locator("main abbr")).to_have_count(0)
    page.get_by_role("link", name="Trials", exact=True).click()
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    assert "*" not in page.locator("main").inner_text()


def test_what_an_audit_finds_stands_beside_each_number(
    open_page: Callable[..., Page], running_stack: Service, study_id: Callable[[str], str]
) -> None:
    page = open_page(f"{running_stack.url}/#/studies/{study_id('late')}")
    audit(page)
    found = "1 of 11 leaves differ, the first is trainer.weight"
    said = f"may be wrong: the trainer is not exact: {found}"
    verdict = f"Exactness: inexact, and shared results may be wrong: {found}"
    expect(page.locator("header.study .trouble")).to_contain_text(verdict)
    page.get_by_role("link", name="Trials", exact=True).click()
    expect(page.get_by_text(f"* {said}").first).to_be_visible()
    page.get_by_role("row").nth(2).get_by_role("link").click()
    expect(page.get_by_role("region", name="Trial")).to_contain_text(f"Exactness: {said}")
    expect(page.get_by_role("region", name="Trial").locator(".value abbr")).to_have_attribute(
        "title", re.compile(re.escape(said))
    )
    page.goto(f"{running_stack.url}/#/")
    row = page.get_by_role("row").filter(has_text=study_id("late"))
    expect(row.locator("abbr")).to_have_text("*")


def test_an_audit_says_on_the_page_what_it_waits_for(
    open_page: Callable[..., Page], running_stack: Service, folder: Path, study_id: Callable[[str], str]
) -> None:
    """The trainer's file has changed since the study was trained."""
    (folder / "trainer.py").write_text(TRAINER.replace("2.7", "2.6"))
    wait_for("the other trainer", lambda: is_changed(running_stack, study_id("waiting")))
    page = open_page(f"{running_stack.url}/#/studies/{study_id('waiting')}")
    audit(page)
    head = page.locator("header.study")
    expect(head).to_contain_text(
        "An audit is under way: each trial that shares steps is trained again, alone, and compared."
    )
    expect(head.locator(".trouble")).to_contain_text("the audit waits: no slot has trainer right at version")
    (folder / "trainer.py").write_text(TRAINER)
    expect(page.locator(".verification")).to_contain_text(VERIFIED)


def is_changed(running_stack: Service, study: str) -> bool:
    """Whether the slots have noticed that they have another version of its trainer."""
    version = running_stack.client.plan(study).trainer_version
    return all(slot.trainers["right"] != version for slot in running_stack.client.slots())
