"""How a study could cost less: advice in sentences, and other ways to write it with their prices.

Each rewrite is planned whole, like the study itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId
from app.simulation.virtual_run import is_known_at_once
from stagetree.advice import advice
from stagetree.advice.rewrites import rewrites
from stagetree.spec import StudySpec

LEAST_SAVED = 0.05
"""A rewrite that saves a smaller part of the steps is not offered."""

Plan = Callable[[StudySpec], Study | None]
"""Runs a study on virtual slots; None if it is too large."""


def savings(spec: StudySpec, planned: SearchPlan, previewed: Study, plan: Plan) -> dict[str, Any]:
    """The fields `advice` and `rewrites` of a preview. planned: the plan of the previewed study."""

    def count(other: StudySpec) -> int | None:
        if other is spec:
            return previewed.unique
        if (trials := _trials_of_beginning(other, spec, previewed)) is not None:
            return _unique_steps(planned, previewed.trials[:trials])
        study = plan(other)
        return None if study is None else study.unique

    return {"advice": advice(spec, count), "rewrites": [*_priced(spec, previewed.unique, plan)]}


def _trials_of_beginning(other: StudySpec, spec: StudySpec, previewed: Study) -> int | None:
    """How many of the previewed trials another study has; None if it has others, or may have because of results."""
    fewer = getattr(other.tuner, "num_trials", 0)
    if not is_known_at_once(spec) or not 0 < fewer <= len(previewed.trials):
        return None
    written = spec.to_json()
    return fewer if other.to_json() == {**written, "tuner": {**written["tuner"], "num_trials": fewer}} else None


def _unique_steps(plan: SearchPlan, trials: list[Trial]) -> int:
    """The steps of some trials, counted once where they share them."""
    ends = dict[NodeId, int]()
    for trial in trials:
        for name, end in plan.path_ends(trial):
            ends[name] = max(end, ends.get(name, 0))
    return sum(end - plan.nodes[name].start for name, end in ends.items())


def _priced(spec: StudySpec, unique: int, plan: Plan) -> Iterator[dict[str, Any]]:
    """The rewrites of a study of `unique` steps that compare something and save steps, each with its study file."""
    for each in rewrites(spec):
        planned = plan(each.spec)
        if planned is None or len(planned.trials) < 2 or planned.unique > (1 - LEAST_SAVED) * unique:
            continue
        yield {
            "name": each.name,
            "change": each.change,
            "trials": len(planned.trials),
            "unique": planned.unique,
            "saved": round(1 - planned.unique / unique, 4),
            "study": each.spec.to_json(),
        }
