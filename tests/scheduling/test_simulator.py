"""A study in virtual time: which stages run, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.schedule import path
from app.domain.search_plan import Node
from app.domain.stage_tree import build_stage_tree, critical_path_steps
from app.domain.terms import NodeId, StudyId
from app.search.tuners import TunerDriver
from app.simulation.preview import preview
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec
from tests.plans import METRIC, OPENED, POLICIES, max_examples, study_of
from tests.strategies import Trial, spaces

SLOTS = st.integers(1, 4)


def measure(node: Node, step: int) -> e.Metrics:
    return {METRIC: 0.5}


def simulator(slots: int = 2, policy: str = "critical_path") -> Simulator:
    return Simulator(slots=slots, measure=measure, policy=POLICIES[policy])


def submit(simulator: Simulator, trials: list[Trial], **fields: Any) -> StudyId:
    study = StudyId(f"study-{len(simulator.plan.studies)}")
    spec = study_of(trials, **fields).to_json()
    simulator.give(c.SubmitStudy(plan=OPENED, study=study, spec=spec, at=simulator.now))
    driver = TunerDriver(spec)
    driver.observe(simulator.plan.studies[study])
    simulator.give(c.ApplyTunerActions(study=study, actions=driver.suggest(1)))
    return study


def steps_run(simulator: Simulator) -> int:
    return sum(study.executed for study in simulator.plan.studies.values())


def steps_needed(*studies: list[Trial]) -> int:
    together = simulator()
    return together.plan.studies[submit(together, [trial for trials in studies for trial in trials])].unique


@pytest.mark.slow
@max_examples(60)
@given(spaces(), SLOTS, st.sampled_from(sorted(POLICIES)), st.booleans())
def test_each_unique_step_is_run_once_and_no_slot_waits_for_nothing(
    trials: list[Trial], slots: int, policy: str, merge: bool
) -> None:
    simulated = simulator(slots, policy)
    study = simulated.plan.studies[submit(simulated, trials, merge=merge)]
    longest = critical_path_steps(build_stage_tree(simulated.plan))
    makespan = simulated.run()
    assert study.state == "completed"
    assert study.executed == study.unique == study.gpu_seconds
    assert makespan >= max(longest, study.unique / slots)
    assert makespan <= study.unique / slots + (1 - 1 / slots) * longest + 1e-6, "Graham's bound"
    again = fold(simulated.events)
    again.touched, again.version = simulated.plan.touched, simulated.plan.version
    assert again == simulated.plan


@pytest.mark.slow
@max_examples(40)
@given(spaces(), spaces(), SLOTS)
def test_studies_on_one_plan_train_shared_steps_once(first: list[Trial], second: list[Trial], slots: int) -> None:
    simulated = simulator(slots)
    submit(simulated, first)
    submit(simulated, second, priority=2.0)
    simulated.run()
    assert steps_run(simulated) == steps_needed(first, second)


@pytest.mark.slow
@max_examples(40)
@given(spaces(), SLOTS, st.integers(0, 20))
def test_the_same_study_again_costs_nothing_whenever_it_comes(trials: list[Trial], slots: int, events: int) -> None:
    simulated = simulator(slots)
    submit(simulated, trials)
    for _ in range(events):
        simulated.advance()
    again = submit(simulated, trials[::-1])
    simulated.run()
    assert {study.state for study in simulated.plan.studies.values()} == {"completed"}
    assert steps_run(simulated) == steps_needed(trials)
    assert simulated.plan.studies[again].unique == steps_needed(trials)


@pytest.mark.slow
@max_examples(40)
@given(spaces(), spaces(), SLOTS, st.integers(0, 20))
def test_a_study_that_comes_later_is_answered(first: list[Trial], second: list[Trial], slots: int, events: int) -> None:
    simulated = simulator(slots)
    submit(simulated, first)
    for _ in range(events):
        simulated.advance()
    submit(simulated, second)
    simulated.run()
    assert {study.state for study in simulated.plan.studies.values()} == {"completed"}
    assert steps_needed(first, second) <= steps_run(simulated) <= steps_needed(first) + steps_needed(second)


def test_a_study_runs_to_its_end_even_if_all_its_trials_fail() -> None:
    simulated = Simulator(slots=1, measure=lambda node, step: {METRIC: None})
    study = simulated.plan.studies[submit(simulated, [({"h": 1}, 5), ({"h": 2}, 5)])]
    simulated.run()
    assert study.state == "failed"
    assert study.error == "all 2 trials failed; trial 0: accuracy is not a finite number after step 5"


def test_the_more_important_study_goes_first() -> None:
    simulated = simulator(slots=1)
    submit(simulated, [({"h": 1}, 50)])
    urgent = submit(simulated, [({"h": 2}, 5)], priority=2)
    simulated.advance()
    assert simulated.plan.studies[urgent].executed == 5


@pytest.mark.parametrize(("policy", "makespan"), [("critical_path", 40.0), ("breadth_first", 50.0)])
def test_the_critical_path_goes_first(policy: str, makespan: float) -> None:
    """Breadth first begins near the root, and is left with the longest trial at the end."""
    simulated = simulator(2, policy)
    long = {"family": "values", "values": [0, 1], "milestones": [10]}
    submit(simulated, [({"h": long}, 40), *(({"h": number}, 10) for number in range(2, 6))])
    assert simulated.run() == makespan


def test_a_preview_counts_steps() -> None:
    decay = {"family": "multistep", "init": 0.1, "milestones": [20, 30], "gamma": 0.1}
    assert preview(study_of([({"lr": decay}, 40), ({"lr": 0.1}, 40)]), slots=2) == {
        "trials": 2,
        "requested": 80,
        "unique": 60,
        "merge_rate": 1.333,
        "alone": 80,
        "saved_by_sharing": 0.25,
        "saved_by_stopping": 0.0,
        "by_results": False,
        "critical_path_steps": 40,
        "makespan_steps": 40,
        "slots": 2,
        "choices": [
            {"field": "lr.family", "value": "constant", "trials": 1, "steps": 20},
            {"field": "lr.family", "value": "multistep", "trials": 1, "steps": 20},
        ],
        "advice": [],
        "memory": [],
        "rewrites": [],
    }


def test_a_preview_counts_the_steps_that_its_plan_has() -> None:
    """The trunk of 20 steps was trained, and 5 steps of a node that the study does not have."""
    decay = {"family": "multistep", "init": 0.1, "milestones": [20, 30], "gamma": 0.1}
    trunk = next(iter(path({"lr": {"family": "constant", "value": 0.1}}, 20, "")))
    trained = {trunk: 20, NodeId("other"): 5}
    study = study_of([({"lr": decay}, 40), ({"lr": 0.1}, 40)])
    assert preview(study, slots=2, trained=trained)["known"] == 20
    assert preview(study, slots=2, trained={})["known"] == 0


def test_the_critical_path_of_a_preview_goes_to_the_top_rung() -> None:
    """It was taken before any promotion, and so shorter than any real run."""
    tuner = {"kind": "sha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3}
    study = {"name": "s", "trainer": "t", "metric": "m", "mode": "max", "space": {"lr": {"uniform": [0, 1]}}}
    found = preview(StudySpec.from_dict({**study, "tuner": tuner}), slots=9)
    assert found["critical_path_steps"] == 9 <= found["makespan_steps"]


def test_a_preview_gives_the_best_saving_of_packing() -> None:
    """Four trials part after step 2 of 10; one has other batches from then on. With two lanes: 2 + 2 * 8 + 8."""
    rates = [{"lr": {"family": "values", "values": [0.1, rate], "milestones": [2]}} for rate in (0.2, 0.3, 0.4)]
    other = {"lr": 0.1, "bs": {"family": "values", "values": [8, 16], "milestones": [2]}}
    trials = [*(({**hp, "bs": 8}, 10) for hp in rates), (other, 10)]
    spec = StudySpec.from_dict({**study_of(trials).to_json(), "packing": 2})
    found = preview(spec, slots=1)
    assert (found["unique"], found["makespan_steps"], found["packed_makespan_steps"]) == (34, 34, 26)
    assert "packed_makespan_steps" not in preview(study_of(trials), slots=1)


def packing_in_preview(packing: int | str, *seconds: tuple[str, float]) -> tuple[int, int | None, str | None]:
    """Of eight trials of 10 steps: the time with packs, their width, and the device that it was measured on."""
    profile = e.PackingProfiled(device="a GPU", batch_seconds=dict(seconds), peak_bytes={}) if seconds else None
    trials = [({"lr": 0.1 + number, "bs": 8}, 10) for number in range(8)]
    spec = StudySpec.from_dict({**study_of(trials).to_json(), "packing": packing})
    batches = list[Any]()

    def stored_profile(batch: Any, what: type) -> Any:
        assert what is e.PackingProfiled
        batches.append(batch)
        return profile

    found = preview(spec, slots=1, measured=stored_profile)
    assert batches == [{"bs": 8}] and found["makespan_steps"] == 80
    return found["packed_makespan_steps"], found["packing"]["width"], found["packing"]["device"]


def test_a_preview_uses_measured_packs() -> None:
    assert packing_in_preview(4, ("0", 1.0), ("4", 2.0)) == (40, 4, "a GPU")
    assert packing_in_preview(4) == (20, 4, None)
    assert packing_in_preview(3, ("0", 1.0), ("4", 2.0)) == (30, 3, None), "another width was measured"


def test_a_preview_gives_the_width_of_packs() -> None:
    assert packing_in_preview("auto", ("0", 1.0), ("2", 1.0), ("4", 1.2), ("8", 4.0)) == (24, 4, "a GPU")
    assert packing_in_preview("auto", ("0", 1.0), ("2", 2.0)) == (80, 0, "a GPU")
    assert packing_in_preview("auto") == (10, 8, None)
