"""What a slot asks of its database while nothing happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import Cluster
from sqlalchemy import event
from studies import spec

from app.domain.terms import StudyState
from app.events.database import Database
from app.workers.slot.heartbeat import FLAG_SECONDS


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The statements that the database gets within the block."""
    asked = list[str]()

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        asked.append(statement.split()[0].upper())

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def let_a_minute_go_by(cluster: Cluster) -> None:
    for _ in range(round(60 / FLAG_SECONDS)):
        cluster.clock.wait(FLAG_SECONDS)
        cluster.slots["gpu0"].heartbeat.round()


def test_a_slot_that_has_nothing_to_do_asks_only_when_it_shows_that_it_is_alive(cluster: Cluster) -> None:
    let_a_minute_go_by(cluster)
    with statements(cluster.database) as asked:
        let_a_minute_go_by(cluster)
    beats = 60 / cluster.limits.heartbeat
    assert asked.count("UPDATE") == beats
    assert asked.count("SELECT") <= beats
    assert set(asked) <= {"UPDATE", "SELECT", "BEGIN"}


@pytest.mark.slow
def test_a_slot_that_trains_asks_once_for_each_look(cluster: Cluster) -> None:
    study, counted = cluster.submit(spec(({}, 4))), Counter[str]()

    def train() -> None:
        with statements(cluster.database) as asked:
            let_a_minute_go_by(cluster)
        counted.update(asked)

    cluster.at("train", 2, train)
    assert cluster.run(study).state == StudyState.COMPLETED
    beats, looks = 60 / cluster.limits.heartbeat, 60 / FLAG_SECONDS
    recorded = 3  # updates: the place in the log, the report of the chain, and the key of the write
    assert 2 * beats <= counted["UPDATE"] <= 2 * beats + recorded, "and one fact is recorded"
    assert looks - beats <= counted["SELECT"] <= looks + 2


def test_a_slow_database_is_looked_at_for_a_hundredth_of_the_time(cluster: Cluster) -> None:
    study, looks, took, slow = cluster.submit(spec(({}, 4))), list[int](), list[float](), 0.05
    answer = cluster.faults["gpu0"].check

    def answer_late() -> None:
        looks.append(1)
        cluster.clock.wait(slow)
        answer()

    def train() -> None:
        cluster.faults["gpu0"].check, begun_at = answer_late, cluster.clock.now()
        let_a_minute_go_by(cluster)
        cluster.faults["gpu0"].check = answer
        took.append(cluster.clock.now() - begun_at)

    cluster.at("train", 2, train)
    assert cluster.run(study).state == StudyState.COMPLETED
    signs_of_life = 2 * took[0] / cluster.limits.heartbeat
    assert 5 <= len(looks) - signs_of_life <= 0.01 * took[0] / slow + 1
