"""Which trials fail with an error, and which continue."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.failures import last_line
from app.domain.objectives import metric_problem
from app.domain.search_plan import MAX_LOST, Node
from app.domain.stage_tree import build_stage_tree
from app.domain.terms import ChainId, ChainOutcome, StateConflict, StudyId
from app.domain.trainer_check import check_failure_text
from app.events.rows import SlotRecord
from app.scheduling.frontier import Span
from app.scheduling.placement import Candidates, place, stages_of
from tests.plans import METRIC, Story, steps

EARLY, LATE = steps(1, 2, milestones=[4]), steps(1, 3, milestones=[10])


def states(story: Story, study: StudyId) -> list[str]:
    return [trial.state for trial in story.plan.studies[study].trials]


def results(story: Story, study: StudyId) -> list[tuple[int, int]]:
    """(trial, step) of each result, in the order of the history."""
    return [(entry.trial, entry.steps) for entry in story.plan.studies[study].history if entry.kind == "result"]


def test_a_metric_that_is_no_number_fails_trials_that_requested_it(story: Story) -> None:
    mine = story.submit(({"h": 1}, 5), ({"h": 1}, 20), ({"h": LATE}, 20), ({"h": EARLY}, 20))
    theirs = story.submit(({"h": 1}, 5), metric="loss")
    (node,) = story.path(mine)
    story.happen(e.Evaluated(node=node.id, step=5, metrics={METRIC: None, "loss": 1.0}))
    assert states(story, mine) == ["failed", "active", "active", "active"]
    assert states(story, theirs) == ["completed"]
    assert (story.trial(mine).error or {})["kind"] == "nan"


def test_a_bad_metric_of_another_study_fails_no_trial_of_this_one(story: Story) -> None:
    mine = story.submit(({"h": 1}, 10))
    story.submit(({"h": 1}, 10), eval_every=3)
    (node,) = story.path(mine)
    story.evaluate(node.id, 3, None)
    assert states(story, mine) == ["active"]
    story.evaluate(node.id, 10)
    assert states(story, mine) == ["completed"]
    later = story.submit(({"h": 1}, 3), ({"h": 1}, 10))
    assert states(story, later) == ["failed", "completed"]


def test_a_trial_that_waits_at_two_steps_fails_once(story: Story) -> None:
    study = story.submit(({"h": 1}, 5))
    story.give(c.ApplyTunerActions(study=study, actions=(c.Extend(trial=0, steps=10),)))
    (node,) = story.path(study)
    chain = story.assign((node, 0, 10))
    story.happen(e.StageFailed(chain=chain.id, index=0, step=2, kind="exception", error="Boom", seconds=2.0))
    assert [line.kind for line in story.plan.studies[study].history].count("fail") == 1
    assert states(story, study) == ["failed"] and story.plan.studies[study].active == 0


def test_a_metric_that_is_not_reported_fails_all_who_would_wait_for_it(story: Story) -> None:
    study = story.submit(({"h": 1}, 5), ({"h": 1}, 20), metric="f1")
    (node,) = story.path(study)
    story.happen(e.Evaluated(node=node.id, step=5, metrics={METRIC: 0.5, "loss": 1.0}))
    assert states(story, study) == ["failed", "failed"]
    error = story.trial(study).error or {}
    assert error["kind"] == "metric"
    assert error["error"] == "the trainer does not report 'f1', the metric of the study; it reports accuracy, loss"
    assert results(story, study) == []


@pytest.mark.parametrize(
    ("metric", "meant"), [("acc", "val_accuracy"), ("val_acuracy", "val_accuracy"), ("val", None), ("f1", None)]
)
def test_a_similar_metric_is_suggested(metric: str, meant: str | None) -> None:
    problem = metric_problem(metric, {"val_accuracy": 0.5, "val_loss": 1.0}, 5)
    assert problem is not None
    assert problem["error"].partition("; did you mean ")[2] == (f"{meant}?" if meant else "")


def test_a_trial_that_comes_later_meets_the_same_metric(story: Story) -> None:
    study = story.submit(({"h": 1}, 5))
    story.evaluate(story.path(study)[0].id, 5, None)
    other = story.submit(({"h": 1}, 5))
    assert states(story, other) == ["failed"]
    assert story.plan.studies[other].active == 0


def test_a_failed_stage_fails_trials_that_wait_beyond_its_step(story: Story) -> None:
    study = story.submit(({"h": 1}, 5), ({"h": EARLY}, 20), ({"h": 1}, 9), ({"h": LATE}, 20), ({"h": 2}, 20))
    trunk, _ = story.path(study, 1)
    chain = story.assign((trunk, 0, 5), (trunk, 5, 10))
    story.train(chain)
    story.happen(e.StageFailed(chain=chain.id, index=1, step=7, kind="exception", error="Boom", seconds=2.0))
    assert states(story, study) == ["completed", "active", "failed", "failed", "active"]
    assert story.trial(study, 3).error == {"kind": "exception", "step": 7, "error": "Boom", "tries": 1}
    assert story.plan.studies[study].executed == 7
    assert not story.plan.chains
    assert not trunk.running
    assert {stage.end for stage in build_stage_tree(story.plan)} == {4, 20}


def test_a_stage_that_loses_its_worker_too_often_is_poison(story: Story) -> None:
    study = story.submit(({"h": 1}, 10), ({"h": EARLY}, 10), ({"h": 2}, 10))
    (node,) = story.path(study)
    for _ in range(MAX_LOST):
        assert not story.plan.is_suspect(node.id, 0)
        story.give(c.LoseChain(chain=story.assign((node, 0, 10)).id, steps=3, died_alone=True))
        assert states(story, study) == ["active", "active", "active"]
    assert story.plan.is_suspect(node.id, 0)
    story.give(c.LoseChain(chain=story.assign((node, 0, 10)).id, outcome=ChainOutcome.UNDELIVERED))
    assert states(story, study) == ["active", "active", "active"], "a message that was lost is not the stage's fault"
    (failed,) = story.give(c.LoseChain(chain=story.assign((node, 0, 10)).id, died_alone=True))
    assert isinstance(failed, e.StageFailed)
    assert (failed.kind, failed.step) == ("poison", 0)
    assert f"died {MAX_LOST + 1} times, the last time with no other stage beside it" in failed.error
    assert states(story, study) == ["failed", "failed", "active"]


def test_a_worker_that_died_with_all_beside_it_is_no_evidence(story: Story) -> None:
    """For example on a machine that is preempted each hour, or in a command that is killed repeatedly."""
    study = story.submit(({"h": 1}, 10))
    (node,) = story.path(study)
    for _ in range(5 * MAX_LOST):
        story.give(c.LoseChain(chain=story.assign((node, 0, 10)).id, steps=3))
    assert not node.lost and states(story, study) == ["active"]


def test_success_forgets_the_workers_that_were_lost(story: Story) -> None:
    """A machine that dies now and then during a long training is not the trial's fault."""
    study = story.submit(({"h": 1}, 10))
    (node,) = story.path(study)
    for _ in range(MAX_LOST):
        story.give(c.LoseChain(chain=story.assign((node, 0, 10)).id, steps=3, died_alone=True))
    assert node.lost == {0: MAX_LOST} and story.plan.is_suspect(node.id, 0)
    story.finish(story.assign((node, 0, 10)))
    assert node.lost == {} and not story.plan.is_suspect(node.id, 0)
    assert states(story, study) == ["completed"]


def test_an_evaluation_that_kills_its_worker_is_poison_too(story: Story) -> None:
    study = story.submit(({"h": 1}, 10), ({"h": 1}, 5))
    (node,) = story.path(study)
    story.keep(node.id, 10)
    for _ in range(MAX_LOST + 1):
        story.give(c.LoseChain(chain=story.assign((node, 10, 10)).id, died_alone=True))
    assert states(story, study) == ["failed", "active"]


def test_a_continued_chain_needs_no_checkpoint(story: Story) -> None:
    study = story.submit(({"h": EARLY}, 10))
    trunk, branch = story.path(study)
    chain = story.assign((trunk, 0, 4), (branch, 4, 10))
    story.train(chain)
    assert build_stage_tree(story.plan) == []
    story.train(chain)
    assert states(story, study) == ["completed"]


def test_a_late_report_of_a_deleted_checkpoint_keeps_the_next_one(story: Story) -> None:
    study = story.submit(({"h": EARLY}, 10))
    trunk, _ = story.path(study)
    story.keep(trunk.id, 4)
    key = trunk.checkpoints[4].key
    story.drop(trunk.id, 4)
    chain = story.assign((trunk, 0, 4))
    story.train(chain)
    story.happen(e.CheckpointDropped(node=trunk.id, step=4, key=key, reason="it is gone"))
    assert trunk.saving == {4: chain.id}


def test_an_ending_chain_keeps_the_saves_of_another(story: Story) -> None:
    study = story.submit(({"h": EARLY}, 10))
    trunk, branch = story.path(study)
    first = story.assign((trunk, 0, 4), (branch, 4, 10))
    story.train(first)
    story.keep(trunk.id, 4)
    story.drop(trunk.id, 4)
    second = story.assign((trunk, 0, 4))
    story.train(second)
    story.end(first, "lost")
    assert trunk.saving == {4: second.id}


def test_a_trial_completes_with_its_last_requested_result(story: Story) -> None:
    study = story.submit(({"h": 1}, 5))
    (node,) = story.path(study)
    story.evaluate(node.id, 10)
    story.give(c.ApplyTunerActions(study=study, actions=(c.Extend(trial=0, steps=10),)))
    assert states(story, study) == ["active"]
    story.evaluate(node.id, 5)
    assert states(story, study) == ["completed"]
    assert results(story, study) == [(0, 10), (0, 5)]
    assert story.plan.studies[study].active == 0


# ------------------------------------------------------------------------------------------------- when a study fails


def failing(story: Story, trials: int, **fields: Any) -> StudyId:
    """A study with this many failing trials, one after the other, and one that continues."""
    study = story.submit(*(({"h": number}, 5) for number in range(trials + 1)), **fields)
    for number in range(trials):
        chain = story.assign((story.path(study, number)[0], 0, 5))
        story.happen(e.StageFailed(chain=chain.id, index=0, step=0, kind="exception", error="a\nBoom", seconds=0.0))
    return study


@pytest.mark.parametrize(
    ("failures", "most", "fails"), [(1, 0, True), (0, 0, False), (2, 2, False), (3, 2, True), (3, None, False)]
)
def test_a_study_fails_beyond_its_limit_of_failures(story: Story, failures: int, most: int | None, fails: bool) -> None:
    study = failing(story, failures, **({} if most is None else {"max_failures": most}))
    events = story.give(c.CheckFailures(study=study, at=9.0))
    assert bool(events) == fails
    if fails:
        text = f"{failures} trials failed, more than max_failures: {most}; trial {failures - 1}: Boom"
        assert events == (e.StudyFailed(study=study, error=text, at=9.0),)
        assert states(story, study)[-1] == "cancelled"
    assert story.give(c.CheckFailures(study=study, at=10.0)) == ()


def test_a_study_whose_metric_is_not_reported_fails_at_the_first_evaluation(story: Story) -> None:
    """It is evaluated before any trial waits for a result."""
    study = story.submit(({"h": 1}, 20), ({"h": 2}, 20), metric="f1")
    story.evaluate(story.path(study)[0].id, 5)
    (failed,) = story.give(c.CheckFailures(study=study, at=9.0))
    assert isinstance(failed, e.StudyFailed)
    assert failed.error == "the trainer does not report 'f1', the metric of the study; it reports accuracy"
    assert states(story, study) == ["failed", "cancelled"]


def test_a_metric_that_was_reported_once_counts_as_reported(story: Story) -> None:
    study = story.submit(({"h": 1}, 20))
    (node,) = story.path(study)
    story.evaluate(node.id, 5)
    story.happen(e.Evaluated(node=node.id, step=10, metrics={"loss": 1.0}))
    assert states(story, study) == ["active"]
    assert story.give(c.CheckFailures(study=study, at=9.0)) == ()


def fail_evaluation(story: Story, node: Node, step: int, end: int) -> None:
    """Its evaluation at a step raises in a chain that goes from the node's start to `end`."""
    chain = story.assign((node, node.start, end))
    failed = {"kind": "exception", "error": "Boom", "seconds": 2.0, "signature": "Boom in evaluate"}
    story.happen(e.StageFailed(chain=chain.id, index=0, step=step - 1, evaluated=step, **failed))


def test_a_failed_evaluation_of_another_study_fails_no_trial_of_this_one(story: Story) -> None:
    mine, theirs = story.submit(({"h": 1}, 10)), story.submit(({"h": 1}, 10), eval_every=3)
    (node,) = story.path(mine)
    for tried in range(1, 4):
        assert stages_of(story.plan, [Span(node.id, 0, 10)])[0].evaluate == (3, 6, 9, 10)
        fail_evaluation(story, node, 3, 10)
        assert states(story, theirs) == ["failed" if tried == 3 else "active"]
        assert states(story, mine) == ["active"]
    assert stages_of(story.plan, [Span(node.id, 0, 10)])[0].evaluate == (6, 9, 10), "step 3 is given up"
    story.train(story.assign((node, 0, 10)))
    assert states(story, mine) == ["completed"]


def test_an_impossible_result_fails_trials_that_requested_it(story: Story) -> None:
    study = story.submit(({"h": 1}, 5), ({"h": 1}, 20), ({"h": EARLY}, 20), ({"h": 1}, 5), max_restarts=0)
    node = story.path(study)[0]
    fail_evaluation(story, node, 5, 5)
    assert states(story, study) == ["failed", "active", "active", "failed"]
    assert {stage.end for stage in build_stage_tree(story.plan)} == {4, 20}


def test_failed_evaluations_do_not_count_as_failed_training(story: Story) -> None:
    study = story.submit(({"h": 1}, 5), ({"h": 1}, 20), max_restarts=1)
    node = story.path(study)[0]
    for _ in range(2):
        fail_evaluation(story, node, 5, 5)
    assert states(story, study) == ["failed", "active"]
    chain = story.assign((node, 0, 20))
    failed = {"kind": "exception", "error": "Boom", "seconds": 2.0, "signature": "Boom in evaluate"}
    story.happen(e.StageFailed(chain=chain.id, index=0, step=4, **failed))
    assert states(story, study) == ["failed", "active"], "that was its first failure in training"


def test_a_step_that_failed_to_evaluate_is_not_awaited_at_its_kept_state(story: Story) -> None:
    mine, theirs = story.submit(({"h": 1}, 10)), story.submit(({"h": 1}, 10), eval_every=3, max_restarts=0)
    (node,) = story.path(mine)
    fail_evaluation(story, node, 3, 10)
    later = story.submit(({"h": 1}, 10), eval_every=3, max_restarts=0)
    story.keep(node.id, 3)
    assert 3 not in node.waiting and not story.trial(later).unevaluated
    assert states(story, theirs) == ["failed"]
    story.evaluate(node.id, 3)
    assert node.evaluation_failures == {}


def test_a_failed_evaluation_is_retried_on_another_slot(story: Story) -> None:
    mine, theirs = story.submit(({"h": 1}, 10)), story.submit(({"h": 1}, 10), eval_every=3, max_restarts=1)
    (node,) = story.path(mine)
    here = {"owner": "", "device": "cpu", "host": "", "pid": 1, "seen_at": 0.0, "trainers": {"digits": "1"}}
    slots = [SlotRecord(name=name, **here) for name in ("gpu0", "gpu1")]
    candidates, spans = Candidates(slots, slots), [Span(node.id, 0, 10)]
    fail_evaluation(story, node, 3, 10)
    assert place(story.plan, "plan", spans, None, candidates) is slots[1]
    fail_evaluation(story, node, 3, 10)
    assert states(story, theirs) == ["failed"]
    assert place(story.plan, "plan", spans, None, candidates) is slots[0], "no active trial needs step 3"


def failed_study(story: Story) -> tuple[StudyId, Node]:
    """A study that failed since its only trial failed by its own error."""
    study = story.submit(({"h": 1}, 10))
    (node,) = story.path(study)
    for _ in range(3):
        story.happen(stage_failure(story.assign((node, 0, 10)).id))
    assert states(story, study) == ["failed"]
    story.give(c.CloseStudy(study=study, at=5.0))
    assert story.plan.studies[study].state == "failed"
    return study, node


def stage_failure(chain: ChainId) -> e.StageFailed:
    return e.StageFailed(chain=chain, index=0, step=3, kind="exception", error="Boom", seconds=1.0, signature="Boom")


def test_a_failed_trial_is_tried_again_as_if_it_had_never_failed(story: Story) -> None:
    study, node = failed_study(story)
    reopened, retried = story.give(c.RetryTrial(study=study, trial=0, at=9.0))
    assert isinstance(reopened, e.StudyReopened) and retried == e.TrialRetried(study=study, trial=0)
    found = story.plan.studies[study]
    assert (found.state, found.error, found.failed, found.active) == ("running", None, [], 1)
    assert story.trial(study, 0).error is None and states(story, study) == ["active"]
    for _ in range(2):
        story.happen(stage_failure(story.assign((node, 0, 10)).id))
        assert states(story, study) == ["active"], "it has all its retries again"
    story.finish(story.assign((node, 0, 10)))
    assert states(story, study) == ["completed"] and found.num_results == 1


def test_a_trial_that_is_tried_again_may_fail_again(story: Story) -> None:
    study, node = failed_study(story)
    story.give(c.RetryTrial(study=study, trial=0, at=9.0))
    for _ in range(3):
        story.happen(stage_failure(story.assign((node, 0, 10)).id))
    assert states(story, study) == ["failed"]
    assert [line.kind for line in story.plan.studies[study].history] == ["start", "fail"], "the tuner keeps its end"


def test_a_refused_retry_has_its_reason(story: Story) -> None:
    study = story.submit(({"h": 1}, 10), ({"h": 2}, 10))
    node = story.plan.node_of(story.trial(study, 0), 10)
    with pytest.raises(StateConflict, match=r"trial 0 of study .* is active; only a failed trial can be tried again"):
        story.give(c.RetryTrial(study=study, trial=0, at=1.0))
    story.train(story.assign((node, 0, 10)), value=None)
    assert states(story, study) == ["failed", "active"]
    with pytest.raises(StateConflict, match="are on record, and would be the same again"):
        story.give(c.RetryTrial(study=study, trial=0, at=1.0))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("a\nBoom", "Boom"),
        ('Traceback\n  File "a.py", line 3\n    x = 1\nValueError: two\n  lines', "ValueError: two"),
        (
            'Traceback\n  File "a.py", line 3\n    x(\n     ^\nSyntaxError: invalid syntax',
            "SyntaxError: invalid syntax",
        ),
        (
            'KeyError: 1\n\nDuring ...\n\nTraceback\n  File "a.py", line 3\n    y()\nOSError: [gone]\nhint',
            "OSError: [gone]",
        ),
        ("", ""),
    ],
)
def test_the_short_text_of_an_error_names_the_exception(error: str, line: str) -> None:
    assert last_line({"error": error}) == line


@pytest.mark.parametrize(("slot", "where"), [("cpu0", "the CPU"), ("host-gpu1", "slot host-gpu1")])
def test_a_failed_check_begins_with_the_error_and_its_line(slot: str, where: str) -> None:
    text = (
        "Traceback (most recent call last):\n  File \"trainer.py\", line 31, in setup\n    hp['lr']\nKeyError: 'lr'\n"
    )
    error = {"error": text, "place": "KeyError in setup, trainer.py:31", "slot": slot}
    sentence = f"The trainer failed its check on {where}: KeyError: 'lr' in setup, trainer.py:31"
    assert check_failure_text(error) == f"{sentence}\n\n{text.strip()}"
    missing = {"error": "the trainer does not report 'f1'", "place": "metric", "slot": slot}
    assert check_failure_text(missing) == f"The trainer failed its check on {where}: the trainer does not report 'f1'"
