"""A tuner at work: only what the history says has happened, and that may come from others."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from app.domain import commands as c
from app.domain.search_plan import Study
from app.search.samplers.base import NonAdaptive
from app.search.tuners import TUNERS, TunerDriver
from app.search.tuners.driver import TunerFailed
from app.search.tuners.sha import Asha
from tests.tuners.worlds import STUDY, simulator, spec

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 8, "reduction_factor": 2}
LR = {"lr": {"family": "constant", "value": 0.1}}


def observing(study: Study) -> TunerDriver:
    """A driver that has seen all of a study."""
    driver = TunerDriver(study.spec.json)
    driver.observe(study)
    return driver


def test_a_users_trial_that_comes_first_is_not_taken_for_the_tuners() -> None:
    """Two wrote at once: the number that the tuner's trial would have had is a user's, with as many steps."""
    world = simulator(spec(ASHA))
    study = world.plan.studies[STUDY]
    driver = observing(study)
    suggested = driver.suggest(1)
    world.give(c.AddTrial(study=STUDY, hp=LR, steps=2))
    assert driver.observe(study)
    assert driver.suggest(2) == suggested
    world.give(c.ApplyTunerActions(study=STUDY, actions=suggested))
    driver.observe(study)
    assert [trial.reason["by"] for trial in study.trials] == ["user", "tuner"]
    assert driver.next_action() == observing(study).next_action()


@pytest.mark.parametrize(
    "tuner", [ASHA | {"num_trials": 7}, {"kind": "median", "num_trials": 7, "max_steps": 8, "interval": 2}]
)
def test_trials_for_idle_slots_are_started_at_once_as_if_one_by_one(tuner: dict[str, Any]) -> None:
    together, single = (simulator(spec(tuner)) for _ in range(2))
    started = observing(together.plan.studies[STUDY]).suggest(5)
    together.give(c.ApplyTunerActions(study=STUDY, actions=started))
    for _ in range(5):
        (one,) = observing(single.plan.studies[STUDY]).suggest(single.plan.studies[STUDY].active + 1)
        single.give(c.ApplyTunerActions(study=STUDY, actions=(one,)))
    assert together.plan.studies[STUDY].history == single.plan.studies[STUDY].history
    together.give(c.ApplyTunerActions(study=STUDY, actions=observing(together.plan.studies[STUDY]).suggest(99)))
    assert len(together.plan.studies[STUDY].trials) == 7, "no more than the study has"


def test_an_eager_tuner_starts_many_at_once_and_promotes_one_by_one() -> None:
    """A promotion may find its result at once, and so change the next wishes."""
    world = simulator(spec({"kind": "sha", "num_trials": 8, "min_steps": 1, "max_steps": 4, "reduction_factor": 2}))
    study = world.plan.studies[STUDY]
    assert len(observing(study).suggest(1)) == 8
    world.run()
    assert study.state == "completed"
    assert observing(study).suggest(1) == ()


def test_enqueued_trials_change_no_decision() -> None:
    study = simulator(spec(ASHA)).plan.studies[STUDY]
    driver = observing(study)
    assert driver.suggest(3) == driver.suggest(3) == observing(study).suggest(3) != ()
    assert driver.suggest(0) == ()
    assert not driver.observe(study)


class BrokenTuner(Asha):
    def suggest(self) -> NoReturn:
        raise ZeroDivisionError("no rung is left")


class BrokenSampler(NonAdaptive):
    def propose(self, number: int) -> NoReturn:
        raise ZeroDivisionError("no draw is left")


def test_errors_of_tuner_and_sampler_fail_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    study = simulator(spec(ASHA)).plan.studies[STUDY]
    driver = TunerDriver(study.spec.json, sampler=BrokenSampler())
    driver.observe(study)
    with pytest.raises(TunerFailed, match="ZeroDivisionError: no draw is left"):
        driver.suggest(3)
    monkeypatch.setitem(TUNERS, "asha", BrokenTuner)
    with pytest.raises(TunerFailed, match="ZeroDivisionError: no rung is left"):
        observing(study).suggest(3)
