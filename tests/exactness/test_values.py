"""A comparison under some values of the hyper-parameters proves nothing for trials with other values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from alone import Alone
from bank import Held, compare_study, spec
from cluster import Cluster
from stacks import Json
from toys import switch

from app.domain.events import ExactnessTested
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainId, StudyId, VerificationKind
from app.events.database import Database
from app.registry import TrainerSource

FILE = str(Path(__file__).parent / "wrong_from.py")

LONG: Json = {"hp": {"lr": 0.4, "optimizer": "sgd"}, "steps": 300}
"""While it trains, the other slots have nothing else to do but to prove."""


def study(other: Json) -> Json:
    """Trials that were trained on from saved states with one optimizer, one of them twice, and one with others."""
    twice = {"family": "values", "values": [0.1, 0.3, 0.2], "milestones": [8, 12]}
    rates = [0.1, switch(0.1, 0.3, 8), twice, switch(0.1, 0.2, 9)]
    listed: list[Json] = [{"hp": {"lr": rate, "optimizer": "sgd"}, "steps": 24} for rate in rates]
    tuner = {"kind": "trials", "trials": [LONG, *listed, {"hp": {"lr": 0.1, **other}, "steps": 20}]}
    return spec("wrong-option", tuner=tuner, audit=0.0)


def views_by_round(cluster: Cluster, submitted: StudyId, alone: Alone) -> Iterator[Held]:
    """The view after each round in which the long trial trains."""
    while True:
        cluster.beat()
        cluster.ticker.tick()
        trains = [each for each in cluster.messages if is_long(cluster.plan, ChainId(each[0]))]
        for message in trains:
            cluster.messages.remove(message)
        while cluster.messages:
            cluster.deliver()
        cluster.messages.extend(trains)
        cluster.settle()
        yield compare_study(cluster.plan, cluster.study(submitted), alone, FILE)


def is_long(plan: SearchPlan, name: ChainId) -> bool:
    under_way = plan.chains.get(name)
    return under_way is not None and under_way.proof is None and under_way.stages[-1].end == LONG["steps"]


@pytest.fixture
def cluster(database: Database, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(database, tmp_path, slots=3, proofs=True)
    made.sources = {"wrong-option": TrainerSource(FILE, "1")}
    yield made
    made.close()


def test_a_trial_is_not_verified_by_trials_with_another_optimizer(cluster: Cluster, alone: Alone) -> None:
    """Idle slots train it alone, and find the fault; until then it has a mark."""
    other = {"family": "values", "values": ["sgd", "adam"], "milestones": [10]}
    shown = list(islice(views_by_round(cluster, cluster.submit(study({"optimizer": other})), alone), 14))
    assert [each.silent_errors for each in shown if each.silent_errors] == []
    assert shown[-1].verdict == "inexact" and shown[-1].isolated


def test_trials_with_one_optimizer_verify_each_other(cluster: Cluster, alone: Alone) -> None:
    submitted = cluster.submit(study({"optimizer": "sgd", "lr": switch(0.1, 0.25, 10)}))
    shown = list(islice(views_by_round(cluster, submitted, alone), 14))
    assert not any(shown[-1].other.values()) and shown[-1].verdict in ("checked", "verified")
    assert {number: mark for number, mark in shown[-1].marks.items() if mark} == {}
    wholes = [test for test in cluster.events(ExactnessTested) if test.proof == VerificationKind.WHOLE]
    assert len({test.node for test in wholes}) == 2  # on the way of one trial
