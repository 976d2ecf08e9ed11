"""`stop_hopeless`: that trials end which will hardly come to the best, under a tuner that does not look that far."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stagetree.spec.errors import FieldError
from stagetree.spec.fields import Bounds, Count, check_bounds, common
from stagetree.spec.sentences import Part
from stagetree.spec.tuners import KINDS

KINDS_WITH = ("random", "grid", "sha", "asha", "hyperband", "async_hyperband", "median", "bandit")
"""Tuners for which a trial that ends early is one that failed on its way. The others end trials so themselves, take
each one's place in a population, or train what users asked for."""


class StopHopeless(Part):
    """The predictive termination criterion (Domhan et al. 2015, §4) beside the study's own tuner."""

    boundary: Count | None = common(
        "boundary", "the number of steps between decisions, at least 1; without it, a tenth of max_steps", default=None
    )
    delta: float = Field(default=0.05, ge=0, le=1, description="a number from 0 to 1: less likely trials end")
    bounds: Bounds = Field(
        default=[None, None], description="a list of the least and the greatest value of the metric, null if unknown"
    )

    def check(self, tuner: Any) -> None:
        """Raise `FieldError` where the tuner cannot go with it."""
        if tuner.kind not in KINDS_WITH:
            allowed = ", ".join(kind for kind in KINDS if kind in KINDS_WITH)
            raise FieldError("stop_hopeless", f"must be left out for the tuner {tuner.kind}: it goes with {allowed}")
        if tuner.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: stop_hopeless needs the number of steps at the end")
        check_bounds(self.bounds, "stop_hopeless.bounds")
