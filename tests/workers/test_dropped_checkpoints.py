"""Drop anything that the rule allows, ask for anything: the same results, with real states."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cluster import Cluster
from hypothesis import given
from hypothesis import strategies as st
from studies import spec
from toys import switch

from app.domain import commands as c
from app.events.database import Database
from app.scheduling.costs import Costs
from app.scheduling.retention import deletion_order
from tests.plans import max_examples


def results(cluster: Cluster, seed: int, drops: Random | None) -> list[Any]:
    """What studies that ask for trials on one trunk find; after each, some of what may go has gone."""
    rng, found, tag = Random(seed), list[Any](), "kept" if drops is None else "dropped"
    for _ in range(4):
        decays = [switch(0.1, rng.choice([0.2, 0.3]), rng.choice([2, 4])) for _ in range(rng.randint(1, 3))]
        trials = [({"lr": decay}, rng.randint(1, 9)) for decay in decays]
        study = cluster.submit(spec(*trials, trainer_args={"tag": tag}, keep_best=rng.randint(0, 1)))
        cluster.run(study)
        found.append(cluster.values(study))
        if drops is not None:
            drop(cluster, drops)
    return found


def drop(cluster: Cluster, rng: Random) -> None:
    going = list(deletion_order(cluster.plan, Costs()))
    some = tuple(rng.sample(going, rng.randint(0, len(going))))
    cluster.give(c.ReleaseCheckpoints(checkpoints=some, reason="budget"))
    deleting = cluster.deleting()
    while not deleting.look().is_done:
        pass
    assert not cluster.plan.released


@pytest.mark.slow
@max_examples(6)
@given(seed=st.integers(0, 10**9))
def test_drop_anything_that_may_go_and_ask_for_anything(seed: int) -> None:
    with TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/stagetree.db")
        database.create()
        cluster = Cluster(database, Path(folder))
        assert results(cluster, seed, Random(seed)) == results(cluster, seed, None)
        cluster.close()
