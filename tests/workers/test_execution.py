"""The next step of a chain, as a pure function of its history."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import nan
from typing import Any

import pytest

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.objectives import BestSoFar
from app.domain.terms import ChainOutcome, FailureKind, NodeId, StudyId
from app.events.rows import ChainFlags
from app.workers.slot.execution import (
    ChainExecution,
    Complete,
    Conditions,
    Evaluate,
    ExecutionState,
    Save,
    Stop,
    Train,
)

NOW = Conditions(now=0.0)


def stage(start: int, end: int, *evaluate: int, node: str = "n") -> e.Stage:
    return e.Stage(node=NodeId(node), start=start, end=end, study=StudyId("s"), evaluate=evaluate)


def execution(
    *stages: e.Stage, overhead: float = 0.0, intermediate_bytes: int = 0, branches: tuple[tuple[int, ...], ...] = ()
) -> ChainExecution:
    work = ChainAssignment(
        plan="p",
        trainer="t",
        trainer_version="1",
        trainer_args={},
        seed=0,
        study="s",
        trial=0,
        hp={"lr": 0.1},
        stages=stages,
        resume=None,
        intermediate_bytes=intermediate_bytes,
        branches_inside=branches,
    )
    return ChainExecution("c", work, overhead)


def drive(made: ChainExecution, outside: Conditions = NOW, metrics: e.Metrics | None = None) -> list[Any]:
    """Its requests until the stage is complete, as pairs of the step and the action."""
    done: list[Any] = []
    made.begin(outside.now)
    for _ in range(100):
        match made.next(outside):
            case Complete() | Stop():
                return done
            case Train(until):
                made.record_progress(until)
            case Evaluate():
                done.append((made.step, "evaluate"))
                made.record_evaluation(metrics or {})
            case Save(is_intermediate):
                done.append((made.step, "intermediate" if is_intermediate else "save"))
                made.record_save(outside.now)
    raise AssertionError(f"it does not come to an end: {done}")


def test_a_stage_is_trained_from_evaluation_to_evaluation_and_saved_at_its_end() -> None:
    assert drive(execution(stage(0, 9, 3, 6, 9))) == [
        (3, "evaluate"),
        (6, "evaluate"),
        (9, "evaluate"),
        (9, "save"),
    ]


@pytest.mark.parametrize("alone", [False, True])
def test_a_state_that_a_study_wants_is_kept_whatever_it_costs(alone: bool) -> None:
    made = execution(stage(0, 9, 3), stage(9, 12))
    made.assignment = replace(made.assignment, keep_for_good=(3, 5, 9), alone=alone)
    busy = Conditions(now=0.0, save_seconds=1000.0, can_save=False)
    assert drive(made, busy) == [(3, "evaluate"), (3, "save"), (5, "save"), (9, "save")]
    assert made.assignment.next_stop(3) == (5, (3,), ())


def test_the_state_is_kept_where_a_result_is_the_best_so_far() -> None:
    """Of each study that wants that, at the steps at which it asks for results: the second not after 2."""
    made = execution(stage(0, 9, 2, 4, 6, 8, 9))
    lower, higher = {"metric": "loss", "mode": "min"}, {"metric": "score", "mode": "max"}
    made = ChainExecution(
        "c", replace(made.assignment, keep_best=(BestSoFar(lower, {"loss": 0.5}, 2), BestSoFar(higher, {}, 4, (6,))))
    )
    results = {2: (0.5, 1.0), 4: (0.4, 1.0), 6: (nan, 2.0), 8: (0.45, 1.5), 9: (0.1, 3.0)}
    made.begin(0.0)
    kept = dict[int, Any]()
    while not isinstance(action := made.next(NOW), Complete):
        match action:
            case Train(until):
                made.record_progress(until)
            case Evaluate():
                made.record_evaluation(dict(zip(("loss", "score"), results[made.step], strict=True)))
            case Save():
                kept[made.step] = action
                made.record_save(0.0)
    assert {step: save.best_for for step, save in kept.items()} == {4: (0, 1), 6: (1,), 9: ()}
    asked = replace(NOW, flags=ChainFlags((2,)))
    better = ChainExecution("c", made.assignment)
    assert drive(better, asked, {"loss": 0.1})[:2] == [(2, "evaluate"), (2, "save")], "another stage resumes from there"
    assert made.assignment.next_stop(2) == (4, (2, 4), ()), (
        "a trainer with a loop of its own stops where its state is requested"
    )


def test_the_state_is_kept_where_known_trials_would_branch_off() -> None:
    """In the stage under way, and only where there is room for it; the end is kept in any case."""
    made = execution(stage(0, 9, 6), stage(9, 20), intermediate_bytes=1, branches=((4, 6, 9), (12,)))
    assert drive(made) == [(4, "intermediate"), (6, "evaluate"), (6, "intermediate"), (9, "save")]
    made.complete_stage(0.0)
    assert drive(made) == [(12, "intermediate"), (20, "save")]
    without_room = execution(stage(0, 9), branches=((4,),))
    without_room.begin(0.0)
    assert without_room.next(NOW) == Train(9)


def test_a_stage_under_way_hears_where_trials_that_came_later_will_branch_off() -> None:
    told = replace(NOW, flags=ChainFlags(branch_steps=(3, 5, 12)))
    made = execution(stage(0, 9), stage(9, 20), intermediate_bytes=1, branches=((5,), ()))
    assert drive(made, told) == [(3, "intermediate"), (5, "intermediate"), (9, "save")]
    made.complete_stage(0.0)
    assert drive(made, told) == [(12, "intermediate"), (20, "save")]
    assert drive(execution(stage(0, 9)), told) == [(9, "save")], "there is no room"


@pytest.mark.parametrize(("now", "can_save", "kept"), [(1.0, True, []), (3.0, True, [4]), (3.0, False, [])])
def test_it_is_not_kept_where_to_keep_it_takes_longer_than_to_train_again(
    now: float, can_save: bool, kept: list[int]
) -> None:
    made = execution(stage(0, 9), intermediate_bytes=1, branches=((4,),))
    made.begin(0.0)
    made.record_progress(4)
    action = made.next(Conditions(now=now, save_seconds=2.0, can_save=can_save))
    assert isinstance(action, Save) == bool(kept)


def test_a_stage_without_steps_only_evaluates() -> None:
    assert drive(execution(stage(4, 4, 4))) == [(4, "evaluate")]


def test_what_is_asked_for_on_the_way_is_evaluated_and_kept_and_belongs_to_its_stage() -> None:
    outside = replace(NOW, flags=ChainFlags((4, 9, 12)))
    made = execution(stage(0, 9), stage(9, 15))
    assert drive(made, outside) == [(4, "evaluate"), (4, "save"), (9, "evaluate"), (9, "save")]
    made.complete_stage(0.0)
    assert drive(made, outside) == [(12, "evaluate"), (12, "save"), (15, "save")]


def test_whoever_hears_late_of_a_step_does_not_pass_it() -> None:
    made = execution(stage(0, 9, 3, 6))
    made.begin(0.0)
    assert made.next(NOW) == Train(3)
    assert made.end_of_training(3, NOW) == 3
    made.record_progress(3)
    assert made.next(NOW) == Evaluate()


def test_a_step_that_is_asked_for_when_it_was_passed_ends_the_training_and_no_more() -> None:
    made = execution(stage(0, 9))
    made.begin(0.0)
    made.next(NOW)
    late = replace(NOW, flags=ChainFlags((2,)))
    assert made.end_of_training(4, late) <= 4
    made.record_progress(5)
    assert made.next(late) == Train(9)


@pytest.mark.parametrize("flags", [ChainFlags(stop=True), ChainFlags(preempt=True)])
def test_a_stop_keeps_what_is_there(flags: ChainFlags) -> None:
    made = execution(stage(0, 9))
    made.begin(0.0)
    made.next(NOW)
    stop = replace(NOW, flags=flags)
    assert made.end_of_training(4, stop) == 0
    made.record_progress(5)
    assert made.next(stop) == Save(is_intermediate=False)
    made.record_save(0.0)
    assert made.next(stop) == Stop()
    assert made.end_chain(ChainOutcome.STOPPED, 7.0) == e.ChainEnded(
        chain=made.chain, outcome=ChainOutcome.STOPPED, steps=5, seconds=7.0
    )


def test_a_stop_at_the_end_of_a_stage_completes_it() -> None:
    made = execution(stage(0, 4))
    made.begin(0.0)
    made.next(NOW)
    made.record_progress(4)
    stop = replace(NOW, flags=ChainFlags(stop=True))
    assert made.next(stop) == Save(is_intermediate=False)
    made.record_save(0.0)
    assert made.next(stop) == Complete()


@pytest.mark.parametrize(
    ("now", "outside", "due"),
    [
        (99.0, {}, False),
        (101.0, {}, True),
        (101.0, {"can_save": False}, False),
        (101.0, {"save_seconds": 2.0}, False),
        (101.0, {"save_seconds": 50.0, "max_save_interval": 100.0}, True),
    ],
)
def test_an_intermediate_is_due_when_its_cost_is_the_share_it_may_be(now: float, outside: Any, due: bool) -> None:
    made = execution(stage(0, 1000), overhead=0.01, intermediate_bytes=1)
    made.begin(0.0)
    made.next(NOW)
    seen = Conditions(**{"now": now, "save_seconds": 1.0, **outside})
    assert made.end_of_training(50, seen) == (0 if due else 1000)
    made.record_progress(50)
    assert made.next(seen) == (Save(is_intermediate=True) if due else Train(1000))
    if due:
        made.record_save(now)
        assert made.next(seen) == Train(1000)  # the next one is due as much later


def test_no_intermediate_is_due_before_the_first_step_and_after_the_last() -> None:
    """Loading may have taken long: a chain that is stopped before it has begun would be stopped for ever."""
    late = Conditions(now=1e6, save_seconds=1.0)
    made = execution(stage(0, 9), overhead=0.01, intermediate_bytes=1)
    made.begin(0.0)
    made.next(NOW)
    assert [made.end_of_training(step, late) for step in (0, 4, 9)] == [9, 0, 9]


def test_only_an_evaluation_that_somebody_waits_for_is_news() -> None:
    made = execution(stage(0, 9, 3, 9))
    made.begin(0.0)
    asked = ChainFlags((5,))
    news = {step: made.is_news([e.Evaluated(node=NodeId("n"), step=step, metrics={})], asked) for step in (3, 5, 9)}
    assert news == {3: False, 5: True, 9: True}
    kept = e.CheckpointKept(node=NodeId("n"), step=9, key="k", sha256="", size=1)
    assert not made.is_news([kept], asked)


def test_an_evaluation_that_reaches_a_target_is_news() -> None:
    """It ends its study. Evaluations that the study does not request, or that are worse, end nothing."""
    made = execution(stage(0, 9, 2, 3, 4))
    aim = BestSoFar({"metric": "loss", "mode": "min"}, {}, 2, (9,), target=0.5)
    made = ChainExecution("c", replace(made.assignment, keep_best=(BestSoFar.from_json(asdict(aim)),)))
    made.begin(0.0)
    losses = {2: 0.6, 3: 0.4, 4: 0.5}
    facts = [e.Evaluated(node=NodeId("n"), step=step, metrics={"loss": loss}) for step, loss in losses.items()]
    assert [made.is_news([fact], ChainFlags()) for fact in facts] == [False, False, True]


def test_intermediates_are_not_kept_where_none_are_wanted() -> None:
    late = Conditions(now=1e9)
    for made in (execution(stage(0, 9), overhead=0.5), execution(stage(0, 9), intermediate_bytes=9)):
        made.begin(0.0)
        made.record_progress(4)
        assert made.next(late) == Train(9)


def fail_stage(made: ChainExecution, step: int) -> int:
    return made.fail_stage(FailureKind.EXCEPTION, "", "", step, 0.0).step


def test_the_last_good_step_is_the_one_after_which_nothing_failed() -> None:
    made = execution(stage(0, 9, 5, 9))
    made.begin(0.0)
    assert fail_stage(made, 0) == 0  # while it was built
    made = execution(stage(0, 9, 5, 9))
    made.begin(0.0)
    made.next(NOW)
    assert fail_stage(made, 3) == 3  # in the fourth step
    made = execution(stage(0, 9, 5, 9))
    made.begin(0.0)
    made.next(NOW)
    made.record_progress(5)
    made.next(NOW)
    assert fail_stage(made, 5) == 4  # in the evaluation after the fifth


def test_the_last_good_step_is_before_the_end() -> None:
    made = execution(stage(0, 9))
    made.begin(0.0)
    made.next(NOW)
    made.record_progress(9)
    made.next(NOW)
    assert fail_stage(made, 9) == 8  # while it was saved
    made = execution(stage(4, 4, 4))
    made.begin(0.0)
    made.next(NOW)
    assert fail_stage(made, 4) == 3


def test_the_reason_for_an_inexact_stage_is_reported_once() -> None:
    made = execution(stage(0, 2), stage(2, 4))

    def reported_reasons(*reasons: str) -> list[str]:
        return [each.reason for each in made.record_inexactness(reasons)]

    made.begin(0.0)
    assert [reported_reasons("a"), reported_reasons("a", "b"), reported_reasons()] == [["a"], ["b"], []]
    made.record_progress(2)
    made.complete_stage(0.0)
    made.begin(0.0)
    assert reported_reasons("a") == ["a"]


def test_its_states_are_those_of_the_picture() -> None:
    made = execution(stage(0, 2), stage(2, 4))
    assert made.state == ExecutionState.CLAIMED and made.can_begin(0) and not made.can_begin(1)
    drive(made)
    assert made.state == ExecutionState.TRAINING and not made.can_begin(0)
    made.complete_stage(1.0)
    assert made.state == ExecutionState.BETWEEN_STAGES and made.can_begin(1) and not made.can_begin(0)
    between = made.end_chain(ChainOutcome.INTERRUPTED, 5.0)
    assert between == e.ChainEnded(chain=made.chain, outcome=ChainOutcome.INTERRUPTED)  # nothing was lost
    made = execution(stage(0, 2))
    drive(made)
    made.complete_stage(1.0)
    assert made.state == ExecutionState.SAVING and not made.can_begin(1)
    made.close()
    assert made.state == ExecutionState.CLOSED
