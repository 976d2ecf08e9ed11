"""The waterfall of a study: its parts add up, and each equals a count of single steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import Waterfall, cost, horizon, seconds_per_step
from app.domain.search_plan import Node, SearchPlan, Study
from app.domain.terms import StudyId, StudyState
from app.simulation.pace import Fault
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec
from tests.plans import METRIC, OPENED, Story, max_examples, study_of
from tests.strategies import Trial, spaces

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3, "distinct": False}
SPACE = {"lr": [0.1, 0.2, {"family": "multistep", "init": 0.1, "milestones": [4], "gamma": 0.1}], "bs": [1, 2, 3]}


def asha(**fields: Any) -> dict[str, Any]:
    common = {"name": "study", "trainer": "digits", "metric": METRIC, "mode": "max"}
    return StudySpec.from_dict({**common, "space": SPACE, "tuner": ASHA, **fields}).to_json()


def random_metrics(node: Node, step: int) -> e.Metrics:
    return {METRIC: Random(f"{node.id}/{step}").random()}


def simulator(accidents: dict[int, str] | None = None, slots: int = 2) -> Simulator:
    def faults(stage: e.Stage, number: int, slot: str) -> Fault | None:
        fault = (accidents or {}).get(number)
        return None if fault is None else Fault(fault)

    return Simulator(slots=slots, measure=random_metrics, faults=faults, keep_every=3)


def submit(simulated: Simulator, spec: dict[str, Any]) -> Study:
    study = StudyId(f"study-{len(simulated.plan.studies)}")
    simulated.give(c.SubmitStudy(plan=OPENED, study=study, spec=spec, at=0.0))
    return simulated.plan.studies[study]


def adds_up(found: Waterfall) -> bool:
    rest = found.steps_taken - found.shared - found.known + found.repeated + found.retried + found.lost
    return rest == found.run and min(vars_of(found)) >= 0


def vars_of(found: Waterfall) -> list[int]:
    return [getattr(found, name) for name in Waterfall.__slots__]


def trained_by_hand(plan: SearchPlan, study: Study) -> tuple[int, int]:
    """(trained steps of all trials counted alone, unique steps), counted one step at a time."""
    places: Counter[tuple[str, int]] = Counter()
    for trial in study.trials:
        for step in range(1, trial.steps + 1):
            node = plan.node_of(trial, step)
            places[node.id, step] += step <= node.reached
    return places.total(), sum(count > 0 for count in places.values())


@max_examples(60)
@given(
    spaces(),
    spaces(),
    st.dictionaries(st.integers(0, 12), st.sampled_from(["lose", "fail"]), max_size=3),
    st.integers(1, 3),
    st.integers(0, 40),
)
def test_the_parts_add_up_at_any_time_under_faults(
    first: list[Trial], second: list[Trial], accidents: dict[int, str], slots: int, turns: int
) -> None:
    simulated = simulator(accidents, slots)
    studies = [submit(simulated, study_of(trials).to_json()) for trials in (first, second)]
    for _ in range(turns):
        simulated.advance()
    for study in studies:
        found = cost(simulated.plan, study)
        taken, different = trained_by_hand(simulated.plan, study)
        assert adds_up(found)
        assert (found.shared, found.known) == (taken - different, different - study.first)
        assert found.run == study.executed


@pytest.mark.parametrize("slots", [1, 3])
def test_a_study_without_accidents_repeats_nothing_and_leaves_nothing(slots: int) -> None:
    simulated = simulator(slots=slots)
    study = submit(simulated, asha())
    simulated.run()
    found = cost(simulated.plan, study)
    assert study.state == StudyState.COMPLETED
    assert (found.alone, found.unfinished, found.repeated, found.known) == (9 * 18, 0, 0, 0)
    assert found.stopped_early == sum(18 - trial.steps for trial in study.trials) > 0
    assert adds_up(found) and found.stopped_early + found.shared + found.run == found.alone


def test_steps_that_the_tuner_may_still_request_are_not_saved() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    while not study.num_results:
        simulated.advance()
    assert cost(simulated.plan, study).stopped_early == 0


def test_a_cancelled_study_counts_only_shared_steps_as_saved() -> None:
    """Once 672 of 1280 steps were called saved after 84 trained ones."""
    simulated = simulator()
    study = submit(simulated, asha(tuner={"kind": "grid", "max_steps": 18}))
    while not study.executed:
        simulated.advance()
    simulated.give(c.CancelStudy(study=study.id, at=1.0))
    found = cost(simulated.plan, study)
    assert (found.stopped_early, found.known) == (0, 0)
    assert 0 < found.shared < found.alone - study.unique, "untrained steps are not shared"
    assert found.unfinished == found.alone - found.run - found.shared


def test_steps_of_another_study_count_as_known() -> None:
    simulated = simulator()
    first, second = submit(simulated, asha()), submit(simulated, asha())
    simulated.run()
    one, other = cost(simulated.plan, first), cost(simulated.plan, second)
    assert one.run + one.known == other.run + other.known
    assert one.run + other.run == one.run + one.known
    third = submit(simulated, asha())
    simulated.run()
    again = cost(simulated.plan, third)
    assert (again.run, again.known + again.shared, again.saved_by_sharing) == (0, again.steps_taken, 1.0)


def test_steps_that_sharing_repeated_are_no_savings() -> None:
    """Once 75 % were shown as 82 %."""
    waterfall = Waterfall(
        alone=100, stopped_early=0, unfinished=0, shared=70, known=10, repeated=6, retried=3, lost=2, struck=1, run=32
    )
    assert (waterfall.steps_saved, waterfall.saved_by_sharing) == (73, 0.73)
    assert replace(waterfall, struck=99).steps_saved == 0


def test_a_study_that_ended_without_a_result_saved_nothing() -> None:
    """Once trials that failed in their shared steps counted as 100 % saved by sharing."""
    simulated = simulator(dict.fromkeys(range(99), "fail"))
    study = submit(simulated, study_of([({"lr": 0.1}, 4), ({"lr": 0.1}, 8)], max_restarts=0).to_json())
    simulated.run()
    assert study.is_final and not study.num_results
    assert cost(simulated.plan, study).steps_saved == 0


def test_the_start_of_a_process_is_no_pace() -> None:
    """Once a study of eight steps, in whose second two processes started, reported 64 saved steps as \"about 7 s\"."""
    story = Story()
    study = story.submit(({"lr": 0.1}, 8), ({"lr": 0.2}, 12), ({"lr": 0.3}, 90))
    found, [first], [second], [third] = story.plan.studies[study], *(story.path(study, number) for number in range(3))
    story.train(story.assign((first, 0, 8)), seconds=4.0)
    assert (found.gpu_seconds, seconds_per_step(found)) == (4.0, 0.0)
    chain = story.assign((second, 0, 4), (second, 4, 12))
    story.train(chain, seconds=0.4)
    assert seconds_per_step(found) == 0.0, "of four steps"
    story.train(chain, seconds=0.8)
    assert seconds_per_step(found) == pytest.approx(0.1)
    story.train(story.assign((third, 0, 90)), seconds=9.0)
    assert seconds_per_step(found) == pytest.approx(0.1)


def test_a_long_stage_gives_a_pace_despite_its_process_start() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 80))
    story.train(story.assign((story.path(study)[0], 0, 80)), seconds=80.0)
    assert seconds_per_step(story.plan.studies[study]) == 1.0


def test_a_lost_worker_costs_its_unsaved_steps() -> None:
    simulated = simulator({0: "lose"}, slots=1)
    study = submit(simulated, study_of([({"lr": 0.1}, 10)]).to_json())
    simulated.run()
    found = cost(simulated.plan, study)
    assert (found.run, found.lost, found.unfinished) == (11, 1, 0), "step 9 was kept in passing"
    assert (found.repeated, found.retried) == (0, 0)


def test_a_users_trial_ends_at_its_requested_step() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    simulated.give(c.AddTrial(study=study.id, hp={"lr": 0.1, "bs": 1}, steps=4))
    assert horizon(study, study.trials[-1]) == 4
