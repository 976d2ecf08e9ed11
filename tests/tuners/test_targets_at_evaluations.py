"""With `value: best`, an evaluation between two results of a trial reaches the target of its study, too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.leaderboard import build_leaderboard, display_state, state_text
from app.domain.search_plan import Study
from app.domain.terms import StudyId
from app.search.replay import replay
from app.service.views.progress import ending_text
from app.simulation.simulator import Simulator
from stagetree.spec import SpecError, StudySpec
from tests.plans import Story
from tests.tuners.worlds import STUDY, losses, numbered_events, run_simulator, spec, stragglers

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
TUNERS = [ASHA, ASHA | {"type": "stopping"}, {"kind": "random", "num_trials": 5, "max_steps": 9}]
BY_EVALUATIONS: dict[str, Any] = {"value": "best", "eval_every": 1, "target_at": "evaluations"}


def simulate(tuner: dict[str, Any], seed: int, slots: int, **fields: Any) -> Simulator:
    return run_simulator(spec(tuner, **fields), slots=slots, measure=losses(seed), seconds=stragglers(seed))


@given(tuner=st.sampled_from(TUNERS), seed=st.integers(0, 999), slots=st.integers(1, 4), target=st.floats(0.3, 1.5))
def test_the_first_evaluation_as_good_as_the_target_ends_the_study(
    tuner: dict[str, Any], seed: int, slots: int, target: float
) -> None:
    world = simulate(tuner, seed, slots, target=target, **BY_EVALUATIONS)
    reaching = [event for event in world.events if isinstance(event, e.Evaluated) and event.metrics["loss"] <= target]  # type: ignore[operator]
    ending = world.plan.studies[STUDY].ending
    assert bool(reaching) == bool(ending)
    if reaching:
        assert (ending["by"], ending["steps"], ending["value"]) == (
            "target",
            reaching[0].step,
            reaching[0].metrics["loss"],
        )
        assert reaching[0].node in world.plan.studies[STUDY].trials[ending["trial"]].path
    assert replay(numbered_events(world.events), STUDY).identical


@given(
    tuner=st.sampled_from(TUNERS),
    seed=st.integers(0, 99),
    slots=st.integers(1, 4),
    target=st.floats(0.3, 1.5),
    longer=st.sampled_from([1, 3]),
)
@example(tuner=TUNERS[2], seed=0, slots=1, target=1.1, longer=3)
def test_a_known_evaluation_at_the_target_ends_the_study_at_once(
    tuner: dict[str, Any], seed: int, slots: int, target: float, longer: int
) -> None:
    """Several trials may be started at once, and the first of them may have reached the target long ago."""
    world = simulate(tuner, seed, slots, eval_every=1)
    other, fields = StudyId("other"), BY_EVALUATIONS | {"target": target}
    world.submit(other, spec(tuner | {"max_steps": longer * tuner["max_steps"]}, **fields).to_json())
    world.run()
    found = replay(numbered_events(world.events), other)
    assert found.identical, found.difference
    reached = world.plan.studies[other].target_reached
    assert reached is None or reached.value <= target


@given(tuner=st.sampled_from(TUNERS), seed=st.integers(0, 999))
def test_at_results_an_evaluation_ends_nothing(tuner: dict[str, Any], seed: int) -> None:
    """As in a study of 0.1.0, whose spec does not say where its target is reached."""
    fields = {"target": 0.9, "value": "best", "eval_every": 1}
    by_default, written = simulate(tuner, seed, 2, **fields), simulate(tuner, seed, 2, **fields, target_at="results")
    assert by_default.events[2:] == written.events[2:]
    study = by_default.plan.studies[STUDY]
    assert not study.ending or study.ending["steps"] in study.trials[study.ending["trial"]].requested_steps


# ------------------------------------------------------------------------------------------------ which evaluations


class Target:
    """A study with one trial of ten steps and a target of 0.5. Its metric is an accuracy."""

    def __init__(self, **fields: Any) -> None:
        self.story = Story()
        self.fields = BY_EVALUATIONS | {"eval_every": 2, "target": 0.5} | fields

    def submit(self) -> StudyId:
        return self.story.submit(({"lr": 1}, 10), **self.fields)

    def study(self, name: StudyId) -> Study:
        return self.story.plan.studies[name]

    def target_result(self, name: StudyId) -> tuple[int, int, float] | None:
        reached = self.study(name).target_reached
        return None if reached is None else (reached.trial, reached.steps, reached.value)


@pytest.mark.parametrize(
    ("step", "value", "found"),
    [(4, 0.5, (0, 4, 0.5)), (4, 0.49, None), (3, 0.9, None), (10, 0.9, None)],
    ids=["as good", "worse", "not requested", "a result"],
)
def test_an_evaluation_that_the_study_requests(step: int, value: float, found: Any) -> None:
    world = Target()
    name = world.submit()
    world.story.evaluate(world.story.path(name, 0)[0].id, step, value)
    assert world.target_result(name) == found


def test_what_another_study_evaluated_before() -> None:
    world = Target()
    other = world.story.submit(({"lr": 1}, 10), eval_every=1, name="other")
    world.story.evaluate(world.story.path(other, 0)[0].id, 3, 0.9)
    world.story.evaluate(world.story.path(other, 0)[0].id, 6, 0.7)
    assert world.target_result(world.submit()) == (0, 6, 0.7)


def test_trials_that_ended_reach_nothing() -> None:
    world = Target()
    name = world.submit()
    world.story.submit(({"lr": 1}, 10), name="other")
    world.story.give(c.CancelTrial(study=name, trial=0))
    world.story.evaluate(world.story.path(name, 0)[0].id, 4, 0.9)
    assert world.target_result(name) is None


def test_the_trial_whose_evaluation_ended_the_study_is_shown_as_completed() -> None:
    world = simulate(ASHA, 3, 2, target=0.9, **BY_EVALUATIONS)
    study = world.plan.studies[STUDY]
    number, steps = study.ending["trial"], study.ending["steps"]
    assert steps not in study.trials[number].requested_steps, "an evaluation between rungs"
    board = build_leaderboard(study)
    state = display_state(study, study.trials[number], board)
    assert state == "completed"
    assert state_text(study, study.trials[number], state, board) == f"trained to step {steps}: the target is reached"
    assert (
        ending_text(study) == f"target 0.9 reached: {study.ending['value']:.6g} of trial {number} after {steps} steps"
    )


def test_a_reopened_study_continues_without_its_target() -> None:
    world = simulate(ASHA, 3, 2, target=0.9, **BY_EVALUATIONS)
    world.give(c.ReopenStudy(study=STUDY, trials=12, at=world.now))
    world.run()
    study = world.plan.studies[STUDY]
    assert study.spec.target is None and study.target_reached is None and len(study.trials) == 12
    assert study.ending == {} and replay(numbered_events(world.events), STUDY).identical


def test_an_isolated_study_begins_anew() -> None:
    world = Target()
    name = world.submit()
    world.story.evaluate(world.story.path(name, 0)[0].id, 4, 0.9)
    world.story.happen(e.StudyIsolated(study=name, reason="its trainer is not exact", at=1.0))
    assert world.target_result(name) is None and name in world.story.plan.awaiting_target


# ------------------------------------------------------------------------------------------------------- the study file


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "target_at: must be results without value: best, which keeps the state of the best evaluation"),
        ({"value": "best", "repeats": 2}, "target_at: must be results with repeats: no evaluation of one run is"),
        (
            {"value": "best", "tuner": ASHA | {"rung_value": {"cooldown": 2}}},
            "target_at: must be results with tuner.rung_",
        ),
    ],
)
def test_where_evaluations_cannot_reach_it(fields: dict[str, Any], problem: str) -> None:
    study: dict[str, Any] = {"target": 0.5, "target_at": "evaluations", "tuner": ASHA} | fields
    with pytest.raises(SpecError, match=problem):
        spec(study.pop("tuner"), **study)


def test_the_target_is_completed_at_the_submission() -> None:
    written = spec(ASHA, target=0.5, value="best")
    submitted = written.fill_in(sampling_seed=3)
    assert (written.target_at, submitted.target_at) == (None, "evaluations")
    for recorded in (written, submitted):
        assert written.is_written_as(recorded.to_json())
        assert StudySpec.from_dict(recorded.to_json()) == recorded
    by_results = spec(ASHA, target=0.5, value="best", target_at="results")
    assert by_results.fill_in(sampling_seed=3).target_at == "results"
    assert not by_results.is_written_as(submitted.to_json())
    for other in (spec(ASHA, target=0.5), spec(ASHA, value="best"), spec(ASHA, target=0.5, value="best", repeats=2)):
        assert other.fill_in(sampling_seed=3).target_at is None
