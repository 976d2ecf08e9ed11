"""`stop_hopeless`: that trials end which will hardly come to the best, under a tuner that does not look that far."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stagetree.spec.errors import FieldError
from stagetree.spec.fields import Bounds, Count, check_bounds, common, keep_top_field
from stagetree.spec.sentences import SpecPart

REFUSED = {
    "pop": "which ends trials by what is foretold of them itself",
    "early_term": "which ends trials by what is foretold of them itself",
    "pbt": "whose trials change their values on the way, so that a curve does not say how it goes on",
    "external": "whose trials belong to whoever asks for them, and wait for results",
}
"""With these tuners it does not go. For the others a trial that ends early is one that failed on its way."""


class StopHopeless(SpecPart):
    """The predictive termination criterion (Domhan et al. 2015, §4) beside the study's own tuner."""

    boundary: Count | None = common(
        "boundary", "the number of steps between decisions, at least 1; without it, a tenth of max_steps", default=None
    )
    delta: float = Field(default=0.05, ge=0, le=1, description="a number from 0 to 1: less likely trials end")
    max_steps: Count | None = common(
        "max_steps",
        "a number of steps, at least 1: the end that is foretold, where the tuner does not say it",
        default=None,
    )
    keep_top: float = keep_top_field()
    bounds: Bounds = Field(
        default=[None, None], description="a list of the least and the greatest value of the metric, null if unknown"
    )

    def check(self, tuner: Any) -> None:
        """Raise `FieldError` where the tuner cannot go with it."""
        if tuner.kind in REFUSED:
            raise FieldError("stop_hopeless", f"must be left out for the tuner {tuner.kind}, {REFUSED[tuner.kind]}")
        end = getattr(tuner, "max_steps", None)
        if end is not None and self.max_steps is not None:
            raise FieldError("stop_hopeless.max_steps", "must be left out: the tuner has max_steps of its own")
        if end is None and self.max_steps is None:
            raise FieldError("stop_hopeless.max_steps", "is missing: the number of steps at the end, of whole trials")
        check_bounds(self.bounds, "stop_hopeless.bounds")

    def end(self, tuner: Any) -> int:
        """The number of steps at which the values are compared."""
        own: int | None = getattr(tuner, "max_steps", None)
        return own or self.max_steps or 0
