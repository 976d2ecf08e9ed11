"""What one more trial costs the answer for a study: the number of Python calls, which is the same on every machine."""

from __future__ import annotations

from cProfile import Profile
from random import Random

from app.domain.search_plan import SearchPlan
from app.domain.terms import StudyId
from app.service.views import documents
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

STUDY = {"name": "n", "trainer": "t", "metric": "loss", "mode": "min", "space": {"lr": {"loguniform": [1e-4, 1.0]}}}
ASHA = {"kind": "asha", "min_steps": 1, "max_steps": 27, "reduction_factor": 3}


def simulated_plan(trials: int) -> SearchPlan:
    simulator = Simulator(slots=64, measure=lambda node, step: {"loss": Random(f"{node.id}/{step}").random()})
    simulator.submit(StudyId("s"), StudySpec.from_dict(STUDY | {"tuner": ASHA | {"num_trials": trials}}).to_json())
    simulator.run()
    return simulator.plan


def calls(plan: SearchPlan) -> int:
    with Profile() as profile:
        documents.study(plan, StudyId("s"), now=0.0)
    return sum(each.callcount for each in profile.getstats())


def test_a_further_trial_costs_few_calls() -> None:
    fewer, more = calls(simulated_plan(200)), calls(simulated_plan(600))
    assert more - fewer < 400 * 500, f"{(more - fewer) / 400:.0f} calls a trial"
