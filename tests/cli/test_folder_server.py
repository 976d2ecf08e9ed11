"""Commands that change a study find the server of the folder here, and no other one's studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import Stagetree, Write
from stacks import TOYS, Service
from stores import still_store
from toys import trials

from app.embedded.stack import Embedded
from app.process.folder_lock import FolderLock, FolderServer, find_server, is_in_use
from stagetree.client import Client

LONG = ({"rate": 0.1}, 100_000)
"""It outlives a test, whose processor it leaves alone if its steps take some `seconds`."""


@pytest.fixture
def folder_stack(here: Path) -> Iterator[Service]:
    """As `stagetree up --port 0` here."""
    stack = Embedded(here / ".stagetree", 1, TOYS, stays=True)
    stack.start()
    with Client(stack.url) as client:
        yield Service(client)
    stack.stop()


def test_studies_of_another_folder_are_not_changed(
    stack: Service, stagetree: Stagetree, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trials last` showed the study of the folder here, and `cancel last` cancelled one of a server elsewhere."""
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", stack.url)
    still_store(here / ".stagetree")
    study = stack.submit(trials("of-another-folder", LONG, seconds=1.0))
    for command in ("cancel last", "pause last", "trial stop last 0", "branch last 0 --at 1 --set lr=1 --steps 2"):
        said = stagetree(*command.split())
        assert (said.code, said.out) == (69, "") and "no process serves .stagetree" in said.err
    assert stack.client.study(study, trials=False)["state"] == "running"
    assert stagetree("cancel", study, "--server", stack.url).out == f"{study} is cancelled\n"


def test_the_server_of_the_folder_is_found(
    folder_stack: Service, stagetree: Stagetree, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any port but 8000, `stagetree cancel` said that no server answers, and to start one here."""
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    file = write(trials("here", LONG, seconds=1.0))
    study = stagetree("submit", file).out.strip()
    assert study == next(iter(folder_stack.client.studies()))["study"]
    refused = stagetree("run", file, "--trainers", TOYS[0])
    assert refused.code == 1 and f": send it the study with --server {folder_stack.url}, or choose" in refused.err
    assert stagetree("pause", "last").out == f"{study} is paused\n", "the refused run did not change the address"
    assert stagetree("cancel", "last").out == f"{study} is cancelled\n"


def test_a_stack_that_is_starting_is_not_started_a_second_time(
    stagetree: Stagetree, here: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit` said to start one here, which was refused then."""
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    (here / ".stagetree").mkdir()
    lock = FolderLock(here / ".stagetree")
    said = stagetree("submit", write(trials("early", LONG)))
    lock.close()
    assert said.code == 69 and "A stack is at work in .stagetree, and takes no studies yet" in said.err


def test_the_address_of_a_stack_is_known_while_it_runs(tmp_path: Path) -> None:
    there = FolderServer("http://127.0.0.1:7", stays=True)
    assert not is_in_use(tmp_path) and find_server(tmp_path) is None
    lock = FolderLock(tmp_path)
    assert is_in_use(tmp_path) and find_server(tmp_path) is None, "it has not started yet"
    lock.tell(there)
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    assert find_server(tmp_path) == there
    lock.close()
    assert not is_in_use(tmp_path) and find_server(tmp_path) is None
    again = FolderLock(tmp_path)
    assert find_server(tmp_path) is None, "where the one before answered is no news"
    again.close()


@pytest.mark.slow
def test_an_interrupted_study_is_named_when_its_training_resumes(
    stagetree: Stagetree, here: Path, write: Write
) -> None:
    """Another study that was run in the folder shared slots with one that Ctrl-C had stopped: nothing said so."""
    stack = Embedded(here / ".stagetree", 1, TOYS)
    stack.start()
    with Client(stack.url) as client:
        before = client.submit(trials("before", LONG, seconds=1.0)).study
    stack.stop()
    said = stagetree("run", write(trials("after", ({}, 3))), "--slots", 1, "--trainers", TOYS[0], "--no-check")
    assert said.code == 0
    assert "resumed beside after-" in said.err and f": {before}; `stagetree cancel {before}` in another" in said.err
