"""What ends a study before its tuner does, under every tuner; and replay finds out by itself that it was so."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId
from app.search.replay import replay
from app.simulation.simulator import Simulator
from app.simulation.what_if import what_if
from tests.scheduler.scenes import Scene
from tests.tuners.test_every_tuner import EVERY, SEEDS, check, run, study_of, tuner_property
from tests.tuners.worlds import STUDY, numbered_events, run_simulator, simulator, spec

ONE_BY_ONE = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 2}
ENDINGS: dict[str, dict[str, Any]] = {
    "target": {"target": 0.9},
    "patience": {"patience": 3},
    "max_time": {"max_time": 25},
    "steps": {"max_total_steps": 21},
    "seconds": {"max_slot_seconds": 25},
    "all": {"target": 0.8, "patience": 6, "max_time": 40},
}
LOSSES = (0.5, 0.4, 0.4, 0.6, 0.3, 0.2, 0.7, 0.7, 0.7)


def simulate(*losses: float, **fields: Any) -> Simulator:
    """Nine trials, whose results are these losses, in their order."""
    left = iter(losses or LOSSES)
    return run_simulator(spec(ONE_BY_ONE, **fields), slots=1, measure=lambda node, step: {"loss": next(left)})


def results(world: Simulator) -> list[float]:
    """The losses that the study came to."""
    return [line.metrics["loss"] for line in world.plan.studies[STUDY].history if line.kind == "result"]


@EVERY
@tuner_property(
    ending=st.sampled_from(list(ENDINGS)), seed=SEEDS, slots=st.sampled_from([1, 3]), fail=st.sampled_from([0, 0.2])
)
def test_every_tuner_ends(tuner: dict[str, Any], ending: str, seed: int, slots: int, fail: float) -> None:
    """With any luck: every decision is derived again, the end as well, and nothing comes after it."""
    world = run(study_of(tuner, "apart", **ENDINGS[ending]), seed, slots=slots, fail=fail)
    study = check(world, tuner)
    if study.ending:
        assert study.state == "completed" and study.ending["by"] in ENDINGS[ending]
        after = world.events[1 + next(n for n, each in enumerate(world.events) if isinstance(each, e.StudyCompleted)) :]
        assert not any(isinstance(each, e.TrialAdded | e.TrialExtended | e.ChainAssigned) for each in after)
    found = what_if(world.events, STUDY, {})
    assert (found["saved"], found["needed"], found["trials"]) == (0, 0, len(study.trials))


def test_a_target_that_is_reached() -> None:
    world = simulate(target=0.4)
    study = world.plan.studies[STUDY]
    assert study.ending == {"by": "target", "target": 0.4, "trial": study.ending["trial"], "steps": 2, "value": 0.4}
    assert (study.state, results(world)) == ("completed", [0.5, 0.4])


def test_results_that_are_no_better() -> None:
    """An equal one is no better; a better one is waited for anew."""
    world = simulate(patience=2)
    study = world.plan.studies[STUDY]
    assert study.ending == {"by": "patience", "patience": 2, "trial": study.ending["trial"], "steps": 2, "value": 0.4}
    assert results(world) == [0.5, 0.4, 0.4, 0.6]
    assert not simulate(patience=4).plan.studies[STUDY].ending


@pytest.mark.parametrize("seed", range(6))
def test_patience_compares_results_of_the_same_step(seed: int) -> None:
    """With falling losses, each result of the first rung is worse than all results of the rungs above."""
    chance = random.Random(seed)
    worth = defaultdict[str, float](lambda: chance.uniform(0, 0.2))
    asha = {"kind": "asha", "num_trials": 81, "min_steps": 1, "max_steps": 81, "eta": 3}
    world = run_simulator(spec(asha, patience=20), measure=lambda node, step: {"loss": 1 / step + worth[node.id]})
    best, since = dict[int, float](), 0
    for line in world.plan.studies[STUDY].history:
        if line.kind == "result":
            assert since < 20
            is_better = line.metrics["loss"] < best.get(line.steps, math.inf)
            since = 0 if is_better else since + 1
            best[line.steps] = min(line.metrics["loss"], best.get(line.steps, math.inf))
    assert bool(world.plan.studies[STUDY].ending) == (since == 20)


def test_time_that_is_up_though_nothing_happens() -> None:
    """A tick comes along: the trials under way are let go."""
    scene = Scene()
    scene.submit(max_time=scene.at + 60)
    scene.scheduler.tick()
    scene.at += 59
    scene.scheduler.tick()
    assert scene.study().is_running
    scene.at += 1
    scene.scheduler.tick()
    assert scene.study().ending == {"by": "max_time", "max_time": 1_000_060.0}
    assert {trial.state for trial in scene.study().trials} == {"cancelled"}


def test_a_study_that_is_paused_ends_when_it_is_resumed() -> None:
    scene = Scene()
    study = scene.submit(max_time=scene.at + 60)
    scene.scheduler.tick()
    scene.give(c.PauseStudy(study=study))
    scene.at += 100
    scene.scheduler.tick()
    assert scene.study().state == "paused"
    scene.give(c.ResumeStudy(study=study))
    scene.scheduler.tick()
    assert scene.study().ending["by"] == "max_time"


def test_trials_of_users_count() -> None:
    world = simulator(spec({"kind": "external"}, target=0.5), slots=1, measure=lambda node, step: {"loss": 0.4})
    world.give(c.AddTrial(study=STUDY, hp={"lr": {"family": "constant", "value": 0.1}}, steps=2))
    world.run()
    assert world.plan.studies[STUDY].ending["by"] == "target"


def test_a_reopened_study_continues_without_its_limit() -> None:
    world = simulate(0.5, *[0.9] * 20, patience=3, target=0.1)
    study = world.plan.studies[STUDY]
    assert study.ending["by"] == "patience"
    world.give(c.ReopenStudy(study=STUDY, trials=12, at=0.0))
    assert (study.ending, study.spec.json["target"]) == ({}, 0.1) and "patience" not in study.spec.json
    world.run()
    assert (study.state, len(study.trials)) == ("completed", 12)
    assert replay(numbered_events(world.events), STUDY).identical


def test_results_of_another_study_count_one_by_one() -> None:
    """A grid asks for all of it at once. Where the results exist already, it ends with the one that ends it."""
    tuner, space = {"kind": "grid", "max_steps": 2}, {"lr": [number / 10 for number in range(1, 13)]}
    world = run_simulator(spec(tuner, space=space), slots=1, name=StudyId("before"))
    world.submit(STUDY, spec(tuner, space=space, patience=2).to_json())
    world.run()
    study = world.plan.studies[STUDY]
    assert study.ending["by"] == "patience" and len(study.trials) < 12
    assert replay(numbered_events(world.events), STUDY).identical


@pytest.mark.parametrize(
    "reason",
    [{}, {"by": "target", "target": 0.3}, {"by": "patience", "patience": 2, "trial": 0, "steps": 2, "value": 0.5}],
)
def test_an_end_that_does_not_follow_is_found_out(reason: dict[str, Any]) -> None:
    events = simulate(patience=2).events
    changed = [replace(each, reason=reason) if isinstance(each, e.StudyCompleted) else each for each in events]
    assert "end of the study" in (replay(numbered_events(changed), STUDY).difference or {})["problem"]


def test_with_another_ending_it_would_have_gone_on() -> None:
    world = simulate(patience=2)
    had = len(world.plan.studies[STUDY].trials)
    assert had < 9
    assert what_if(world.events, STUDY, {"patience": 2})["trials"] == had
    assert what_if(world.events, STUDY, {"patience": 100})["trials"] == 9
    assert what_if(world.events, STUDY, {"patience": None, "target": 0.5})["trials"] < had


def test_with_more_time_it_would_have_gone_on_and_with_less_it_would_not() -> None:
    """Events bear the time of day, and the slots on which the study is imagined go by it."""
    world = simulate(max_time=9)
    events = [replace(each, at=each.at + 1e9) if hasattr(each, "at") else each for each in world.events]
    trials = {limit: what_if(events, STUDY, {"max_time": limit})["trials"] for limit in (5, 9, 13, None)}
    assert trials[5] < trials[9] < trials[13] < trials[None] == 9
    assert trials[9] == len(world.plan.studies[STUDY].trials)
