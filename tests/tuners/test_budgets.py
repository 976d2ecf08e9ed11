"""What may be spent on a study: it ends at its budget to the step, and the log tells why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StateConflict, StudyId
from app.search.replay import replay
from app.service.views.progress import ending_text
from app.simulation.preview import preview
from app.simulation.simulator import Simulator
from tests.scheduler.scenes import Scene
from tests.tuners.worlds import STUDY, numbered_events, run_simulator, simulator, spec, stragglers

LADDER = {"lr": {"family": "wsd", "peak": 1, "warmup": 2, "decay": 3}, "max_steps": [10, 20, 40]}
GRID = {"kind": "grid"}
UNIQUE = 38 + 3 * 2  # the trunk, and of each cooldown all but its first step, which is at the peak still


def ladder(slots: int = 2, **fields: Any) -> Simulator:
    return run_simulator(spec(GRID, space=LADDER, **fields), slots=slots, seconds=stragglers(1))


@pytest.mark.slow
@given(budget=st.integers(1, 60), slots=st.integers(1, 3), alone=st.booleans())
def test_no_step_more_than_its_budget(budget: int, slots: int, alone: bool) -> None:
    """As the same study without a budget, up to there: to the step, with any work under way on other slots."""
    whole = ladder(slots, merge=not alone).plan.studies[STUDY]
    world = ladder(slots, merge=not alone, max_total_steps=budget)
    study = world.plan.studies[STUDY]
    assert study.executed == min(budget, whole.executed) and study.state == "completed"
    assert whole.unique == (70 if alone else UNIQUE)
    is_over = budget < whole.executed
    assert study.ending == ({"by": "max_total_steps", "max_total_steps": budget} if is_over else {})
    assert sum(trial.state == "completed" for trial in study.trials) <= 3 - is_over
    assert replay(numbered_events(world.events), STUDY).identical


def test_the_variance_of_a_cooldown_costs_the_cooldown() -> None:
    """Three orders of the data behind the trunk, a choice inside a sequence: ten steps, and two more ends of 2."""
    seeds = {"family": "values", "values": [0, {"choice": [1, 2, 3]}], "milestones": [8]}
    space = {"lr": {"family": "wsd", "peak": 1, "warmup": 2, "decay": 3}, "data_seed": seeds}
    found = preview(spec({"kind": "grid", "max_steps": 10}, space=space), slots=1)
    assert (found["requested"], found["unique"]) == (30, 10 + 2 * 2)


def test_the_price_of_a_value_has_the_steps_of_all_repeats() -> None:
    """One repeat trains on to the end where the other parts from it: 10 and 5 steps for each rate, and not 10."""
    repeats = {"seeds": 2, "from": 5}
    found = preview(spec({"kind": "grid", "max_steps": 10}, space={"lr": [1, 2]}, repeats=repeats), slots=1)
    assert [each["steps"] for each in found["choices"]] == [15, 15] and found["unique"] == 30


def test_a_budget_that_was_not_used_up_is_found_out() -> None:
    events = [each for each in ladder(max_total_steps=20).events if not isinstance(each, e.StageCompleted)]
    last = next(number for number, each in enumerate(events) if isinstance(each, e.StudyCompleted))
    found = replay(numbered_events([*events[:3], events[last]]), STUDY).difference
    assert found is not None and "the end of the study by its max_total_steps" in found["problem"]


def test_decide_lets_nothing_begin_beyond_the_budget_and_ends_nothing_before_it() -> None:
    scene = Scene()
    study = scene.submit({"kind": "external"}, max_total_steps=5)
    scene.give(c.AddTrial(study=study, hp={"lr": {"family": "constant", "value": 1}}, steps=8))
    node = scene.plan().roots[0]
    stage = e.Stage(node=node, start=0, end=6, study=study)
    with pytest.raises(StateConflict, match="has 5 steps left of its max_total_steps, and not 6"):
        scene.give(c.AssignChain(chain="a", slot="gpu0", stages=(stage,), at=1.0))  # type: ignore[arg-type]
    ending = {"by": "max_total_steps", "max_total_steps": 5}
    with pytest.raises(StateConflict, match=r"max_total_steps of study .* is not used up yet"):
        scene.give(c.EndStudy(study=study, reason=ending, at=1.0))


def test_other_studies_continue_work_that_a_budget_does_not_cover() -> None:
    world = simulator(spec(GRID, space=LADDER, max_total_steps=15), slots=2)
    world.submit(StudyId("other"), spec(GRID, space=LADDER).to_json())
    world.run()
    first, other = world.plan.studies[STUDY], world.plan.studies[StudyId("other")]
    assert first.ending["by"] == "max_total_steps" and first.executed == 15
    assert (other.state, other.num_results) == ("completed", 3) and first.executed + other.executed >= UNIQUE


def test_seconds_of_slots_are_up_though_nothing_happens() -> None:
    """Two slots spend twice as much. Running chains are stopped, and a tick comes by itself."""
    scene = Scene(slots=2)
    study = scene.submit({"kind": "external"}, max_slot_seconds=60.0)
    for value in (1, 2):
        scene.give(c.AddTrial(study=study, hp={"lr": {"family": "constant", "value": value}}, steps=8))
    scene.scheduler.tick()
    assert len(scene.plan().chains) == 2
    scene.at += 29
    scene.scheduler.tick()
    assert scene.study().is_running
    scene.at += 1
    scene.scheduler.tick()
    assert scene.study().ending == {"by": "max_slot_seconds", "max_slot_seconds": 60.0}
    assert {trial.state for trial in scene.study().trials} == {"cancelled"}
    assert ending_text(scene.study()) == "max_slot_seconds are used up: 60 seconds of slots"


def test_a_reopened_study_continues_without_its_budget() -> None:
    tuner = {"kind": "random", "num_trials": 4, "max_steps": 5}
    world = run_simulator(spec(tuner, max_total_steps=7), slots=1)
    assert ending_text(world.plan.studies[STUDY]) == "max_total_steps are used up: 7 steps"
    world.give(c.ReopenStudy(study=STUDY, trials=6, at=world.now))
    world.run()
    study = world.plan.studies[STUDY]
    assert study.spec.max_total_steps is None and sum(t.state == "completed" for t in study.trials) >= 3
    assert replay(numbered_events(world.events), STUDY).identical


def test_a_preview_gives_the_end_of_the_budget() -> None:
    study = spec(GRID, space=LADDER, max_total_steps=40, max_slot_seconds=4.0)
    found = preview(study, slots=1)["budget"]
    assert found == {"ends": {"by": "max_total_steps", "steps": 40, "trials": 1}, "seconds_per_step": 0.1}
    assert preview(spec(GRID, space=LADDER, max_total_steps=100), slots=1).get("budget") is None
