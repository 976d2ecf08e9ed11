"""A trial's last and best results, the best trial, and the text about a trial's rank."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain import results
from app.domain.leaderboard import (
    Leaderboard,
    RungRanking,
    build_leaderboard,
    decisions,
    display_state,
    prediction,
    state_text,
)
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.terms import TrialEventKind, TrialState
from app.service.views.story import story as told
from app.service.views.trial_order import sort_trials
from stagetree.notebook.frames import rank_trials
from tests.domain.test_accounting import asha, simulator, submit
from tests.plans import Story


def two_trials(**fields: Any) -> tuple[SearchPlan, Study]:
    """A trial with its best result at step 5, and one with a last result only."""
    story = Story()
    study = story.submit(({"lr": 0.1}, 10), ({"lr": 0.2}, 10), eval_every=5, **fields)
    for trial, values in enumerate(({5: 0.9, 10: 0.4}, {10: 0.6})):
        for step, value in values.items():
            story.evaluate(story.path(study, trial)[-1].id, step, value)
    return story.plan, story.plan.studies[study]


def test_the_last_and_the_best_result_have_their_steps() -> None:
    plan, study = two_trials()
    trial = study.trials[0]
    assert results.last_value(plan, study, trial)[:2] == (10, 0.4)
    assert results.best_of_curve(plan, study, trial)[:2] == (5, 0.9)


@pytest.mark.parametrize(
    ("fields", "best"),
    [
        ({}, (1, 10, 0.6)),
        ({"value": "last"}, (1, 10, 0.6)),
        ({"value": "best"}, (0, 5, 0.9)),
        ({"value": "best", "mode": "min"}, (0, 10, 0.4)),
    ],
)
def test_the_study_chooses_which_of_them_is_the_value(fields: dict[str, str], best: tuple[int, int, float]) -> None:
    plan, study = two_trials(**fields)
    found = results.best(plan, study)
    assert found is not None
    assert (found[0].number, *found[1][:2]) == best


def failed_with_a_result(*failed: int, **fields: Any) -> Story:
    """Three trials with results at step 5, of which the first is the best; some of them fail later."""
    story = Story()
    study = story.submit(*(({"lr": (1 + number) / 10}, 10) for number in range(3)), eval_every=5, **fields)
    for number in range(3):
        story.evaluate(story.path(study, number)[-1].id, 5, 0.9 - number / 10)
    for number in failed:
        story.plan.studies[study].trials[number].state = TrialState.FAILED
    return story


@pytest.mark.parametrize(
    ("failed", "order"), [((), [0, 1, 2]), ((0,), [1, 2, 0]), ((0, 1), [2, 0, 1]), ((0, 1, 2), [0, 1, 2])]
)
def test_trials_that_failed_come_last(failed: tuple[int, ...], order: list[int]) -> None:
    story = failed_with_a_result(*failed, value="best")
    [study] = story.plan.studies.values()
    assert [trial.number for trial, _ in results.rank_trials(story.plan, study)] == order
    assert [trial.number for trial, _ in results.pareto_front(story.plan, study)] == order[:1]
    assert results.best_trial(study, {number: {"accuracy": 0.9 - number / 10} for number in range(3)}) == order[0]
    shown = [{"trial": each.number, "value": 0.9 - each.number / 10, "state": str(each.state)} for each in study.trials]
    assert [trial["trial"] for trial in sort_trials(shown, "value", "max")] == order
    assert [trial["trial"] for trial in rank_trials(shown, "max")] == order


@pytest.mark.parametrize(
    ("failed", "line"),
    [
        (
            (0,),
            "Best so far: trial 1, accuracy 0.8 at step 5, the highest of 2 results."
            " The result of 1 trial that failed does not count.",
        ),
        (
            (0, 1),
            "Best so far: trial 2, accuracy 0.7 at step 5, the only result."
            " The results of 2 trials that failed do not count.",
        ),
        (
            (0, 1, 2),
            "Best so far: trial 0, accuracy 0.9 at step 5, the highest of 3 results."
            " It failed later, as all with a result did.",
        ),
    ],
)
def test_results_of_failed_trials_are_marked(failed: tuple[int, ...], line: str) -> None:
    story = failed_with_a_result(*failed, value="best")
    [study] = story.plan.studies.values()
    assert told(story.plan, study).lines[0] == line


def test_an_unpromoted_trial_waits_at_its_rung_and_is_then_pruned() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    while len(build_leaderboard(study).rungs) < 2:
        simulated.advance()
    board = build_leaderboard(study)
    waiting = next(trial for trial in study.trials if trial.state == "completed" and board.at[trial.number] == (0, 0))
    assert state_text(study, waiting, "completed", board).startswith("waits at rung 0: rank ")
    simulated.run()
    board = build_leaderboard(study)
    ladder = board.ladder()
    assert [rung.steps for rung in ladder] == [2, 6, 18]
    assert [len(rung.promoted) for rung in ladder] == [3, 1, 0]
    last = ladder[0].best_first(-1)[-1]
    assert state_text(study, study.trials[last], "pruned", board) == "pruned at rung 0: rank 9 of 9, 3 promoted"
    best = next(iter(ladder[2].values))
    assert state_text(study, study.trials[best], "completed", board) == "trained to step 18"


@pytest.mark.parametrize(
    ("results", "rung"),
    [
        ([16, 16, 15], 2),
        ([27, 9, 3], 1),
        ([81, 27, 9, 3], 1),
        ([243, 81, 27, 9], 1),
        ([60, 30, 15], 1),
        ([18, 6, 2], 0),
        ([4, 4, 4], 2),
        ([0, 0], None),
        ([], None),
    ],
)
def test_the_importance_rung_is_late_and_has_enough_trials(results: list[int], rung: int | None) -> None:
    """Once charts of importance used the first rung, unless thirty trials reached a later one."""
    assert ladder_of(results).default_rung() == rung


@pytest.mark.parametrize(
    ("results", "rung"), [([81, 27, 9, 3], 0), ([243, 81, 27], 1), ([27, 9, 3], 1), ([18, 6], 0), ([], None)]
)
def test_importance_uses_a_rung_of_thirty_trials(results: list[int], rung: int | None) -> None:
    assert ladder_of(results).importance_rung() == rung


def ladder_of(results: list[int]) -> Leaderboard:
    """The number of trials with a result at each rung."""
    board = Leaderboard(1)
    for number, trials in enumerate(results):
        values = dict.fromkeys(range(trials), 0.5)
        board.rungs[0, number] = RungRanking(0, number, steps=3**number, values=values)
    return board


def test_a_trial_that_its_tuner_never_promoted_is_pruned_once_the_study_is_completed() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    while not study.is_final:
        waiting = {display_state(study, trial, build_leaderboard(study)) for trial in study.trials}
        assert waiting <= {"active", "completed"}
        simulated.advance()
    board = build_leaderboard(study)
    states = {trial.number: display_state(study, trial, board) for trial in study.trials}
    for trial in study.trials:
        assert states[trial.number] == ("completed" if trial.steps == study.spec.max_steps else "pruned")
        assert state_text(study, trial, states[trial.number], board).startswith(("trained to step", "pruned at rung"))
    assert set(states.values()) == {"completed", "pruned"}


def test_a_cancelled_study_prunes_no_trial() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    while not any(trial.state == TrialState.COMPLETED for trial in study.trials):
        simulated.advance()
    simulated.give(c.CancelStudy(study=study.id, at=1.0))
    board = build_leaderboard(study)
    resting = next(trial for trial in study.trials if trial.state == TrialState.COMPLETED)
    assert display_state(study, resting, board) == "completed"
    assert state_text(study, resting, "completed", board).startswith("ended at rung 0: rank ")


def test_each_decision_about_a_trial_has_its_reason() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    simulated.run()
    best = next(iter(build_leaderboard(study).ladder()[2].values))
    first, last = decisions(study, best)
    assert first.startswith("asked for step 6: rank 1 of ") and last.startswith("asked for step 18: rank 1 of ")
    study = study_of_pop()
    reason = {"best": 0.4, "median": 0.5}
    kinds = (TrialEventKind.PROMOTE, TrialEventKind.STOP)
    study.history += [TrialEvent(kind, 0, 5 + at, reason=reason) for at, kind in enumerate(kinds)]
    assert decisions(study, 0) == [
        "asked for step 5: its best 0.4 is no worse than the median 0.5",
        "pruned after step 6: its best 0.4 is worse than the median 0.5",
    ]


def test_a_trial_that_was_cancelled_has_no_rank() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    while len(build_leaderboard(study).rungs) < 2:
        simulated.advance()
    cancelled = next(trial for trial in study.trials if trial.state == "active")
    simulated.give(c.CancelTrial(study=study.id, trial=cancelled.number))
    assert build_leaderboard(study).rank(cancelled.number) is None


def study_of_pop(**reason: Any) -> Study:
    """A study of POP whose trial 0 was judged after step 5 and has no work; trial 1 waits."""
    story = Story()
    name = story.submit(({"lr": 0.1}, 5), ({"lr": 0.2}, 5), tuner={"kind": "pop", "max_steps": 20})
    study = story.plan.studies[name]
    story.evaluate(story.path(name, 0)[-1].id, 5, 0.4)
    if reason:
        story.give(c.ApplyTunerActions(study=study.id, actions=(c.Prioritize(trial=0, priority=0.0, reason=reason),)))
    return study


JUDGEMENT = {"class": "opportunistic", "p": 0.25, "expected_seconds": 12.5, "target": 0.9, "steps": 5}
SHOWN = {"class": "opportunistic", "p": 0.25, "expected_seconds": 12.5, "target": 0.9, "step": 5, "proven": True}


def test_pops_judgement_is_shown_with_its_numbers() -> None:
    study = study_of_pop(**JUDGEMENT, proven=True, threshold=0.5)
    board = build_leaderboard(study)
    assert prediction(study.trials[0], board) == SHOWN
    assert state_text(study, study.trials[0], "completed", board) == "suspended after step 5, opportunistic"
    assert prediction(study.trials[1], board) is None


@pytest.mark.parametrize("proven", [{"proven": False}, {}])
def test_a_p_that_is_not_proven_is_not_shown(proven: dict[str, bool]) -> None:
    study = study_of_pop(**JUDGEMENT, **proven)
    shown = prediction(study.trials[0], build_leaderboard(study))
    assert shown == SHOWN | {"proven": False, "p": None, "expected_seconds": None}


def test_a_trial_ended_as_poor_is_shown_as_poor() -> None:
    for reason, category, said in (
        (JUDGEMENT | {"class": "poor", "p": 0.01}, "poor", ": it is unlikely to reach 0.9, p 0.01"),
        ({"over": "target"}, "opportunistic", ": the target is reached"),
        ({"class": "poor", "value": 0.4, "kill_threshold": 0.5}, "poor", ": 0.4 is worse than the threshold 0.5"),
    ):
        study = study_of_pop(**JUDGEMENT)
        event = TrialEvent(TrialEventKind.STOP, 0, 5, reason=reason)
        study.history.append(event)
        study.trials[0].state = TrialState.STOPPED
        board = build_leaderboard(study)
        shown = prediction(study.trials[0], board)
        assert shown is not None and shown["class"] == category
        assert state_text(study, study.trials[0], "pruned", board) == f"pruned after step 5{said}"
