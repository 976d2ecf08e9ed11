"""Ten thousand trials on a plan that four slots write to all the time: they come in, and nobody starves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from scenes import PLAN, Scene

from app.domain import events as e
from app.events.database import Database
from app.events.log import VersionConflict
from app.events.memory import MemoryRecords
from app.events.records import Records, SqlRecords
from app.events.transact import back_off

SLOTS = 4
MOST_TICKS = 50

EVERY_SECONDS = 0.005
"""A slot reports a fact so often: far more often than any does, and less often than it could."""


@pytest.fixture(params=["memory", "sqlite"])
def records(request: pytest.FixtureRequest) -> Iterator[Records]:
    if request.param == "memory":
        yield MemoryRecords()
        return
    opened = SqlRecords(Database(request.getfixturevalue("sqlite_url")))
    yield opened
    opened.close()


def test_ten_thousand_trials_beside_four_writers(records: Records) -> None:
    scene = Scene(records, slots=SLOTS, pause=back_off)
    scene.submit({"kind": "trials", "trials": [{"hp": {"lr": 0.5}, "steps": 4}]}, "first")
    scene.scheduler.tick()
    (node,) = scene.study("first").trials[0].path
    scene.submit({"kind": "random", "num_trials": 10_000, "max_steps": 4})
    is_over, written = threading.Event(), [0] * SLOTS

    def write(number: int) -> None:
        while not is_over.wait(EVERY_SECONDS):
            fact = e.Evaluated(node=node, step=1, metrics={"loss": 0.5})
            try:
                records.log.append(PLAN, [fact], expected=None, at=0.0)
            except VersionConflict:
                continue
            written[number] += 1

    writers = [threading.Thread(target=write, args=(number,)) for number in range(SLOTS)]
    for writer in writers:
        writer.start()
    for _ in range(MOST_TICKS):
        scene.scheduler.tick()
        if len(scene.study().trials) == 10_000:
            break
    is_over.set()
    for writer in writers:
        writer.join()
    assert len(scene.study().trials) == 10_000
    assert scene.study().state == "running"
    assert min(written) > 0
