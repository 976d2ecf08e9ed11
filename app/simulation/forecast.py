"""Forecasts a study's trials and steps by running it on virtual slots with random results.

If a tuner stops trials early, the steps already requested say little. Its reaction to any results says much: halving
leaves about the same number of steps whichever trials win. The random results are the same for the same study file.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from random import Random
from threading import Lock
from typing import Any

from app.domain import events as e
from app.domain.accounting import Forecast
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.preview import BY_RESULTS
from app.simulation.simulator import Simulator
from app.simulation.virtual_run import remove_guidance, required_metrics

ADAPTIVE = set(BY_RESULTS) - {"early_term", "pop"}
"""Tuners that random results can forecast. Learning curves that are learned from chance predict nothing."""

MOST_TRIALS = 200
"""A larger study is simulated with this many trials, and scaled up."""

MOST_TURNS = 2_000
"""Stages after which a simulation is given up, a few seconds; there is no forecast then."""

_one_at_a_time = Lock()


def forecast(spec: dict[str, Any]) -> Forecast | None:
    """The expected size of a study; None if only its requested trials are certain.

    The first call takes a second or more, and concurrent callers wait for it.
    """
    if spec.get("tuner", {}).get("kind") not in ADAPTIVE:
        return None
    with _one_at_a_time:
        return _forecast(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=256)
def _forecast(text: str) -> Forecast | None:
    spec = remove_guidance(json.loads(text)) | {"ranks": 1}  # ranks change the time and not the steps
    most = spec.pop("max_total_steps", math.inf)
    factor = _shrink(spec["tuner"])
    study = StudyId("forecast")
    simulator = Simulator(slots=4, measure=_random_results(spec))
    simulator.submit(study, spec)
    is_over = not all(simulator.advance() for _ in range(MOST_TURNS))
    end = simulator.plan.studies[study]
    if is_over and end.is_final:
        return Forecast(round(len(end.trials) * factor), min(round(end.unique * factor), most))
    return None


def _shrink(tuner: dict[str, Any]) -> float:
    """Limit the number of trials; returns the factor by which to scale the result."""
    trials = tuner.get("num_trials") or 0
    if trials <= MOST_TRIALS:
        return 1.0
    tuner["num_trials"] = MOST_TRIALS
    return float(trials) / MOST_TRIALS


def _random_results(spec: dict[str, Any]) -> Any:
    metrics = required_metrics(spec)

    def measure(node: Node, step: int) -> e.Metrics:
        random = Random(f"{node.id}/{step}")
        return {name: random.random() for name in metrics}

    return measure
