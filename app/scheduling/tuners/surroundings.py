"""What a tuner may look at beside its study's history, as it is in a plan now."""

from __future__ import annotations

from app.domain.search_plan import SearchPlan, Study
from app.scheduling.tuners.base import Context


def context_of(plan: SearchPlan, study: Study, now: float, slots: int) -> Context:
    """How a study stands at a time, in the unit of its `submitted_at`, with so many slots to train on.

    Numbers are rounded, so that what is recorded of them is what was looked at.
    """
    elapsed = round(max(0.0, now - study.submitted_at), 3)
    return Context(elapsed, slots, lambda trial: _seconds_per_step(plan, study, trial))


def _seconds_per_step(plan: SearchPlan, study: Study, trial: int) -> float:
    """The mean over the steps that were run on the trial's path, for whomever; 0 if none were."""
    nodes = [plan.nodes[name] for name in study.trials[trial].path]
    steps = sum(node.steps_run for node in nodes)
    return float(f"{sum(node.seconds for node in nodes) / steps:.6g}") if steps else 0.0
