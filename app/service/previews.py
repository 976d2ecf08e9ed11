"""Previews of studies over the service: simulated in a process of its own, with what the slots measured before."""

from __future__ import annotations

from time import process_time
from typing import Any

from app.domain.inputs import changed_text
from app.domain.sampler_inputs import learned_text
from app.domain.terms import Principal, StudyId
from app.events import MeasuredProfiles
from app.registry import TrainerSource, unread_hyper_parameters
from app.service import slot_use, submission, suggestions, undeclared_inputs
from app.service.services import InvalidField, Services
from stagetree.models.previews import Preview
from stagetree.spec import StudySpec

PREVIEW_SECONDS = 20
"""The processor time of a preview on a server. `stagetree preview` has no limit."""

MORE_SECONDS = 5
"""A preview says by itself that it takes too long, once its simulation has begun; this much later it is ended."""

Json = dict[str, Any]


def preview(use: Services, spec: StudySpec, trainer: TrainerSource, slots: int, who: Principal) -> Preview:
    """What a study would cost. Raises `SpecError`, and `InvalidField` for one that is too large to be simulated."""
    from app.simulation.virtual_run import PreviewTooLong

    learned = [learned_text(each) for each in suggestions.learn_results(use, spec, StudyId(""), who)]
    plan = submission.opening_event(spec, trainer, project=who.project or "")
    stream = submission.plan_name(plan)
    seen = () if spec.inputs or spec.begin_from else undeclared_inputs.changed_files(use, stream, (), spec.runtime_args)
    files = map(changed_text, seen)
    measured = MeasuredProfiles.read(use.log, plan, spec.devices)
    try:
        options = {"slots": slots, "limits": use.limits, "measured": measured, **slot_use.measurements(use, stream)}
        costs = use.compute(_simulate, spec, options, PREVIEW_SECONDS, seconds=PREVIEW_SECONDS + MORE_SECONDS)
    except PreviewTooLong as error:
        raise InvalidField("", str(error)) from None
    return Preview.model_validate(
        {**costs, "advice": [*costs["advice"], *unread_hyper_parameters(spec, trainer), *learned, *files]}
    )


def _simulate(spec: StudySpec, options: Json, seconds: float) -> Json:
    from app.simulation.preview import preview

    until = process_time() + seconds
    return preview(spec, is_over=lambda: process_time() > until, **options)
