"""What trials are trained with: their pack, what they read, the environment, and weights that they begin with."""

from __future__ import annotations

from typing import assert_never

from app.domain import events as e
from app.domain.inputs import is_unseen, mark
from app.domain.search_plan import SearchPlan

SurroundingEvent = e.PackingProfiled | e.PackingChosen | e.InputsSeen | e.EnvironmentSeen | e.WeightsDropped


def take(plan: SearchPlan, event: SurroundingEvent) -> None:
    """Take in what was found about it."""
    match event:
        case e.PackingProfiled():
            plan.profiles[event.device] = event
        case e.PackingChosen():
            plan.packing, plan.packing_reason = event.width, event.reason
        case e.InputsSeen():
            _see_inputs(plan, event)
        case e.EnvironmentSeen():
            plan.environments.setdefault(event.device, event)
        case e.WeightsDropped():
            _drop_weights(plan, event)
        case _:
            assert_never(event)


def _see_inputs(plan: SearchPlan, event: e.InputsSeen) -> None:
    """The first slot says what a study's inputs are that the server does not see; others should see the same."""
    study = plan.studies[event.study]
    if is_unseen(study.inputs):
        study.inputs = event.inputs
        return
    for seen, now in zip(study.inputs, event.inputs, strict=True):
        if mark(seen) != mark(now) and now["path"] not in study.other_inputs:
            study.other_inputs.append(now["path"])


def _drop_weights(plan: SearchPlan, event: e.WeightsDropped) -> None:
    """Nothing begins with them any more, and their object is gone."""
    if (weights := plan.weights.pop(event.key, None)) is not None:
        plan.kept_bytes -= weights.size
