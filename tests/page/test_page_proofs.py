"""What is proven of a study's numbers, on the page: marks beside them, and all of it proven on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from audits import TRAINER, serving, study
from playwright.sync_api import Page, expect
from stacks import Service, wait_for

pytestmark = pytest.mark.slow(together=True)

MARK = "not proven to be exact: no state was compared yet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proofs")


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Service]:
    """Slots that prove, with studies from before they did."""
    (folder / "trainer.py").write_text(TRAINER)
    with serving(folder, proofs="0") as service:
        for spec in (study("right"), study("late"), study("right", "waiting")):
            service.run(spec)
    with serving(folder, proofs="1") as service:
        yield service


@pytest.fixture
def named(up: Service) -> Callable[[str], str]:
    """The id of a study, by its name."""
    return {each.name: each.study for each in up.client.studies()}.__getitem__


def prove(page: Page) -> None:
    page.locator(".acts").get_by_role("button", name="Audit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("is trained again, alone and from its beginning, and compared bit for bit")
    dialog.get_by_role("button", name="Audit it").click()
    expect(dialog).to_contain_text("Its trials are trained again and compared")
    page.get_by_role("button", name="Close").click()


def test_marks_stand_beside_numbers_until_all_of_it_is_proven(
    open_page: Callable[..., Page], up: Service, named: Callable[[str], str]
) -> None:
    page = open_page(f"{up.url}/#/studies/{named('right')}")
    head = page.locator("header.study")
    expect(head).to_contain_text(f"Exactness: {MARK}")
    expect(page.get_by_role("region", name="Best trial").locator(".value abbr")).to_have_attribute("title", MARK)
    page.get_by_role("link", name="Trials", exact=True).click()
    expect(page.get_by_text(f"* {MARK}")).to_be_visible()
    assert "*" in page.get_by_role("row").nth(1).inner_text()
    page.get_by_role("link", name="Overview", exact=True).click()
    prove(page)
    expect(head).to_contain_text("Exactness: proven to step 12")
    expect(page.locator(".acts").get_by_role("button", name="Audit")).to_have_count(0)
    expect(page.locator("main abbr")).to_have_count(0)
    page.get_by_role("link", name="Trials", exact=True).click()
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    assert "*" not in page.locator("main").inner_text()


def test_what_proving_finds_out_stands_beside_each_number(
    open_page: Callable[..., Page], up: Service, named: Callable[[str], str]
) -> None:
    page = open_page(f"{up.url}/#/studies/{named('late')}")
    prove(page)
    said = "may be wrong, since the trainer is not exact: 1 of 11 leaves differ, the first is trainer.weight"
    expect(page.locator("header.study .trouble")).to_contain_text(f"Exactness: {said}")
    page.get_by_role("link", name="Trials", exact=True).click()
    expect(page.get_by_text(f"* {said}")).to_be_visible()
    page.get_by_role("row").nth(2).get_by_role("link").click()
    expect(page.get_by_role("region", name="Trial")).to_contain_text(f"Exactness: {said}")
    expect(page.get_by_role("region", name="Trial").locator(".value abbr")).to_have_attribute(
        "title", re.compile(re.escape(said))
    )
    page.goto(f"{up.url}/#/")
    row = page.get_by_role("row").filter(has_text=named("late"))
    expect(row.locator("abbr")).to_have_text("*")


def test_an_audit_says_on_the_page_what_it_waits_for(
    open_page: Callable[..., Page], up: Service, folder: Path, named: Callable[[str], str]
) -> None:
    """The trainer's file is not what it was when the study was trained."""
    (folder / "trainer.py").write_text(TRAINER.replace("2.7", "2.6"))
    wait_for("the other trainer", lambda: is_changed(up, named("waiting")))
    page = open_page(f"{up.url}/#/studies/{named('waiting')}")
    prove(page)
    head = page.locator("header.study")
    expect(head).to_contain_text("An audit is under way: all that the study shares is being proven.")
    expect(head.locator(".trouble")).to_contain_text("the audit waits: no slot has trainer right at version")
    (folder / "trainer.py").write_text(TRAINER)
    expect(head).to_contain_text("Exactness: proven to step 12")


def is_changed(up: Service, study: str) -> bool:
    """Whether the slots have noticed that they have another version of its trainer."""
    version = up.client.plan(study).trainer_version
    return all(slot.trainers["right"] != version for slot in up.client.slots())
