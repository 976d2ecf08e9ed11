"""A database that is away, wherever in a chain it happens, costs time and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster import LEASE, Cluster
from sqlalchemy import Engine, text
from studies import ALONE, BRANCHES, spec

from app.domain import events as e
from app.domain.terms import StudyState
from app.events.database import DatabaseUnavailable
from app.outages import LostRace

MOMENT, HALF_A_MINUTE, MINUTE = 0.2, 30.0, 61.0
Away = Callable[[], None]


def at_claim(cluster: Cluster, away: Away) -> None:
    cluster.ticker.tick()
    away()
    cluster.deliver()


def in_training(cluster: Cluster, away: Away) -> None:
    cluster.at("train", 2, away)


def after_evaluation(cluster: Cluster, away: Away) -> None:
    cluster.faults["gpu0"].before[e.Evaluated] = away


def at_stage_end(cluster: Cluster, away: Away) -> None:
    cluster.faults["gpu0"].before[e.StageCompleted] = away


def at_checkpoint(cluster: Cluster, away: Away) -> None:
    cluster.faults["gpu0"].before[e.CheckpointKept] = away


def at_finish(cluster: Cluster, away: Away) -> None:
    cluster.faults["gpu0"].before[e.ChainEnded] = away


POINTS = [at_claim, in_training, after_evaluation, at_stage_end, at_checkpoint, at_finish]


@pytest.mark.slow
@pytest.mark.parametrize("whose", [("gpu0",), ("gpu0", "scheduler")], ids=["the slot's", "everybody's"])
@pytest.mark.parametrize("seconds", [MOMENT, HALF_A_MINUTE, MINUTE])
@pytest.mark.parametrize("point", POINTS)
def test_a_database_that_is_away_costs_no_step(
    cluster: Cluster, point: Callable[[Cluster, Away], None], seconds: float, whose: tuple[str, ...]
) -> None:
    expected = cluster.values(cluster.run(cluster.submit(ALONE)).id)
    study = cluster.submit({**BRANCHES, "eval_every": 2})

    def away() -> None:
        for name in whose:
            cluster.faults[name].away_for(seconds)

    point(cluster, away)
    done = cluster.run(study)
    assert cluster.faults["gpu0"].refusals
    assert cluster.clock.now() - cluster.faults["gpu0"].away_until < LEASE  # nobody was waited for
    assert done.state == StudyState.COMPLETED
    assert done.executed == done.unique == 12
    assert cluster.values(study) == expected
    assert {event.outcome for event in cluster.events(e.ChainEnded)} == {"done"}
    assert not cluster.events(e.StageFailed)
    assert cluster.idle()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_demoted_primary_costs_no_step(cluster: Cluster, postgres_admin: Engine) -> None:
    """PostgreSQL answers that it is read-only, as after a fail-over, until it is a primary again."""
    expected = cluster.values(cluster.run(cluster.submit(ALONE)).id)
    study = cluster.submit(BRANCHES)
    name = cluster.database.url.database

    def set_read_only(is_so: bool) -> None:
        with postgres_admin.connect() as connection:
            connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {is_so}'))
        cluster.database.dispose()  # sessions that are open do not notice

    refused = list[int]()

    def recover(waits: int) -> None:
        refused.append(waits)
        if len(refused) == 5:
            set_read_only(False)

    def demote() -> None:
        set_read_only(True)
        cluster.slots["gpu0"].heartbeat.round()
        cluster.clock.on_wait = recover

    cluster.at("train", 2, demote)
    done = cluster.run(study)
    assert len(refused) >= 5
    assert done.executed == done.unique
    assert cluster.values(study) == expected
    assert not cluster.events(e.StageFailed)


@pytest.mark.slow
def test_an_answer_that_is_lost_records_nothing_twice(cluster: Cluster) -> None:
    """The commit was done, and its answer did not arrive: of every fact, and of the claim."""
    expected = cluster.values(cluster.run(cluster.submit(ALONE)).id)
    study = cluster.submit({**BRANCHES, "eval_every": 2})
    cluster.faults["gpu0"].lost_answers = 100
    done = cluster.run(study)
    assert cluster.faults["gpu0"].lost_answers < 100 - 8
    assert done.executed == done.unique
    assert cluster.values(study) == expected
    facts = cluster.events(e.Evaluated) + cluster.events(e.StageCompleted) + cluster.events(e.CheckpointKept)
    assert len({repr(fact) for fact in facts}) == len(facts)


def test_a_storm_of_lost_races_costs_only_time(cluster: Cluster) -> None:
    study = cluster.submit({**BRANCHES, "eval_every": 1})
    cluster.faults["gpu0"].lost_races = 300
    done = cluster.run(study)
    assert cluster.faults["gpu0"].lost_races == 0
    assert done.executed == done.unique == 12


def test_outages_are_no_poison(cluster: Cluster) -> None:
    """Five times in one stage, each longer than a lease."""
    study = cluster.submit({**BRANCHES, "eval_every": 1})

    def script(slot: str, process: object, what: str, step: int) -> None:
        if what == "train" and step < 5:
            cluster.faults["gpu0"].away_for(LEASE + 1)

    cluster.script = script
    assert cluster.run(study).state == StudyState.COMPLETED
    assert not cluster.events(e.StageFailed)


def test_the_heartbeat_outlives_any_error_of_the_database(cluster: Cluster) -> None:
    beat = cluster.slots["gpu0"].heartbeat
    for error in (DatabaseUnavailable("away"), LostRace("a deadlock")):
        cluster.faults["gpu0"].error = lambda error=error: error
        cluster.faults["gpu0"].away_for(10.0)
        beat.round()
        cluster.clock.wait(10.0)
    before = cluster.row()
    beat.round()
    after = cluster.row()
    assert before is not None and after is not None and after.seen_at > before.seen_at


class Stale(dict[str, Any]):
    """Trainers on a disk that is away."""

    def items(self) -> Any:
        raise OSError(116, "Stale file handle")


def test_a_lease_is_renewed_while_the_disk_of_the_trainers_is_away(cluster: Cluster) -> None:
    """After a lease, the chains of all slots with that disk were ended."""
    beat, sources = cluster.slots["gpu0"].heartbeat, cluster.sources
    beat.round()
    before = cluster.row()
    cluster.sources = Stale(sources)
    cluster.beat()
    after = cluster.row()
    assert before is not None and after is not None
    assert after.seen_at > before.seen_at and after.trainers == before.trainers != {}
    cluster.sources = sources


def test_a_slot_that_starts_without_its_database_is_there_when_that_is_back(cluster: Cluster) -> None:
    with cluster.records.write() as rows:
        rows.slots.forget_all()
    cluster.faults["gpu0"].away_for(10.0)
    cluster.slots["gpu0"].heartbeat.round()
    assert cluster.row() is None
    cluster.clock.wait(10.0)
    cluster.slots["gpu0"].heartbeat.round()
    assert cluster.row() is not None


def test_a_broker_that_lost_the_next_message_costs_a_lease_and_no_trial(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 2), ({}, 4)))
    cluster.ticker.tick()
    chain, _, slot = cluster.messages.popleft()
    assert cluster.slots[slot].run_stage(chain, 0)
    cluster.settle()
    cluster.clock.wait(LEASE + 1)  # the message that begins stage 1 does not come
    cluster.slots[slot].heartbeat.round()
    assert not cluster.slots[slot].run_stage(chain, 1)  # it comes when nobody waits any more
    cluster.clock.wait(LEASE + 1)
    done = cluster.run(study)
    assert done.state == StudyState.COMPLETED
    assert done.executed == done.unique == 4
