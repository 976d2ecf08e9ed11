"""A tuner at work: what it takes for granted may not happen, and what happens may come from others."""

from __future__ import annotations

from app.domain import commands as c
from app.scheduling.tuners import TunerDriver
from tests.tuners.worlds import STUDY, simulator, spec

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 8, "reduction_factor": 2}
LR = {"lr": {"family": "constant", "value": 0.1}}


def test_a_users_trial_that_comes_first_is_not_taken_for_the_tuners() -> None:
    """Two wrote at once: the number that the tuner's trial would have had is a user's, with as many steps."""
    world = simulator(spec(ASHA))
    study = world.plan.studies[STUDY]
    mind = TunerDriver(study.spec)
    wished = mind.actions(study, 3)
    world.give(c.AddTrial(study=STUDY, hp=LR, steps=2))
    assert mind.actions(study, 3) == wished  # once more: it was not granted
    world.give(c.ApplyTunerActions(study=STUDY, actions=wished))
    assert [trial.reason["by"] for trial in study.trials] == ["user", "tuner"]
    assert mind.expected(study) == TunerDriver(study.spec).expected(study)


def test_an_eager_tuner_starts_many_at_once_and_promotes_one_by_one() -> None:
    """A promotion may find its result at once, and so change what is wanted after it."""
    world = simulator(spec({"kind": "sha", "num_trials": 8, "min_steps": 1, "max_steps": 4, "reduction_factor": 2}))
    study = world.plan.studies[STUDY]
    mind = TunerDriver(study.spec)
    assert len(mind.actions(study, 1)) == 8
    world.run()
    assert study.state == "completed"
    assert max(len(mind.actions(study, 1)) for _ in range(2)) == 0


def test_wishes_that_nobody_grants_are_wished_again() -> None:
    study = simulator(spec(ASHA)).plan.studies[STUDY]
    mind = TunerDriver(study.spec)
    assert mind.actions(study, 3) == mind.actions(study, 3) != ()
    assert mind.actions(study, 0) == ()
