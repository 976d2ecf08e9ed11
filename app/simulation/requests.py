"""All that a study requests, before anything of it is trained."""

from __future__ import annotations

from collections.abc import Callable

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.search.tuners import TunerDriver
from stagetree.limits import Limits


def request_all(study: c.SubmitStudy, limits: Limits, watch: Callable[[int], None]) -> SearchPlan:
    """The plan after the study's tuner has requested all that it wants without any result.

    watch: called with the number of events; an exception ends it. Raises `Refused` and `TunerFailed`, too.
    """
    plan = SearchPlan()
    fold(decide(plan, study, limits), plan)
    asking = plan.studies[study.study]
    driver = TunerDriver(asking.spec.json)
    while actions := driver.suggest(limits.trials):
        fold(decide(plan, c.ApplyTunerActions(study=study.study, actions=actions), limits), plan)
        driver.observe(asking)
        watch(plan.version)
    return plan
