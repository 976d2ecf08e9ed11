"""Errors of the user's code are retried before they count; other errors never count."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cluster import TOY, Cluster
from in_process import InProcess
from sqlalchemy import text
from studies import ALONE, BRANCHES, spec
from toys import switch

from app.domain import events as e
from app.domain.terms import FailureKind, StudyState
from app.registry import TrainerSource
from app.workers.warm import WarmFailed
from stagetree.runtime.failures import TrainerFailed


def failing(kind: str, error: str = "it broke") -> Callable[[], None]:
    def fail() -> None:
        raise TrainerFailed(kind, error, 3, f"{kind} in train")

    return fail


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exception", "out_of_memory", "device", "crash", "hang"])
def test_a_failed_stage_is_retried_in_a_fresh_process(cluster: Cluster, kind: str) -> None:
    expected = cluster.values(cluster.run(cluster.submit(ALONE)).id)
    study = cluster.submit(BRANCHES)
    before = cluster.processes["gpu0"]
    cluster.at("train", 3, failing(kind))
    done = cluster.run(study)
    assert done.state == StudyState.COMPLETED
    assert cluster.values(study) == expected
    assert [(event.kind, event.step) for event in cluster.events(e.StageFailed)] == [(kind, 3)]
    assert cluster.processes["gpu0"] >= before + 2


def test_a_repeated_error_fails_only_trials_that_need_the_step(cluster: Cluster) -> None:
    raises = {"mood": switch("fine", "raise", 5)}
    done = cluster.run(cluster.submit(spec(({}, 8), (raises, 8))))
    assert [trial.state for trial in done.trials] == ["completed", "failed"]
    failures = cluster.events(e.StageFailed)
    assert len(failures) == 3
    assert len({(event.step, event.signature) for event in failures}) == 1
    assert failures[0].step == 5
    assert "the loss went through the roof" in failures[0].error


def test_a_failed_evaluation_fails_only_trials_that_wait_for_it(cluster: Cluster) -> None:
    done = cluster.run(cluster.submit(spec(({}, 4), ({"mood": switch("fine", "absurd", 4)}, 6))))
    assert [trial.state for trial in done.trials] == ["completed", "failed"]
    assert {event.step for event in cluster.events(e.StageFailed)} == {5}  # 6 could not be answered; 5 was good


def test_an_unsaveable_state_fails_only_trials_that_need_it(cluster: Cluster) -> None:
    """In any process the same would happen: it is not tried again."""
    done = cluster.run(cluster.submit(spec(({"mood": "unsavable"}, 4), ({}, 4))))
    assert [trial.state for trial in done.trials] == ["failed", "completed"]
    [failed] = cluster.events(e.StageFailed)
    assert (failed.kind, failed.signature) == (FailureKind.EXCEPTION, None)
    assert failed.error.startswith("state_dict()[")
    assert done.trials[0].error is not None and done.trials[0].error["tries"] == 1


@pytest.mark.parametrize(
    "fault",
    [TrainerFailed("internal", "the interpreter that it was forked from has ended"), ZeroDivisionError("a bug")],
)
def test_a_fault_of_ours_gives_the_chain_back(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    def fail() -> None:
        raise fault

    cluster.at("train", 2, fail)
    done = cluster.run(cluster.submit(BRANCHES))
    assert done.state == StudyState.COMPLETED
    assert not cluster.events(e.StageFailed)
    assert "interrupted" in {event.outcome for event in cluster.events(e.ChainEnded)}
    assert str(fault) in caplog.text


def losing_ranks(times: int) -> Callable[[str, InProcess, str, int], None]:
    """A rank is lost in the third step, this often."""
    lost = iter(range(times))

    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if what == "train" and step == 2 and next(lost, None) is not None:
            raise TrainerFailed("rank", "rank 1 was ended by signal 9", 2)

    return script


def test_a_lost_rank_is_charged_to_nobody_until_it_is_no_chance(cluster: Cluster) -> None:
    cluster.script = losing_ranks(2)
    done = cluster.run(cluster.submit(spec(({}, 4))))
    assert done.state == StudyState.COMPLETED
    assert not cluster.events(e.StageFailed)


def test_a_rank_that_is_lost_each_time_ends_the_trial(cluster: Cluster) -> None:
    cluster.script = losing_ranks(1000)
    done = cluster.run(cluster.submit(spec(({}, 4))))
    assert [trial.state for trial in done.trials] == ["failed"]
    assert {event.kind for event in cluster.events(e.StageFailed)} == {FailureKind.CRASH}


def test_a_fault_of_ours_that_never_ends_ends_the_trial(cluster: Cluster) -> None:
    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if what == "train" and step == 2:
            raise TrainerFailed("internal", "a bug", 2)

    cluster.script = script
    done = cluster.run(cluster.submit(spec(({}, 4))))
    assert [trial.state for trial in done.trials] == ["failed"]


# ------------------------------------------------------------------------------------------------------ a sick slot


SICK = 3
"""The number of failures on one slot that puts it in quarantine, if others succeed."""

MANY = spec(*(({"lr": lr / 100}, 4) for lr in range(1, 16)))


def sick(cluster: Cluster, slot: str) -> None:
    """All work on that slot fails at once."""

    def script(name: str, process: InProcess, what: str, step: int) -> None:
        if name == slot and what == "train":
            raise TrainerFailed("device", "CUDA error: an illegal memory access", step, "AcceleratorError")

    cluster.script = script


@pytest.mark.slow
def test_a_slot_that_passes_its_test_is_back_at_once_the_first_time(pair: Cluster) -> None:
    sick(pair, "gpu1")
    study = pair.submit(MANY)
    while len(pair.events(e.StageFailed)) < SICK:
        pair.round()
    assert pair.row("gpu1").quarantined_until is None  # tested, and well: the first time that is enough
    done = pair.run(study, rounds=100)
    assert {trial.state for trial in done.trials} == {"completed"}
    row = pair.row("gpu1")
    assert row.quarantined_until is not None and "different nodes failed here in a row" in row.note


def fail_gpu1(pair: Cluster, what_else: Callable[[Cluster, str], None]) -> None:
    """gpu1 is sick, until its third failure was reported and what followed is over.

    what_else: called before each failure of gpu1 with "fails", and before each start of a process there with "starts".
    """
    sick(pair, "gpu1")
    fails = pair.script

    def script(name: str, process: InProcess, what: str, step: int) -> None:
        if name == "gpu1" and what in ("train", "start"):
            what_else(pair, {"train": "fails", "start": "starts"}[what])
        fails(name, process, what, step)

    pair.script = script
    pair.submit(MANY)
    for _ in range(60):
        if len(pair.events(e.StageFailed)) >= SICK:
            return
        pair.round()
    raise AssertionError("the sick slot does not fail")


def test_a_slot_that_fails_its_test_stays_in_quarantine(pair: Cluster) -> None:
    def fail_the_test(cluster: Cluster, what: str) -> None:
        if what == "starts" and len(cluster.events(e.StageFailed)) >= SICK:
            raise WarmFailed("the device is gone")

    fail_gpu1(pair, fail_the_test)
    assert pair.row("gpu1").quarantined_until is not None


@pytest.mark.parametrize(
    ("what", "failures"), [("starts", SICK), ("fails", SICK - 1)], ids=["in its test", "before its last failure counts"]
)
def test_a_database_outage_quarantines_no_slot(pair: Cluster, what: str, failures: int) -> None:
    """It has passed its test; and whether others succeed is not guessed."""

    def lose_the_database(cluster: Cluster, happens: str) -> None:
        if happens == what and len(cluster.events(e.StageFailed)) == failures:
            cluster.faults["gpu1"].away_for(5.0)

    fail_gpu1(pair, lose_the_database)
    assert pair.faults["gpu1"].refusals
    assert (pair.row("gpu1").quarantined_until, pair.row("gpu1").note) == (None, None)
    assert [event.outcome for event in pair.events(e.ChainEnded)].count("interrupted") == 0


def test_the_only_slot_is_never_in_quarantine_for_what_fails_on_it(cluster: Cluster) -> None:
    """No other slot succeeds, so the trials may be at fault."""
    sick(cluster, "gpu0")
    done = cluster.run(cluster.submit(spec(*(({"lr": lr / 100}, 4) for lr in range(1, 6)))))
    assert {trial.state for trial in done.trials} == {"failed"}
    assert cluster.row().quarantined_until is None


@pytest.mark.parametrize(
    "problem", [WarmFailed("torch cannot be imported"), TrainerFailed("device", "torch cannot be imported", 0, "")]
)
def test_a_slot_where_no_process_starts_is_put_in_quarantine_and_says_why(cluster: Cluster, problem: Exception) -> None:
    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if what == "start":
            raise problem

    cluster.script = script
    study = cluster.submit(spec(({}, 4)))
    cluster.round()
    row = cluster.row()
    assert row.quarantined_until is not None and "torch cannot be imported" in row.note
    assert not cluster.events(e.StageFailed)
    cluster.script = lambda *_: None
    cluster.clock.wait(61)
    assert cluster.run(study).state == StudyState.COMPLETED
    cluster.beat()
    assert cluster.row().note is None


# ------------------------------------------------------------------------------------------------ versions and forms


def test_a_chain_of_another_version_is_given_back_without_blame(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 4)))
    cluster.ticker.tick()
    cluster.sources["toy"] = TrainerSource(TOY, "2")  # edited in between
    cluster.deliver()
    cluster.settle()
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["interrupted"]
    assert not cluster.events(e.StageFailed)
    row = cluster.row()
    assert row.trainers == {"toy": "2"} and row.chain is None
    cluster.sources["toy"] = TrainerSource(TOY, "1")
    assert cluster.run(study).state == StudyState.COMPLETED


def test_code_that_changes_while_it_is_loaded_is_not_run_under_its_old_version(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 4)))
    cluster.at("build", 0, lambda: cluster.sources.update(toy=TrainerSource(TOY, "2")))
    cluster.work()
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["interrupted"]
    cluster.sources["toy"] = TrainerSource(TOY, "1")
    assert cluster.run(study).executed == 4


def test_a_form_of_another_version_is_given_back_and_the_slot_stands_aside(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 4)))
    cluster.ticker.tick()
    chain = cluster.messages[0][0]
    with cluster.database.write() as session:
        row = next(row for row in cluster.live() if row.chain == chain)
        session.execute(
            text("UPDATE chains SET assignment = :new"), {"new": json.dumps({**row.assignment.to_json(), "format": 99})}
        )
    cluster.deliver()
    cluster.settle()
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["interrupted"]
    slot = cluster.row()
    assert slot.quarantined_until is not None and "format 99" in slot.note
    cluster.clock.wait(61)
    assert cluster.run(study).state == StudyState.COMPLETED


def test_a_failed_evaluation_of_another_study_fails_no_trial_of_this_one(cluster: Cluster) -> None:
    """Both share all eight steps; only the other is evaluated at every third."""
    mine, theirs = cluster.submit(spec(({}, 8))), cluster.submit(spec(({}, 8), eval_every=3))

    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if (what, step) == ("evaluate", 3):
            raise TrainerFailed("exception", "ZeroDivisionError", 3, "ZeroDivisionError in evaluate")

    cluster.script = script
    assert [trial.state for trial in cluster.run(mine).trials] == ["completed"]
    assert [trial.state for trial in cluster.run(theirs).trials] == ["failed"]
    assert [(event.step, event.evaluated) for event in cluster.events(e.StageFailed)] == [(2, 3)] * 3
