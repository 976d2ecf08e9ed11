"""Thousands of trials on a plan that four slots write to all the time: they come in, and no writer starves.

In memory and on SQLite the slots are threads, on PostgreSQL processes of their own.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scenes import PLAN, Scene, rates

from app.domain import events as e
from app.events.database import Database
from app.events.log import EventLog, VersionConflict
from app.events.memory import MemoryRecords
from app.events.records import Records
from app.events.sql_log import SqlRecords

SLOTS = 4
TRIALS_OF_A_TICK = 200
"""The least number of trials that come in, in the mean of all ticks."""

EVERY_SECONDS = 0.005
"""Seconds between facts of a slot: far more often than real ones, and less often than possible."""

JOIN_SECONDS = 300.0
"""Four processes that import all this on half a core took 50 to begin."""


def write(log: EventLog, node: str, is_over: Any, on_written: Callable[[], object]) -> None:
    """What a slot does until it is over."""
    while not is_over.wait(EVERY_SECONDS):
        fact = e.Evaluated(node=node, step=1, metrics={"loss": 0.5})
        try:
            log.append(PLAN, [fact], expected=None, at=0.0)
        except VersionConflict:
            continue
        on_written()


def write_from_elsewhere(url: str, node: str, is_over: Any, written: Any) -> None:
    """A slot in a process of its own."""

    def on_written() -> None:
        written.value += 1

    records = SqlRecords(Database(url))
    write(records.log, node, is_over, on_written)
    records.close()


@contextmanager
def threads(records: Records, node: str) -> Iterator[list[Any]]:
    is_over, written = threading.Event(), [Count() for _ in range(SLOTS)]
    writers = [
        threading.Thread(target=write, args=(records.log, node, is_over, written[number].add))
        for number in range(SLOTS)
    ]
    with running(writers, is_over):
        yield written


@contextmanager
def processes(url: str, node: str) -> Iterator[list[Any]]:
    spawning = multiprocessing.get_context("spawn")
    is_over, written = spawning.Event(), [spawning.Value("i", 0) for _ in range(SLOTS)]
    writers = [
        spawning.Process(target=write_from_elsewhere, args=(url, node, is_over, written[number]), daemon=True)
        for number in range(SLOTS)
    ]
    with running(writers, is_over):
        yield written
    assert [writer.exitcode for writer in writers] == [0] * SLOTS


@contextmanager
def running(writers: list[Any], is_over: Any) -> Iterator[None]:
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        is_over.set()
        for writer in writers:
            writer.join(JOIN_SECONDS)


def await_all(written: list[Any]) -> list[int]:
    """What each has written by the time that all are at work."""
    for _ in range(int(JOIN_SECONDS / EVERY_SECONDS)):
        if all(each.value for each in written):
            return [each.value for each in written]
        threading.Event().wait(EVERY_SECONDS)
    raise AssertionError(f"they have written {[each.value for each in written]}")


class Count:
    """How much one thread has written."""

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> None:
        self.value += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "where, trials",
    [
        ("memory", 10_000),
        ("postgresql", 2_400),
        pytest.param("sqlite", 10_000, marks=pytest.mark.night),
        pytest.param("postgresql", 10_000, marks=pytest.mark.night),
    ],
)
def test_thousands_of_trials_beside_four_writers(request: pytest.FixtureRequest, where: str, trials: int) -> None:
    url = "" if where == "memory" else request.getfixturevalue({"sqlite": "sqlite_url"}.get(where, "postgres_url"))
    records: Records = SqlRecords(Database(url)) if url else MemoryRecords()
    scene = Scene(records, slots=SLOTS, pause=time.sleep)
    scene.submit(rates(0.5), "first")
    scene.scheduler.tick()
    (node,) = scene.study("first").trials[0].path
    scene.submit({"kind": "random", "num_trials": trials, "max_steps": 4})
    with processes(url, node) if where == "postgresql" else threads(records, node) as written:
        begun = await_all(written)
        for _ in range(trials // TRIALS_OF_A_TICK):
            scene.scheduler.tick()
            if len(scene.study().trials) == trials:
                break
    assert len(scene.study().trials) == trials
    assert scene.study().state == "running"
    assert all(each.value > before for each, before in zip(written, begun, strict=True))
    records.close()
