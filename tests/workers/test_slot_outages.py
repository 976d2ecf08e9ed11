"""Outages of one kind each, on real databases; tests.world has those that come at any moment and together."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import LEASE, Cluster
from sqlalchemy import Engine, text
from studies import ALONE, BRANCHES, spec

from app.domain import events as e
from app.domain.terms import StudyState


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
