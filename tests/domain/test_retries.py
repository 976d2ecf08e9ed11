"""A second try only where it can help: an error that ended another trial after all its tries is not tried again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain.accounting import cost, last_step
from app.domain.evolve import fold
from app.domain.failures import failure_text
from app.domain.stage_tree import build_stage_tree
from app.domain.terms import FailureKind, StudyId, TrialState
from tests.plans import Story, max_examples

LINE = "FloatingPointError in train, trainer.py:12"
TRACE = "Traceback (most recent call last):\n  ...\nFloatingPointError: loss is nan"


def fail_once(story: Story, study: StudyId, number: int = 0, **fields: Any) -> bool:
    """Fail the trial's only node once, in a chain of its own; return whether the trial is still active."""
    (node,) = story.path(study, number)
    evaluated = fields.get("evaluated")
    step = fields.pop("step", 3)
    chain = story.assign((node, 0, story.trial(study, number).steps), study=study)
    failed = {"kind": FailureKind.EXCEPTION, "signature": LINE, "error": TRACE, "seconds": 1.0}
    step = step if evaluated is None else evaluated - 1
    story.happen(e.StageFailed(**{**failed, **fields}, chain=chain.id, index=0, step=step))
    return story.trial(study, number).state == TrialState.ACTIVE


def two_trials(**fields: Any) -> tuple[Story, StudyId]:
    """Two trials, the first of which failed in all three tries."""
    story = Story()
    study = story.submit(({"h": 1}, 10), ({"h": 2}, 10))
    assert [fail_once(story, study, 0, **fields) for _ in range(3)] == [True, True, False]
    return story, study


def test_the_same_error_at_the_same_line_and_step_is_not_tried_again() -> None:
    """Once eight trials of a study each raised at step 3 in three tries: 45 steps were repeated for nothing."""
    story, study = two_trials()
    assert not fail_once(story, study, 1)
    first, second = (story.trial(study, number) for number in (0, 1))
    assert failure_text(first) == "FloatingPointError: loss is nan, after step 3, tried 3 times"
    assert (
        failure_text(second)
        == "FloatingPointError: loss is nan, after step 3, tried once, as the same error ended trial 0"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"step": 4},
        {"signature": "FloatingPointError in train, trainer.py:13"},
        {"kind": FailureKind.OUT_OF_MEMORY},
        {"kind": FailureKind.DEVICE},
        {"kind": FailureKind.CRASH},
        {"kind": FailureKind.HANG},
        {"evaluated": 10},
    ],
    ids=str,
)
def test_another_error_keeps_its_tries(other: dict[str, Any]) -> None:
    story, study = two_trials()
    assert [fail_once(story, study, 1, **other) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("kind", [FailureKind.OUT_OF_MEMORY, FailureKind.CRASH, FailureKind.HANG, FailureKind.DEVICE])
def test_an_accident_does_not_end_retries_of_other_trials(kind: FailureKind) -> None:
    story, study = two_trials(kind=kind)
    assert fail_once(story, study, 1, kind=kind)


@pytest.mark.parametrize("name", ["OSError", "ConnectionResetError", "TimeoutError", "FileNotFoundError"])
def test_an_io_error_does_not_end_retries_of_other_trials(name: str) -> None:
    story, study = two_trials(signature=f"{name} in train, trainer.py:12")
    assert fail_once(story, study, 1, signature=f"{name} in train, trainer.py:12")


def test_a_study_that_bears_no_error_takes_no_tries_from_others() -> None:
    story = Story()
    strict, patient = story.submit(({"h": 1}, 10), max_restarts=0), story.submit(({"h": 2}, 10))
    assert not fail_once(story, strict)
    assert [fail_once(story, patient) for _ in range(3)] == [True, True, False]


def test_an_evaluation_that_another_trial_gave_up_is_not_tried_again() -> None:
    story, study = two_trials(evaluated=10)
    assert not fail_once(story, study, 1, evaluated=10)
    assert story.path(study, 1)[0].evaluation_tries(10) == 3, "nor for later trials"


errors = st.tuples(
    st.integers(0, 3),
    st.integers(2, 4),
    st.sampled_from([LINE, "ValueError in train, trainer.py:3", "OSError in read, data.py:9"]),
    st.sampled_from([FailureKind.EXCEPTION, FailureKind.EXCEPTION, FailureKind.CRASH]),
)


@max_examples(200)
@given(st.lists(errors, max_size=25), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_failures_follow_a_naive_reading_of_the_rule(raised: list[Any], restarts: list[int]) -> None:
    story = Story()
    studies = [story.submit(({"h": n}, 10), max_restarts=most) for n, most in enumerate(restarts)]
    own: list[Counter[Any]] = [Counter() for _ in studies]
    ended: dict[Any, int] = {}
    for number, step, line, kind in raised:
        if story.trial(studies[number]).state != TrialState.ACTIVE:
            continue
        own[number][step, line] += 1
        used = max(own[number][step, line], own[number].total() // 3)
        counts = kind == FailureKind.EXCEPTION and not line.startswith("OSError")
        has_ended = max(used, ended.get((step, line), 0) if counts else 0) > restarts[number]
        fields = {"step": step, "signature": line, "kind": kind}
        assert fail_once(story, studies[number], **fields) is not has_ended
        if has_ended and counts:
            ended[step, line] = max(used, ended.get((step, line), 0))
    assert fold(story.events).final_failures == story.plan.final_failures


def test_steps_repeated_after_errors_have_their_own_line() -> None:
    """Once it was called 'a trial that came later parts where no state was kept, or what a slot trained was lost'."""
    story, study = two_trials()
    fail_once(story, study, 1)
    found = cost(story.plan, story.plan.studies[study])
    assert (found.run, found.retried, found.repeated, found.lost) == (12, 6, 0, 0)
    assert (found.alone, found.unfinished, found.steps_taken) == (20, 14, 6)
    assert [last_step(story.plan, story.trial(study, number)) for number in (0, 1)] == [3, 3]


def test_a_trial_reached_its_last_measurement() -> None:
    """Once shown as `0 of 6 trained; best at step 2`."""
    story = Story()
    study = story.submit(({"h": 1}, 6))
    (node,) = story.path(study)
    story.assign((node, 0, 6))
    story.evaluate(node.id, 2)
    assert last_step(story.plan, story.trial(study)) == 2


def test_unsaved_steps_of_a_lost_worker_are_called_lost() -> None:
    story = Story()
    study = story.submit(({"h": 1}, 6))
    (node,) = story.path(study)
    chain = story.assign((node, 0, 6))
    story.happen(e.ChainEnded(chain=chain.id, outcome="lost", steps=4, seconds=1.0))
    story.train(story.assign((node, 0, 6)))
    found = cost(story.plan, story.plan.studies[study])
    assert (found.run, found.lost, found.retried, found.repeated) == (10, 4, 0, 0)


def test_the_stage_of_a_trial_that_failed_is_not_wanted_any_more() -> None:
    story, study = two_trials()
    fail_once(story, study, 1)
    assert build_stage_tree(story.plan) == []
