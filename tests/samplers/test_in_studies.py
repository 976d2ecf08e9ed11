"""Samplers with tuners: on virtual slots, replayed from the log, and resumed in the middle."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.search.replay import replay
from app.search.tuners import TunerDriver
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

STUDY = StudyId("s")
SPACE = {"lr": {"family": "exponential", "init": {"loguniform": [0.01, 1]}, "gamma": 0.9}, "bs": [32, 64]}
TUNERS: dict[str, dict[str, Any]] = {
    "asha": {"kind": "asha", "num_trials": 24, "min_steps": 1, "max_steps": 16},
    "sha": {"kind": "sha", "num_trials": 16, "min_steps": 1, "max_steps": 16},
    "hyperband": {"kind": "hyperband", "max_steps": 9},
}


def simulate(tuner: str, sampler: str, slots: int = 3) -> Simulator:
    """A completed study of a loss; a learning rate of 0.1 is best."""

    def measure(node: Node, step: int) -> e.Metrics:
        return {"loss": abs(node.segment.forms["lr"].at(0) - 0.1) + 1 / step}

    spec = {"name": "s", "trainer": "t", "metric": "loss", "mode": "min", "space": SPACE}
    study = StudySpec.from_dict({**spec, "tuner": {**TUNERS[tuner], "sampler": sampler}})
    simulator = Simulator(slots=slots, measure=measure)
    simulator.submit(STUDY, study.to_json())
    simulator.run()
    return simulator


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sobol", "halton", "tpe", "cmaes"])
@pytest.mark.parametrize("tuner", list(TUNERS))
def test_a_tuner_takes_its_configurations_from_any_sampler(tuner: str, sampler: str) -> None:
    simulator = simulate(tuner, sampler)
    study = simulator.plan.studies[STUDY]
    assert study.trials and study.active == 0
    assert len({str(trial.hp) for trial in study.trials}) > len(study.trials) // 2
    again = replay(enumerate(simulator.events), STUDY)
    assert again.identical and again.decisions > 0


@pytest.mark.parametrize(("tuner", "whole"), [("sha", 16), ("hyperband", 9 + 5 + 3)])
def test_synchronous_tuners_request_all_trials_before_the_first_result(tuner: str, whole: int) -> None:
    """The guide says so."""
    events = simulate(tuner, "tpe").events
    result = next(at for at, event in enumerate(events) if isinstance(event, e.Evaluated))
    asked = [event for event in events[:result] if isinstance(event, e.TrialAdded)]
    assert len(asked) == whole


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "gp"])
def test_a_restarted_server_makes_the_same_proposals(sampler: str) -> None:
    events = simulate("asha", sampler, slots=2).events
    starts = [at for at, event in enumerate(events) if isinstance(event, e.TrialAdded)]
    for at in (starts[len(starts) // 2], starts[-1]):
        plan = fold(events[:at])
        study = plan.studies[STUDY]
        driver = TunerDriver(study.spec.json)
        driver.observe(study)
        [action] = driver.suggest(room=100)
        recorded = events[at]
        assert isinstance(recorded, e.TrialAdded) and isinstance(action, c.Start)
        assert (action.hp, {"by": "tuner", **action.reason}) == (recorded.hp, recorded.reason)


def test_replay_never_calls_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = simulate("asha", "tpe")
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    from app.search.samplers import optuna_sampler

    optuna_sampler.load_optuna.cache_clear()
    assert replay(enumerate(simulator.events), STUDY).identical
