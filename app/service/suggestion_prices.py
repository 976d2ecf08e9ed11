"""The price of suggestions, before they are enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.domain import commands as c
from app.domain.decide import decide, price_of
from app.domain.pricing import Price
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import StudyId
from app.events import StudyRecord
from app.service.services import Services
from app.service.suggestions import check_suggestions
from stagetree.limits import Limits
from stagetree.models.trials import Branch
from stagetree.space.suggestions import suggested_values, whole_suggestion
from stagetree.spec import StudySpec

Json = dict[str, Any]


def price(use: Services, row: StudyRecord, configurations: Sequence[Json]) -> Branch:
    """The steps that these configurations would cost at most, trained to the study's end.

    A partial configuration counts whole, since its sampler chooses the rest later. Raises as `suggestions.suggest`.
    """
    command = c.SuggestConfigurations(study=StudyId(row.id), configurations=tuple(configurations), at=use.clock())
    with use.open_study(row) as (plan, study):
        decide(plan, command, use.limits)
        check_suggestions(study, command)
        prices = [_price_of_suggestion(plan, study, each, use.limits) for each in configurations]
    return Branch(**{name: sum(getattr(each, name) for each in prices) for name in ("steps", "shared", "new", "again")})


def _price_of_suggestion(plan: SearchPlan, study: Study, configuration: Json, limits: Limits) -> Price:
    space, steps = StudySpec(**study.spec.json).search_space, study.spec.max_steps or 0
    whole = whole_suggestion(space, suggested_values(space, configuration))
    if whole is None:
        every = steps * study.spec.repeats[0]
        return Price(steps=every, shared=0, new=every, again=0)
    hp = {name: sequence.to_json() for name, sequence in whole[1].items()}
    return price_of(plan, c.AddTrial(study=study.id, hp=hp, steps=steps), limits)
