"""A trial costs as many Python calls in a large simulated study as in a small one."""

from __future__ import annotations

from cProfile import Profile
from random import Random

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec


def measure(node: Node, step: int) -> e.Metrics:
    return {"loss": Random(f"{node.id}/{step}").random() + 1 / step}


def straggle(stage: e.Stage, number: int) -> float:
    return (stage.end - stage.start) * (1 + Random(number).random())


def calls(trials: int) -> int:
    tuner = {"kind": "asha", "num_trials": trials, "min_steps": 1, "max_steps": 64, "reduction_factor": 4}
    space = {"lr": {"uniform": [trials, trials + 1]}}
    study = {"name": "n", "trainer": "t", "metric": "loss", "mode": "min", "space": space, "tuner": tuner}
    simulator = Simulator(slots=20, measure=measure, seconds=straggle)
    simulator.submit(StudyId("n"), StudySpec.from_dict(study).to_json())
    with Profile() as profile:
        simulator.run()
    return sum(each.callcount for each in profile.getstats())


def test_a_trial_of_a_large_study_costs_no_more_calls_than_one_of_a_small_study() -> None:
    calls(50)  # warm up: it imports modules
    small, large = calls(300), calls(1200)
    first, further = small / 300, (large - small) / 900
    assert further < 1.1 * first, f"{first:.0f} calls a trial, then {further:.0f}"
    assert further < 5600, f"{further:.0f} calls a trial"
