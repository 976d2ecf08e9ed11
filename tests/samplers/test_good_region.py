"""A sampler that learns finds the good region under every tuner that stops trials.

The law is a loss that grows with the distance from the best learning rate and weight decay. A quarter of the space is
good, so random samples are good in a quarter of all cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from statistics import fmean
from typing import Any

import pytest

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

TRIALS, LATE, SEEDS = 50, 25, 3
SPACE = {"lr": {"loguniform": [1e-4, 1.0]}, "wd": {"loguniform": [1e-5, 1e-1]}}
BEST = {"lr": -2.0, "wd": -3.0}
"""The logarithms of the best values."""

TUNERS: dict[str, dict[str, Any]] = {
    "asha": {"kind": "asha", "min_steps": 1, "max_steps": 27, "eta": 3},
    "asha: stopping": {"kind": "asha", "type": "stopping", "min_steps": 1, "max_steps": 27, "eta": 3},
    "async_hyperband": {"kind": "async_hyperband", "min_steps": 1, "max_steps": 27, "eta": 3},
    "median": {"kind": "median", "max_steps": 27, "interval": 9},
    "bandit": {"kind": "bandit", "max_steps": 27, "interval": 9},
}


def falling(step: int) -> float:
    return 3 / math.sqrt(step)


def rising(step: int) -> float:
    """A loss that grows during training: promoted trials look worse than trials that were stopped early."""
    return math.sqrt(step)


def distances(hp: Mapping[str, Any]) -> list[float]:
    """The distance from the best value of each hyper-parameter, in decades."""
    return [abs(math.log10(hp[name]["value"]) - best) for name, best in BEST.items()]


def late_share(tuner: dict[str, Any], sampler: str, slots: int, seed: int, curve: Callable[[int], float]) -> float:
    """The share of late trials in the good region."""

    def measure(node: Node, step: int) -> e.Metrics:
        noise = 0.3 * Random(f"{seed}/{node.id}/{step}").gauss(0, 1) / math.sqrt(step)
        return {"loss": math.hypot(*distances(node.hp)) + curve(step) + noise}

    fields: dict[str, Any] = {"name": "toy", "trainer": "toy", "metric": "loss", "mode": "min", "space": SPACE}
    study = StudySpec.from_dict({**fields, "seed": seed, "tuner": {**tuner, "num_trials": TRIALS, "sampler": sampler}})
    simulator, name = Simulator(slots=slots, measure=measure), StudyId("toy")
    simulator.submit(name, study.to_json())
    simulator.run()
    late = [max(distances(trial.hp)) < 1 for trial in simulator.plan.studies[name].trials[-LATE:]]
    return sum(late) / LATE


MORE_THAN_CHANCE = 0.45 * 2 / 3 + 0.25 / 3
"""A third of the late trials is random under tuners that stop trials; 45 of 100 of the model's must be good."""

LEARNING = ["tpe", pytest.param("gp", marks=pytest.mark.slow), pytest.param("trunks", marks=pytest.mark.slow)]


def parallel(tuner: str) -> Any:
    return pytest.param(tuner, 8, marks=[] if tuner == "asha" else pytest.mark.slow)


@pytest.mark.parametrize(("tuner", "slots"), [*((tuner, 1) for tuner in TUNERS), *map(parallel, TUNERS)])
@pytest.mark.parametrize("sampler", LEARNING)
def test_late_trials_are_in_the_good_region(sampler: str, tuner: str, slots: int) -> None:
    assert fmean(late_share(TUNERS[tuner], sampler, slots, seed, falling) for seed in range(SEEDS)) > MORE_THAN_CHANCE


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("sampler", LEARNING)
def test_late_trials_are_in_the_good_region_where_the_metric_worsens_with_steps(sampler: str, slots: int) -> None:
    assert fmean(late_share(TUNERS["asha"], sampler, slots, seed, rising) for seed in range(SEEDS)) > MORE_THAN_CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 8])
def test_cma_es_is_in_the_good_region_more_often_than_chance(slots: int) -> None:
    """Its generations take more trials than the others need."""
    shares = [late_share(TUNERS["asha"], "cmaes", slots, seed, falling) for seed in range(6)]
    assert fmean(shares) > 0.3
