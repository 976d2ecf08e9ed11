"""`finish_best`: at the end, the best trials that ended early are trained to max_steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain.leaderboard import build_leaderboard, state_text
from app.domain.search_plan import Study
from app.search.replay import replay
from app.simulation.preview import preview
from stagetree.spec import SpecError
from tests.plans import max_examples
from tests.tuners.worlds import STUDY, losses, numbered_events, run_simulator, simulator, spec

MOST = 20
KINDS: dict[str, dict[str, Any]] = {
    "sha": {"kind": "sha", "num_trials": 20, "min_steps": 1, "eta": 2},
    "asha": {"kind": "asha", "num_trials": 9, "min_steps": 1, "eta": 3},
    "asha: stopping": {"kind": "asha", "num_trials": 9, "min_steps": 1, "eta": 3, "type": "stopping"},
    "asha: brackets": {"kind": "asha", "num_trials": 9, "min_steps": 1, "eta": 3, "brackets": 2},
    "hyperband": {"kind": "hyperband"},
    "async_hyperband": {"kind": "async_hyperband", "num_trials": 9},
    "median": {"kind": "median", "num_trials": 12, "interval": 4},
    "bandit": {"kind": "bandit", "num_trials": 12, "interval": 4, "epsilon": 0.1},
}
EVERY = pytest.mark.parametrize("tuner", KINDS.values(), ids=KINDS)


def finish_reasons(study: Study) -> dict[int, Any]:
    return {event.trial: dict(event.reason) for event in study.history if "finish" in event.reason}


@pytest.mark.slow
@EVERY
@max_examples(10)
@given(seed=st.integers(0, 10**6), most=st.integers(1, 4), slots=st.sampled_from([1, 3]))
def test_the_best_are_trained_to_the_end(tuner: dict[str, Any], seed: int, most: int, slots: int) -> None:
    world = run_simulator(spec(tuner | {"max_steps": MOST, "finish_best": most}), slots=slots, measure=losses(seed))
    study = world.plan.studies[STUDY]
    assert study.state == "completed"
    sent = finish_reasons(study)
    early = [trial for trial in study.trials if trial.steps < MOST]
    assert len(sent) == most or not early
    for trial in sent:
        assert study.trials[trial].steps == MOST and study.trials[trial].state == "completed"
    assert [reason["finish"] for reason in sent.values()] == list(range(1, len(sent) + 1))
    lost = [reason["loss"] for reason in sent.values()]
    assert lost == sorted(lost)
    last = {event.trial: event.metrics["loss"] for event in study.history if event.kind == "result"}
    assert all(last[trial.number] >= lost[-1] for trial in early)
    assert replay(numbered_events(world.events), STUDY).identical


@pytest.mark.slow
@EVERY
@max_examples(5)
@given(seed=st.integers(0, 10**6))
def test_finishing_changes_nothing_before_the_end(tuner: dict[str, Any], seed: int) -> None:
    """On one slot, the tuner decides as without it; but some trials are stopped later, or not."""

    def decisions(fields: dict[str, Any]) -> list[Any]:
        world = run_simulator(spec(tuner | {"max_steps": MOST} | fields), slots=1, measure=losses(seed))
        history = world.plan.studies[STUDY].history
        return [
            (x.kind, x.trial, x.steps) for x in history if x.kind in ("start", "promote") and "finish" not in x.reason
        ]

    assert decisions({"finish_best": 2}) == decisions({})


@pytest.mark.slow
@EVERY
@max_examples(5)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_finishing_works_with_failed_and_cancelled_trials(tuner: dict[str, Any], seed: int, data: Any) -> None:
    world = simulator(spec(tuner | {"max_steps": MOST, "finish_best": 2}), slots=2, measure=losses(seed, nans=0.2))
    for _ in range(2000):
        study = world.plan.studies[STUDY]
        there = [trial.number for trial in study.trials if trial.state in ("active", "completed")]
        if there and not study.is_final and data.draw(st.integers(0, 9)) == 0:
            world.give(c.CancelTrial(study=STUDY, trial=data.draw(st.sampled_from(there))))
        if not world.advance():
            break
    study = world.plan.studies[STUDY]
    assert study.is_final and len(finish_reasons(study)) <= 2
    assert replay(numbered_events(world.events), STUDY).identical


@pytest.mark.parametrize("kind", ["asha", "async_hyperband", "median", "bandit", "asha: brackets"])
def test_a_reopened_study_finishes_the_best_again(kind: str) -> None:
    world = run_simulator(spec(KINDS[kind] | {"max_steps": MOST, "finish_best": 1}), slots=2, measure=losses(1))
    world.give(c.ReopenStudy(study=STUDY, trials=40, at=0.0))
    world.run()
    study = world.plan.studies[STUDY]
    assert study.state == "completed" and len(study.trials) == 40 and len(finish_reasons(study)) == 2
    assert replay(numbered_events(world.events), STUDY).identical


def test_by_the_best_result_where_the_study_says_so() -> None:
    """With `value: best`, a trial that became worse counts by its best result."""

    def measure(node: Any, step: int) -> dict[str, float | None]:
        number = node.segment.forms["x"].at(0)
        return {"loss": {0: {1: 0.0, 3: 0.9}, 1: {1: 0.1, 3: 0.5}}.get(number, {}).get(step, 5.0 + number)}

    tuner = {"kind": "asha", "num_trials": 6, "min_steps": 1, "max_steps": 100, "eta": 3, "finish_best": 1}
    for value, winner in (("last", 1), ("best", 0)):
        study = spec(tuner | {"sampler": "grid"}, space={"x": [0, 1, 2, 3, 4, 5]}, value=value)
        world = run_simulator(study, slots=1, measure=measure)
        assert list(finish_reasons(world.plan.studies[STUDY])) == [winner]


def test_it_is_counted_in_the_preview_and_said_of_the_trial() -> None:
    tuner = {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 100, "eta": 3}
    without, two = (preview(spec(tuner | more), slots=1) for more in ({}, {"finish_best": 2}))
    assert without["critical_path_steps"] == 9 and two["critical_path_steps"] == 100
    assert two["requested"] == without["requested"] + 91 + 97
    study = run_simulator(spec(tuner | {"finish_best": 2}), slots=1).plan.studies[STUDY]
    [said, *_] = [
        state_text(study, study.trials[number], "completed", build_leaderboard(study))
        for number in finish_reasons(study)
    ]
    assert said == "trained to step 100 after all: rank 1 of 12 that had ended early"


def test_an_endless_horizon_has_no_end() -> None:
    with pytest.raises(SpecError, match=r"tuner.max_steps: is missing: finish_best needs"):
        spec({"kind": "asha", "num_trials": 12, "min_steps": 1, "finish_best": 2})
