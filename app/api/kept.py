"""Which checkpoint holds the weights that somebody asks for."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain import keeping, results
from app.domain.errors import Unknown
from app.domain.search_plan import Checkpoint, SearchPlan, Study


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state of a trial after `step` steps, and what was measured there."""

    trial: int
    step: int
    checkpoint: Checkpoint
    metrics: dict[str, float | None]


def kept_state(plan: SearchPlan, study: Study, trial: int | None, step: int | None) -> KeptState:
    """The state of a trial after a step; by default of the best trial, where its value was measured.

    Raises `Unknown`, which says which steps there are.
    """
    if trial is None:
        found = results.best(plan, study)
        if found is None:
            raise Unknown(f"no trial of {study.id} has a result yet: name one")
        trial = found[0].number
    if not 0 <= trial < len(study.trials):
        raise Unknown(f"{study.id} has no trial {trial}: its trials are 0 to {len(study.trials) - 1}")
    of = study.trials[trial]
    there = keeping.states_of(plan, of)
    if step is None:
        result = results.result(plan, study, of)
        step = result.step if result else max(there, default=0)
    if step not in there:
        steps = ", ".join(map(str, there)) or "none"
        raise Unknown(f"the state of trial {trial} after step {step} is not kept; the steps that are: {steps}")
    return KeptState(trial, step, there[step].checkpoint, dict(plan.metrics(of, step) or {}))
