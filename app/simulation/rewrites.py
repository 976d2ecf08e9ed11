"""How a study could cost less: advice in sentences, and other ways to write it with their prices.

Each rewrite is planned whole, like the study itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from app.domain.search_plan import Study
from stagetree.advice import advice
from stagetree.advice.rewrites import rewrites
from stagetree.spec import StudySpec

LEAST_SAVED = 0.05
"""A rewrite that saves a smaller part of the steps is not offered."""

Plan = Callable[[StudySpec], Study | None]
"""Runs a study on virtual slots; None if it is too large."""


def savings(spec: StudySpec, previewed: Study, plan: Plan) -> dict[str, Any]:
    """The fields `advice` and `rewrites` of a preview."""

    def count(other: StudySpec) -> int | None:
        planned = previewed if other is spec else plan(other)
        return None if planned is None else planned.unique

    return {"advice": advice(spec, count), "rewrites": [*_priced(spec, previewed.unique, plan)]}


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
