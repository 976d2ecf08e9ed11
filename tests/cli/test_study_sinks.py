"""Sinks that studies name in their files, written by a process that is killed, kept waiting, and called again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commandline import Stagetree
from stacks import PATIENCE, TOYS, Service, wait_for
from toys import grid, hold_steps, trials

from app.cli.sinks import SinkThread, StudySinks
from stagetree.backoff import Backoff
from stagetree.client import Client, Conflict
from stagetree.sinks import follow, open_sink
from stagetree.sinks.follower import end_time, ledger_path
from stagetree.sinks.tensorboard import FILE

RUNS = "tensorboard:runs"


def written_rows(folder: Path, study: str) -> dict[str, list[Any]]:
    """All rows of each trial's run, in any order."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    runs = (folder / study).glob(f"trial-*/{FILE}")
    return {run.parent.name: sorted(_values(EventFileLoader(str(run)).Load())) for run in runs}


def _values(events: Iterable[Any]) -> Iterator[tuple[str, int, str]]:
    """Each with its tag and step. Not the hyper-parameters' bytes, in which names stand in any order."""
    for event in events:
        yield from ((value.tag, event.step, str(value.tensor)) for value in event.summary.value)


def reference_rows(service: Service, study: str, folder: Path) -> dict[str, list[Any]]:
    """What one that was never ended writes of a study that is over."""
    follow(service.client, study, [open_sink(f"tensorboard:{folder}")])
    return written_rows(folder, study)


def is_complete(folder: Path, study: str) -> bool:
    return end_time(ledger_path(folder, study)) is not None


@contextmanager
def process(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`stagetree sinks`, which is killed at the end."""
    command = [sys.executable, "-m", "stagetree", "sinks", "--server", url]
    with (folder / "said").open("ab") as said:
        running = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.mark.slow
def test_a_killed_and_restarted_process_writes_everything_once(stack: Service, here: Path) -> None:
    study = stack.submit(grid("sinks-killed", seconds=0.2, sinks=[RUNS]))
    noted = ledger_path(here / "runs", study)
    stack.wait_for_step(study, 3)
    stack.client.pause(study)  # it is not over before the process was killed, however long that takes to start
    with process(stack.url, here):
        wait_for("something written", lambda: noted.is_file() and noted.read_bytes().count(b"\n") > 5)
    stack.client.resume(study)
    stack.wait(study)
    assert not is_complete(here / "runs", study)
    with process(stack.url, here) as running:
        wait_for("all written", lambda: is_complete(here / "runs", study))
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 128 + signal.SIGTERM
    assert written_rows(here / "runs", study) == reference_rows(stack, study, here / "alone")


@pytest.mark.slow
def test_a_signalled_process_does_not_wait_for_a_paused_study(stack: Service, here: Path) -> None:
    study = stack.submit(trials("sinks-rest", ({}, 4000), seconds=0.05, sinks=[RUNS]))
    stack.wait_for_step(study, 3)
    stack.client.pause(study)
    wait_for("rest", lambda: not stack.running(study))
    noted = ledger_path(here / "runs", study)
    with process(stack.url, here) as running:
        wait_for("what there is", lambda: noted.is_file() and noted.read_bytes().count(b"\n") > 3)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 128 + signal.SIGTERM
    said = (here / "said").read_text()
    assert study not in said and "Traceback" not in said
    stack.client.cancel(study)


@pytest.mark.slow
def test_a_run_has_written_everything_at_its_end(stagetree: Stagetree, here: Path) -> None:
    spec = trials("sinks-run", ({}, 3), ({"lr": 0.2}, 3), sinks=[RUNS])
    (here / "study.json").write_text(json.dumps(spec))
    ran = stagetree("run", "study.json", "--slots", 1, "--trainers", TOYS[0], "--no-check", "-o", "json")
    assert ran.code == 0
    assert is_complete(here / "runs", ran.json["study"])
    assert sorted(written_rows(here / "runs", ran.json["study"])) == [f"trial-{number}" for number in range(2)]


@pytest.fixture
def sinks(stack: Service, here: Path) -> Iterator[tuple[StudySinks, Callable[[], list[str]]]]:
    """The sinks of a process that looks on demand, and everything that they have written."""
    said = list[str]()
    found = StudySinks(stack.url, here / "positions", "*", said.append)
    yield found, lambda: said
    found.finish(60.0)  # what other tests submitted is followed, too, and must not be when this is no longer the folder
    found.end()
    join_followers()


def join_followers() -> None:
    """Wait for threads that have written all."""
    for following in (thread for thread in threading.enumerate() if thread.name.startswith("tensorboard:")):
        following.join(PATIENCE)


@pytest.mark.slow
def test_an_unavailable_sink_is_retried_and_ends_nothing(stack: Service, here: Path, sinks: Any) -> None:
    found, said = sinks
    (here / "runs").touch()
    study = stack.run(trials("sinks-away", ({}, 3), sinks=[RUNS, "tensorboard:others"]))["study"]
    with Client(stack.url) as client:
        found.look(client)
    wait_for("the other sink", lambda: is_complete(here / "others", study))
    wait_for("a word", lambda: any(f"{RUNS} of {study} is tried again: runs: " in each for each in said()))
    found.finish(0.0)
    assert f"{RUNS} lacks a part of {study}: stagetree watch {study} --sink {RUNS} sends the rest" in said()
    os.unlink(here / "runs")
    wait_for("the sink", lambda: is_complete(here / "runs", study))
    assert written_rows(here / "runs", study) == written_rows(here / "others", study)


class StruckFor(Client):
    """A client for whom one study cannot be looked at."""

    def __init__(self, url: str, struck: str) -> None:
        super().__init__(url)
        self._struck = struck

    def events(self, study: str, after: int = 0, *, limit: int = 1000) -> Any:
        if study == self._struck:
            raise Conflict(409, "it is struck")
        return super().events(study, after, limit=limit)


@pytest.mark.slow
def test_an_unreadable_study_does_not_delay_others(stack: Service, here: Path, sinks: Any) -> None:
    found, _ = sinks
    other = stack.run(trials("sinks-beside", ({}, 3), sinks=[RUNS]))["study"]
    struck = stack.run(trials("sinks-struck", ({}, 3), sinks=[RUNS]))["study"]  # the newer one is listed first
    with StruckFor(stack.url, struck) as client:
        found.look(client)
    wait_for("the other", lambda: is_complete(here / "runs", other))
    assert not ledger_path(here / "runs", struck).exists()


def test_a_signal_that_comes_while_events_are_left_is_not_lost(tmp_path: Path) -> None:
    """The process ran for ever: Python only prints errors that are raised while it collects a generator."""

    class Ended:
        def studies(self, limit: int) -> Iterator[Any]:
            yield SimpleNamespace(study="s", state="running")

        def events(self, study: str, limit: int) -> Iterator[Any]:
            try:
                yield SimpleNamespace(data={"spec": {}})
            finally:
                sys.exit(143)

    found = StudySinks("http://nowhere", tmp_path, "*")
    with pytest.raises(SystemExit):
        found.look(Ended())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_resumed_study_is_followed_again(stack: Service, here: Path, sinks: Any) -> None:
    (found, _), journal = sinks, here / "journal"
    drawn = {"space": {"lr": {"uniform": [0.1, 0.2]}}, "tuner": {"kind": "random", "num_trials": 1, "max_steps": 3}}
    spec = grid("sinks-reopened", sinks=[RUNS], runtime_args={"journal": str(journal)}, **drawn)
    study = stack.run(spec)["study"]
    found.finish(60.0)
    join_followers()
    before = end_time(ledger_path(here / "runs", study))
    journal.unlink()
    with hold_steps(journal) as let_go, Client(stack.url) as client:
        stack.client.reopen(study, 2)
        found.look(client)
        let_go()
        stack.wait(study)
        wait_for("the end", lambda: end_time(ledger_path(here / "runs", study)) not in (None, before))
    assert sorted(written_rows(here / "runs", study)) == ["trial-0", "trial-1"]


class Surprising(SinkThread):
    """A sink whose library raises an unknown error, once."""

    tries = 0

    def _write(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise KeyError("a revision of another alembic")


def test_the_run_waits_for_a_sink_that_failed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One 503 in the first hour, and the last records were not waited for."""
    monkeypatch.setattr("app.cli.sinks.PAUSES", Backoff(0.01, 0.01))
    is_second, may_end = threading.Event(), threading.Event()

    class Slow(SinkThread):
        tries = 0

        def _write(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("503")
            is_second.set()
            assert may_end.wait(PATIENCE)

    thread = Slow("http://nowhere", "s1", RUNS, tmp_path, lambda text: None, threading.Event())
    thread.start()
    assert is_second.wait(PATIENCE)
    threading.Timer(0.2, may_end.set).start()
    assert thread.wait(PATIENCE)


def test_a_sink_is_retried_after_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.sinks.PAUSES", Backoff(0.01, 0.01))
    said = list[str]()
    thread = Surprising("http://nowhere", "s1", RUNS, tmp_path, said.append, threading.Event())
    thread.start()
    thread.join(PATIENCE)
    assert thread.wait(0) and thread.tries == 2
    assert said == [f"{RUNS} of s1 is tried again: KeyError: 'a revision of another alembic'"]
