"""How far a study will go: its trials and steps, counted by running it on virtual slots with results made up by chance.

What a study asked for so far says little where a tuner stops trials early; what its tuner does with any results says
much: halving leaves about the same steps whoever wins. The made-up results are the same for the same study file.
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
from app.simulation.preview import BY_RESULTS, judged_by, unguided
from app.simulation.simulator import Simulator

ADAPTIVE = set(BY_RESULTS) - {"early_term", "pop"}
"""Tuners that can be forecast by results that are made up; curves that are learnt from chance foretell nothing."""

MOST_TRIALS = 200
"""A larger study is forecast from so many of its trials, and its steps in proportion."""

MOST_TURNS = 2_000
"""Stages after which a simulation is given up, a few seconds: then there is no forecast."""

_one_at_a_time = Lock()


def forecast(spec: dict[str, Any]) -> Forecast | None:
    """What to expect of a study; None where nothing can be said beyond what it asks for.

    The first time it takes a second or more: ask for it while nobody waits for you. Whoever asks meanwhile waits.
    """
    if spec.get("tuner", {}).get("kind") not in ADAPTIVE:
        return None
    with _one_at_a_time:
        return _forecast(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=256)
def _forecast(text: str) -> Forecast | None:
    spec = unguided(json.loads(text)) | {"ranks": 1}  # that changes the time, and no step
    most = spec.pop("max_total_steps", math.inf)
    factor = _shrink(spec["tuner"])
    study = StudyId("forecast")
    simulator = Simulator(slots=4, measure=_by_chance(spec))
    simulator.submit(study, spec)
    is_over = not all(simulator.advance() for _ in range(MOST_TURNS))
    end = simulator.plan.studies[study]
    if is_over and end.is_final:
        return Forecast(round(len(end.trials) * factor), min(round(end.unique * factor), most))
    return None


def _shrink(tuner: dict[str, Any]) -> float:
    """Leave at most so many trials, and say by what to multiply what they take."""
    trials = tuner.get("num_trials") or 0
    if trials <= MOST_TRIALS:
        return 1.0
    tuner["num_trials"] = MOST_TRIALS
    return float(trials) / MOST_TRIALS


def _by_chance(spec: dict[str, Any]) -> Any:
    metrics = judged_by(spec)

    def measure(node: Node, step: int) -> e.Metrics:
        draws = Random(f"{node.id}/{step}")
        return {name: draws.random() for name in metrics}

    return measure
