"""No trainer of the bank that is wrong in some way is wrong in silence, and none that is right is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from alone import Alone
from bank import LEFT, RIGHT, SAVED, WRONG, changes, compare_studies, compare_study, file_of, sources, trainers
from causes import is_true
from cluster import Cluster

from app.events.database import Database
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

Start = Callable[[bool], Cluster]


@pytest.fixture
def start(database: Database, tmp_path: Path, warm: Warm) -> Iterator[Start]:
    """Makes two slots that train in processes of their own, with or without proofs."""
    made: list[Cluster] = []

    def begin(proofs: bool) -> Cluster:
        start, how = partial(TrainerProcess.start, warm), {"slots": 2, "silence": 60.0}
        cluster = Cluster(database, tmp_path, start=start, proofs=proofs, **how)
        cluster.sources = sources()
        made.append(cluster)
        return cluster

    yield begin
    for each in made:
        each.close()


def test_the_bank_is_complete() -> None:
    assert len(dict(trainers(WRONG))) >= 60 and len(dict(trainers(RIGHT))) >= 35


@pytest.mark.night
@pytest.mark.parametrize("file", WRONG)
def test_a_wrong_trainer_shows_wrong_values_without_verification(file: str, start: Start, alone: Alone) -> None:
    """Else it would prove nothing that it is caught."""
    shown = compare_studies(start(False), dict(trainers([file])), alone)
    assert [name for name, each in shown.items() if not each.other] == []


@pytest.mark.slow
@pytest.mark.parametrize("file", WRONG)
def test_every_wrong_trainer_is_marked(file: str, start: Start, alone: Alone) -> None:
    kinds = dict(trainers([file]))
    shown = compare_studies(start(True), kinds, alone)
    silent = {name: each for name, each in shown.items() if each.silent_errors}
    assert {name: each for name, each in silent.items() if kinds[name].is_repeatable or not each.isolated} == {}
    assert [name for name, each in shown.items() if each.state != "completed"] == []
    assert {name: each.isolated for name, each in shown.items() if not is_true(name, each.isolated)} == {}
    isolated = {name: each.other for name, each in shown.items() if each.isolated and name not in SAVED}
    assert {name: each for name, each in isolated.items() if each and kinds[name].is_repeatable} == {}


@pytest.mark.slow
@pytest.mark.parametrize("file", RIGHT)
def test_no_right_trainer_is_refused_or_marked(file: str, start: Start, alone: Alone) -> None:
    shown = compare_studies(start(True), dict(trainers([file])), alone)
    assert {name: each for name, each in shown.items() if each.other or each.errors} == {}
    assert {name: each.isolated for name, each in shown.items() if each.isolated or each.verdict == "inexact"} == {}
    assert {name: each.marks for name, each in shown.items() if each.outcome != "plain"} == {}
    assert {name: each.verdict for name, each in shown.items() if each.verdict not in ("checked", "verified")} == {}
    assert {name for name, each in shown.items() if each.state != "completed"} == set()


@pytest.mark.slow
@pytest.mark.parametrize("proofs", [True, False], ids=["proven", "unproven"])
def test_leftovers_of_training_reach_no_other_trial(start: Start, alone: Alone, proofs: bool) -> None:
    kinds = dict(trainers(LEFT))
    shown = compare_studies(start(proofs), kinds, alone)
    assert {name: each.other for name, each in shown.items() if each.other} == {}
    assert {name for name, each in shown.items() if each.isolated or each.state != "completed"} == set()


def test_a_process_without_leftovers_is_reused(start: Start, alone: Alone) -> None:
    cluster = start(False)
    shown = compare_studies(cluster, {"cached-function": dict(trainers(RIGHT))["cached-function"]}, alone)
    assert shown["cached-function"].state == "completed" and sum(cluster.processes.values()) <= len(cluster.slots)


def test_a_trial_after_a_change_is_not_verified_by_a_constant_one(start: Start, alone: Alone) -> None:
    """This trainer is wrong only there: a hand-over that lies there is compared as well, and finds it."""
    cluster, kind = start(True), dict(trainers(WRONG))["together"]
    study = cluster.run(cluster.submit(changes("together")))
    shown = compare_study(cluster.plan, study, alone, file_of(kind))
    assert not shown.silent_errors and (shown.isolated or list(shown.other) == [2])
