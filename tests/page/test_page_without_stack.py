"""`stagetree open`: the page over a store without a stack, which shows everything and changes nothing."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from stores import still_store

COMMAND = "import sys; from app.cli import main; sys.argv = ['stagetree', 'open', *sys.argv[1:]]; main()"


@pytest.fixture
def opened_store(tmp_path: Path, page_folder: Path) -> Iterator[tuple[str, str]]:
    """The address of an opened store, and the id of its study. Ctrl-C ends it in order."""
    study = still_store(tmp_path / ".stagetree")
    with contextlib.closing(sqlite3.connect(tmp_path / ".stagetree" / "stagetree.db")) as database:
        slot = ("gpu0", "gone", "cuda:0", "", "here", 1, 1.0, "{}", "")
        fields = "name, owner, device, kind, host, pid, seen_at, trainers, address"
        database.execute(f"INSERT INTO slots ({fields}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", slot)
        database.commit()
    command = [sys.executable, "-c", COMMAND, str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, process.stderr.read()
        yield found[0], study
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_an_opened_store_shows_its_studies_and_offers_no_change(
    open_page: Callable[..., Page], opened_store: tuple[str, str]
) -> None:
    url, study = opened_store
    page = open_page(url)
    expect(page.get_by_text("read only")).to_be_visible()
    page.get_by_role("link", name=study).click()
    page.locator(".acts summary").filter(has_text="Export").click()
    expect(page.get_by_role("link", name="Report", exact=True)).to_be_visible()
    expect(page.locator(".acts summary")).to_have_count(1)
    for name in ("Resume", "Pause", "Note", "Delete", "Cancel"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("link", name="New study")).to_have_count(0)


@pytest.mark.slow
def test_slots_that_are_gone_are_said_to_be_of_a_stack_that_ended(
    open_page: Callable[..., Page], opened_store: tuple[str, str]
) -> None:
    """Once they were listed as lost, as if by a fault."""
    page = open_page(f"{opened_store[0]}/#/slots")
    expect(page.get_by_text("No worker is running")).to_be_visible()


@pytest.mark.slow
def test_an_opened_store_refuses_changes_in_one_sentence(opened_store: tuple[str, str]) -> None:
    url, study = opened_store
    asked = (
        ("POST", f"studies/{study}:pause", None),
        ("POST", f"studies/{study}/notes", {"text": "seen"}),
        ("DELETE", f"studies/{study}", None),
        ("POST", "studies", {}),
        ("POST", "slots/gpu0:release", None),
    )
    for method, path, body in asked:
        answer = httpx.request(method, f"{url}/api/v1/{path}", json=body)
        assert answer.status_code == 409, path
        assert answer.json()["detail"].startswith("This server only shows what there is. `stagetree up --dir ")
    shown = httpx.get(f"{url}/api/v1/studies/{study}")
    assert shown.json()["notes"] == [] and shown.headers["stagetree-scope"] == "read"
