"""A slot trains steps again that are on record, and says whether they come out the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from toys import switch

from app.domain import events as e
from app.events.database import Database
from app.registry import TrainerSource
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

TRAINERS = str(Path(__file__).parent / "inexact_trainers.py")
NAMES = ("right", "forgetful", "idle", "global", "drawing", "watched", "unloadable", "failing", "leaving")
Json = dict[str, Any]


@pytest.fixture
def proving(sqlite_url: str, tmp_path: Path, warm: Warm) -> Iterator[Cluster]:
    """One slot that trains in processes of its own, and makes proofs."""
    database = Database(sqlite_url)
    made = Cluster(database, tmp_path, start=lambda: TrainerProcess.start(warm), silence=60.0, proofs=True)
    made.sources = {name: TrainerSource(TRAINERS, "1") for name in NAMES}
    yield made
    made.close()
    database.dispose()


def study(trainer: str, **fields: Any) -> Json:
    """Three schedules that share their first two or three steps."""
    learning_rates = (switch(0.1, 0.2, 2), switch(0.1, 0.3, 3), switch(0.1, 0.4, 3))
    trials = [{"hp": {"lr": lr}, "steps": 6} for lr in learning_rates]
    named = {"name": "study", "trainer": trainer, "metric": "score", "mode": "max"}
    return {**named, "tuner": {"kind": "trials", "trials": trials}, **fields}


def proven(cluster: Cluster, proof: str = "") -> list[e.ExactnessTested]:
    return [each for each in cluster.events(e.ExactnessTested) if proof in ("", each.proof)]


def test_a_right_trainer_is_tried_and_proven(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("right")))
    assert done.state == "completed"
    print(proven(proving))
    assert [test.proof for test in proven(proving)][:2] == ["check", "handover"]
    assert not any(test.difference or test.stray or test.unproven for test in proven(proving))


def test_forgetful(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("forgetful")))
    print(proven(proving))
    print(done.state, done.isolated, proving.values(done.id), done.executed, done.proof_steps)
    alone = proving.run(proving.submit(study("forgetful", merge=False, seed=0)))
    print(proving.values(alone.id))
    raise AssertionError
