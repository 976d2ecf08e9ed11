"""Studies that request all trials at once are planned without a simulation, with the same results."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from app.domain.search_plan import Node, SearchPlan
from app.scheduling.costs import Costs
from app.simulation import virtual_run as module
from app.simulation.preview import preview
from app.simulation.simulator import Simulator, Unit
from stagetree.limits import Limits
from stagetree.spec import SpecError, StudySpec

NUMBERS = st.sampled_from([0.1, 0.2, 0.4])
WSD = st.fixed_dictionaries(
    {"family": st.just("wsd"), "peak": NUMBERS, "warmup": st.integers(0, 3), "stable_until": st.integers(4, 20)},
    optional={"decay": st.integers(1, 6)},
)
MULTISTEP = st.fixed_dictionaries(
    {"family": st.just("multistep"), "init": NUMBERS, "milestones": st.just([5, 9]), "gamma": NUMBERS}
)
SEQUENCES = st.one_of(NUMBERS, WSD, MULTISTEP, st.fixed_dictionaries({"uniform": st.just([0.0, 1.0])}))
VALUES = st.one_of(SEQUENCES, st.lists(st.one_of(NUMBERS, WSD, MULTISTEP), min_size=1, max_size=4))
LENGTHS = st.one_of(st.integers(1, 30), st.just([6, 12, 25]))


@st.composite
def studies(draw: st.DrawFn) -> StudySpec:
    space = draw(st.dictionaries(st.sampled_from(["lr", "wd", "bs"]), VALUES, min_size=1))
    kind = draw(st.sampled_from(["grid", "random"]))
    is_free = "uniform" in str(space)
    number = {"num_trials": draw(st.integers(1, 12))} if kind == "random" or is_free else {}
    length = {"max_steps": draw(LENGTHS)}
    space, length = (space | length, {}) if isinstance(length["max_steps"], list) else (space, length)
    tuner = {"kind": "random" if is_free else kind, **length, **number}
    more = draw(
        st.fixed_dictionaries(
            {}, optional={"eval_every": st.integers(1, 9), "merge": st.booleans(), "repeats": st.integers(2, 3)}
        )
    )
    study = {"name": "n", "trainer": "t", "metric": "m", "mode": "max", "space": space, "tuner": tuner, **more}
    try:
        return StudySpec.from_dict(study)
    except SpecError:  # a decay that is longer than the trial, say
        reject()


class Uneven(Unit):
    """A step takes longer where the learning rate is higher: no two paths are equally long by chance."""

    def seconds_per_step(self, node: Node, gpu: str | None = None) -> float:
        return 1.0 + int(node.id[:6], 16) / 2**24


@given(studies(), st.integers(1, 5), st.booleans())
def test_a_plan_equals_its_simulation(spec: StudySpec, slots: int, is_uneven: bool) -> None:
    costs = Uneven() if is_uneven else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ORDER_SHARE", inf)
        planned = module.run_virtually(spec, slots, Limits(), lambda: False, costs=costs)
        patch.setattr(module, "ORDER_SHARE", -1.0)
        simulated = module.run_virtually(spec, slots, Limits(), lambda: False, costs=costs)
    assert [trial.path for trial in planned.study.trials] == [trial.path for trial in simulated.study.trials]
    assert (planned.study.requested, planned.study.unique) == (simulated.study.requested, simulated.study.unique)
    assert planned.cost == simulated.cost
    assert planned.slot_seconds == pytest.approx(simulated.slot_seconds)
    longest = max(costs_of(planned.plan, costs))  # the scheduler requests trials in their order, as slots become free
    assert planned.makespan == pytest.approx(simulated.makespan, abs=longest)


def costs_of(plan: SearchPlan, costs: Costs | None) -> list[float]:
    """The seconds of each trial, trained alone."""
    return [
        sum((end - plan.nodes[node].start) * (costs or Unit()).seconds_per_step(plan.nodes[node]) for node, end in ends)
        for ends in (plan.path_ends(trial) for trial in plan.studies[module.STUDY].trials)
    ]


def test_ten_thousand_trials_are_planned_without_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real scheduler took a minute for them, and previews time out after twenty seconds."""
    monkeypatch.setattr(Simulator, "run", lambda self: pytest.fail("it is simulated"))
    space = {"lr": {"loguniform": [1e-4, 1.0]}, "wd": [0.0, 0.1]}
    study = {"name": "n", "trainer": "t", "metric": "m", "mode": "max", "space": space}
    tuner = {"kind": "random", "num_trials": 10_000, "max_steps": 100}
    previewed = preview(StudySpec.from_dict({**study, "tuner": tuner}), slots=8)
    assert previewed["makespan_steps"] == 125_000
    assert previewed["unique"] == previewed["requested"] == 1_000_000
    assert previewed["saved_by_sharing"] == 0.0


def test_one_slot_needs_no_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never idle, in any order of trials."""
    monkeypatch.setattr(Simulator, "run", lambda self: pytest.fail("it is simulated"))
    study = {"name": "n", "trainer": "t", "metric": "m", "mode": "max", "space": {"lr": [0.1, 0.2]}}
    previewed = preview(StudySpec.from_dict({**study, "tuner": {"kind": "grid", "max_steps": 10}}), slots=1)
    assert previewed["makespan_steps"] == previewed["unique"] == 20
