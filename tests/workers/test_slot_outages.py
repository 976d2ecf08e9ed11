"""Outages of one kind each, on real databases; tests/world has outages at any moment and together."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from studies import ALONE, BRANCHES

from app.domain import events as e


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
