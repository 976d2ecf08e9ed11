"""A slot trains steps again that are on record, in processes of its own, and says whether they come out the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from stacks import Json
from toys import switch

from app.domain import events as e
from app.domain.terms import StudyId, Verdict
from app.domain.trainer_check import unread_hp
from app.events.database import Database
from app.exactness import judge, trial_marks
from app.registry import Catalogue, TrainerSource
from app.search.replay import replay
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

TRAINERS = str(Path(__file__).parent / "inexact_trainers.py")
NAMES = ("right", "ordinary", "forgetful", "idle", "unloadable", "failing", "leaving", "silent")


@pytest.fixture
def processes() -> list[TrainerProcess]:
    """All processes that the slot has started."""
    return []


@pytest.fixture
def proving(sqlite_url: str, tmp_path: Path, warm: Warm, processes: list[TrainerProcess]) -> Iterator[Cluster]:
    """One slot that trains in processes of its own, and makes proofs."""

    def start() -> TrainerProcess:
        processes.append(TrainerProcess.start(warm))
        return processes[-1]

    database = Database(sqlite_url)
    made = Cluster(database, tmp_path, start=start, silence=60.0, proofs=True)
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


def comparisons(cluster: Cluster, proof: str = "") -> list[e.ExactnessTested]:
    tested = cluster.events(e.ExactnessTested)
    return [each for each in tested if proof in ("", each.proof) and not each.goes_on]


def is_identical(cluster: Cluster, study: StudyId) -> bool:
    """Whether replay derives the same log."""
    recorded = cluster.log.read(cluster.stream, limit=100_000)
    return replay([(each.version, each.event) for each in recorded], study).identical


def test_a_right_trainer_is_tried_and_proven(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("right")))
    assert (done.state, done.isolated) == ("completed", "")
    assert [test.proof for test in comparisons(proving)][:2] == ["check", "handover"]
    assert not any(test.difference or test.stray or test.unproven for test in comparisons(proving))
    assert done.executed == done.unique
    alone = proving.run(proving.submit(study("right", merge=False, check=False)))
    assert proving.values(alone.id) == proving.values(done.id)
    assert is_identical(proving, done.id)


def test_the_mode_of_a_network_and_the_order_of_a_group_are_no_suspicion(proving: Cluster) -> None:
    """They cost each ordinary trainer a whole trial: it was compared before its last evaluation, and not behind it."""
    done = proving.run(proving.submit(study("ordinary", eval_every=1)))
    compared = comparisons(proving, "handover")
    assert compared and not any(test.difference or test.stray or test.unproven for test in compared)
    assert not done.isolated


@pytest.mark.slow
def test_what_the_state_leaves_out_has_each_trial_trained_alone(proving: Cluster) -> None:
    isolated = proving.run(proving.submit(study("forgetful")))
    alone = proving.run(proving.submit(study("forgetful", merge=False, inexact="allow")))
    assert "self.count" in isolated.isolated
    assert proving.values(isolated.id) == proving.values(alone.id)
    assert isolated.executed == 18 and 0 < isolated.proof_steps <= 6
    assert is_identical(proving, isolated.id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "difference", "cause"),
    [
        ("forgetful", "1 of 11 leaves differ, the first is trainer.weights (by up to", "self.count not restored"),
        ("idle", "", ""),
    ],
)
def test_a_check_reports_the_difference_and_its_cause(
    proving: Cluster, trainer: str, difference: str, cause: str
) -> None:
    """tests/exactness has sixty more trainers, each with its cause."""
    proving.run(proving.submit(study(trainer)))
    [check] = comparisons(proving, "check")
    assert difference in check.difference and bool(difference) == bool(check.difference), check
    assert (f"Likely: {cause}" if cause else "") in check.difference, check
    assert not (check.unproven or check.begin or check.stray) and check.step == 2


@pytest.mark.slow
def test_what_does_not_come_back_and_changes_nothing_is_compared_as_a_whole_and_no_mark(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("idle")))
    strays = [set(each.stray) for each in comparisons(proving, "handover") if each.stray]
    assert strays and strays[0] == {"self.seen"}, "of another one the trainer says that it does not matter"
    assert [each for each in comparisons(proving, "whole") if each.difference] == [] != comparisons(proving, "whole")
    assert not done.isolated and not any(map(trial_marks(proving.plan, done), done.trials))
    assert judge(proving.plan, done).verdict == Verdict.VERIFIED


SCRIPT = """
import numpy
import stagetree

class Data:
    def __init__(self):
        self.rng = numpy.random.default_rng(0)

run = stagetree.attach("script")
data, where = Data(), 0.0

def load(state):
    global where
    where = state["where"]

run.state(save=lambda: {"where": where}, load=load, evaluate=lambda: {"score": where})
for step, hp in run.steps():
    where += hp["lr"] * data.rng.random()
"""


@pytest.mark.slow
def test_a_script_is_told_of_in_words_of_its_own(proving: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    proving.sources = Catalogue([str(file)]).describe()
    proving.run(proving.submit(study("script", inexact="refuse")))
    [check] = comparisons(proving, "check")
    assert check.unread == []
    assert check.difference.endswith("Likely: data.rng (a global of script.py) not restored by load() of run.state")


@pytest.mark.slow
def test_hyper_parameters_that_a_script_does_not_read_are_on_record(proving: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("data.rng.random()", "1.0"))
    proving.sources = Catalogue([str(file)]).describe()
    asked = study("script")
    for trial in asked["tuner"]["trials"]:
        trial["hp"]["decay"] = 0.1
    done = proving.run(proving.submit(asked))
    [check] = comparisons(proving, "check")
    assert (check.unread, check.difference) == (["decay"], "")
    assert unread_hp(proving.plan, done) == ["decay"]
    other = proving.study(proving.submit(study("script")))
    assert unread_hp(proving.plan, other) == [], "it has no such hyper-parameter"


@pytest.mark.slow
def test_a_fresh_process_that_cannot_take_the_state_is_a_difference(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("unloadable")))
    [check] = comparisons(proving, "check")
    words = "the trainer failed when it resumed from its state: RuntimeError: the buffers are not there yet"
    assert check.difference == done.isolated == words
    assert done.state == "completed"


@pytest.mark.parametrize(
    ("trainer", "kind", "words"),
    [("failing", "exception", "the loss went through the roof"), ("silent", "metric", "does not report 'score'")],
)
def test_a_trainer_that_fails_its_check_fails_the_study(proving: Cluster, trainer: str, kind: str, words: str) -> None:
    done = proving.run(proving.submit(study(trainer)))
    [failure] = proving.events(e.StageFailed)
    assert (done.state, failure.kind, done.executed) == ("failed", kind, 0)
    assert words in failure.error and words in (done.error or "")


def test_what_a_trainer_printed_that_fails_its_check_is_in_the_trials_log(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("failing")))
    header, printed = (proving.folder / "logs" / done.id / "0.log").read_text().splitlines()
    assert header.startswith("--- check at node ") and printed == "a batch of 4, and a loss of 1e30"
    kept = proving.run(proving.submit(study("right")))
    assert "check" not in (proving.folder / "logs" / kept.id / "0.log").read_text(), "its own stage is enough"


def test_a_crash_in_a_check_is_no_verdict(proving: Cluster) -> None:
    done = proving.run(proving.submit(study("leaving")))
    [check] = comparisons(proving)
    assert check.unproven.startswith("the check ended with a crash: ") and not check.difference
    assert [trial.state for trial in done.trials] == ["failed"] * 3
    assert {failure.kind for failure in proving.events(e.StageFailed)} == {"crash"}


def test_trials_alone_have_a_process_of_their_own(proving: Cluster, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    done = proving.run(proving.submit(study("forgetful", trainer_args={"journal": str(journal)})))
    assert done.isolated
    steps = [tuple(map(int, line.split())) for line in journal.read_text().splitlines()][-18:]
    assert [count for _, count in steps] == [1, 2, 3, 4, 5, 6] * 3
    assert len({pid for pid, _ in steps}) == 3 and os.getpid() not in {pid for pid, _ in steps}
    assert not [each for each in proving.events(e.CheckpointKept) if each.intermediate]
