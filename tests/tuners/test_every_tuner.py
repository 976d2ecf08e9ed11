"""The duties of every tuner, for any results and luck: run on virtual slots, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import StudyId
from app.search.replay import replay
from app.search.tuners import TUNERS, TunerDriver
from app.simulation.preview import preview
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec
from tests.plans import max_examples
from tests.tuners.worlds import (
    SHARING,
    SPACE,
    STUDY,
    faults,
    losses,
    numbered_events,
    run_simulator,
    simulator,
    spec,
    stragglers,
)

pytestmark = pytest.mark.slow

ASHA: dict[str, Any] = {"kind": "asha", "num_trials": 24, "min_steps": 1, "max_steps": 16}
HALVING: dict[str, Any] = ASHA | {"eta": 2}
SHORT: dict[str, Any] = {"kind": "asha", "num_trials": 14, "min_steps": 2, "max_steps": 8, "type": "stopping"}
SHA: dict[str, Any] = {"kind": "sha", "num_trials": 8, "min_steps": 2, "max_steps": 11, "reduction_factor": 2}
KINDS: dict[str, dict[str, Any]] = {
    "grid": {"kind": "grid", "max_steps": 6},
    "random": {"kind": "random", "num_trials": 9, "max_steps": 6},
    "sha": {"kind": "sha", "num_trials": 17, "min_steps": 1, "max_steps": 9, "reduction_factor": 3},
    "sha: uneven top rung": SHA,
    "asha": ASHA | {"reduction_factor": 2},
    "asha: one rung": {"kind": "asha", "num_trials": 5, "min_steps": 6, "max_steps": 6},
    "asha: fewer trials than eta": {"kind": "asha", "num_trials": 3, "min_steps": 1, "max_steps": 16},
    "asha: endless": {"kind": "asha", "num_trials": 20, "min_steps": 1, "reduction_factor": 3},
    "asha: stopping": HALVING | {"type": "stopping"},
    "asha: predicted": HALVING | {"num_trials": 20, "promote_by": "predicted"},
    "asha: drawn": HALVING | {"ties": "seed"},
    "sha: drawn": {"kind": "sha", "num_trials": 17, "min_steps": 1, "max_steps": 9, "eta": 3, "ties": "seed"},
    "hyperband": {"kind": "hyperband", "min_steps": 1, "max_steps": 9},
    "hyperband: uneven": {"kind": "hyperband", "min_steps": 1, "max_steps": 10, "brackets": 2},
    "async_hyperband": {"kind": "async_hyperband", "num_trials": 20, "max_steps": 20, "reduction_factor": 2},
    "asha: brackets": {"kind": "asha", "num_trials": 20, "min_steps": 2, "max_steps": 16, "eta": 2, "brackets": 3},
    "hyperband: loops": {"kind": "hyperband", "min_steps": 1, "max_steps": 9, "loops": 2},
    "median": {"kind": "median", "num_trials": 14, "max_steps": 11, "interval": 3, "min_steps": 4},
    "bandit": {"kind": "bandit", "num_trials": 14, "max_steps": 11, "interval": 3, "epsilon": 0.3},
    "asha: finished": ASHA | {"finish_best": 2, "distinct": True},
    "asha: cooled": HALVING
    | {"num_trials": 14, "min_steps": 2, "max_steps": 11, "finish_best": 2, "rung_value": {"cooldown": 0.3}},
    "sha: cooled": SHA | {"rung_value": {"cooldown": 3, "shape": "sqrt", "final": 0.001}},
    "asha: stopping, cooled": SHORT | {"rung_value": {"cooldown": 0.5}},
    "asha: merged": HALVING
    | {"num_trials": 14, "min_steps": 3, "max_steps": 12, "finish_best": 2}
    | {"rung_value": {"merge": 3, "window": 0.3, "weights": {"decay": "sqrt"}}},
    "sha: merged": SHA | {"rung_value": {"merge": 2}},
    "asha: stopping, merged": SHORT | {"rung_value": {"merge": 2, "window": 1, "weights": "linear"}},
    "median: finished": {"kind": "median", "num_trials": 14, "max_steps": 11, "interval": 3, "finish_best": 2},
    "early_term": {"kind": "early_term", "num_trials": 14, "max_steps": 11, "boundary": 3, "delta": 0.2},
    "pop": {"kind": "pop", "num_trials": 14, "max_steps": 11, "boundary": 2, "lower_bound": 0.02},
    "pop: target": {"kind": "pop", "num_trials": 14, "max_steps": 12, "target": [0.9, 0.6], "max_time": 60},
    "pbt": {"kind": "pbt", "population_size": 7, "ready_steps": 3, "max_steps": 11, "quantile": 0.3, "fixed": ["bs"]},
    "pbt: populations": {"kind": "pbt", "population_size": 4, "ready_steps": 3, "max_steps": 9, "populations": 3},
    "pbt: chance": {"kind": "pbt", "population_size": 4, "ready_steps": 3, "max_steps": 9, "chance": 0.9},
}
EVERY = pytest.mark.parametrize("tuner", KINDS.values(), ids=KINDS)
SPACES = {"apart": SPACE | {"lr": [0.1, 0.01], "wd": [0, 0.1]}, "shared": SHARING}
SEEDS = st.integers(0, 10**6)
FITTING = {"pop", "pop: target", "asha: predicted"}
"""They fit curves, which takes a hundred times as long as all else."""


def tuner_property(**given_by: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Examples of a property of every tuner: fewer for tuners that fit curves."""

    def decorate(law: Callable[..., None]) -> Callable[..., None]:
        few, many = (max_examples(examples)(given(**given_by)(law)) for examples in (1, 3))

        @wraps(many)
        def on_examples(tuner: dict[str, Any], **others: Any) -> None:
            (few if any(tuner is KINDS[name] for name in FITTING) else many)(tuner=tuner, **others)

        return on_examples

    return decorate


def study_of(tuner: dict[str, Any], space: str, **fields: Any) -> StudySpec:
    fixed = {"fixed": [name for name in tuner["fixed"] if name in SPACES[space]]} if "fixed" in tuner else {}
    return spec(tuner | fixed, space=SPACES[space], **fields)


def run(
    study: StudySpec, seed: int, *, slots: int = 3, nans: float = 0.0, keep_every: int | None = None, **luck: float
) -> Simulator:
    """The study from beginning to end, with stages that end in any order."""
    made_up = {"measure": losses(seed, nans=nans, digits=1), "seconds": stragglers(seed)}
    return run_simulator(study, slots=slots, faults=faults(seed, **luck), keep_every=keep_every, **made_up)


def check(world: Simulator, tuner: dict[str, Any], name: StudyId = STUDY) -> Study:
    """What holds at the end of any study."""
    study = world.plan.studies[name]
    assert study.is_final and study.active == 0
    trunks = [trial for trial in study.trials if trial.trunk is None]
    assert all(trial.steps <= tuner.get("max_steps", 10**9) for trial in trunks)
    assert sum(trial.reason.get("by") == "tuner" for trial in trunks) <= most_trials(tuner)
    found = replay(numbered_events(world.events), name)
    assert found.identical, found.difference
    json.dumps(found.to_json(), allow_nan=False)
    return study


def most_trials(tuner: dict[str, Any]) -> int:
    if tuner["kind"] == "pbt":
        places = tuner["population_size"] * tuner.get("populations", 1)
        return places * ((10 if "chance" in tuner else 1) + tuner["max_steps"] // tuner["ready_steps"])
    return tuner.get("num_trials", 1000)


def test_every_tuner_is_in_the_suite() -> None:
    assert {tuner["kind"] for tuner in KINDS.values()} | {"trials", "external", "custom"} == set(TUNERS)


@EVERY
@pytest.mark.parametrize("space", SPACES)
@tuner_property(seed=SEEDS, slots=st.sampled_from([1, 3, 20]))
def test_without_bad_luck_no_step_is_run_twice(tuner: dict[str, Any], space: str, seed: int, slots: int) -> None:
    """Some ask late for a step, or a branch, that was passed before anyone knew: the state is kept there."""
    world = run(study_of(tuner, space), seed, slots=slots, keep_every=1)
    study = check(world, tuner)
    assert study.state == "completed"
    assert study.executed <= study.unique <= study.requested
    assert study.executed == study.unique or "target" in tuner  # it ends in the middle of a request


@EVERY
@tuner_property(seed=SEEDS, space=st.sampled_from(list(SPACES)))
def test_failures_nans_and_lost_workers(tuner: dict[str, Any], seed: int, space: str) -> None:
    rng = Random(seed)
    luck = {"nans": rng.choice([0, 0.1, 0.4]), "fail": rng.choice([0, 0.2, 0.5]), "lose": rng.choice([0, 0.2])}
    check(run(study_of(tuner, space), seed, **luck), tuner)


@EVERY
def test_when_everything_fails(tuner: dict[str, Any]) -> None:
    assert check(run(study_of(tuner, "apart"), 0, fail=1.0), tuner).state == "failed"


@EVERY
@tuner_property(seed=SEEDS)
def test_users_cancel_add_pause_and_resume(tuner: dict[str, Any], seed: int) -> None:
    rng = Random(seed)
    world = simulator(study_of(tuner, "shared"), measure=losses(seed, nans=0.05), seconds=stragglers(seed))
    study = world.plan.studies[STUDY]
    while world.advance():
        if not study.is_final:
            interfere(world, study, rng)
    world.run()
    check(world, tuner)


def interfere(world: Simulator, study: Study, rng: Random) -> None:
    active = [trial.number for trial in study.trials if trial.state in ("active", "completed")]
    match rng.randrange(8):
        case 0 if active:
            world.give(c.CancelTrial(study=STUDY, trial=rng.choice(active)))
        case 1:
            world.give(c.AddTrial(study=STUDY, hp=rng.choice(SHARED), steps=rng.randint(1, 6)))
        case 2:
            world.give(c.PauseStudy(study=STUDY))
            for _ in range(rng.randrange(4)):
                world.advance()
            world.give(c.ResumeStudy(study=STUDY))


SHARED: list[dict[str, Any]] = [{"lr": sequence} for sequence in SHARING["lr"]]


@EVERY
@tuner_property(seed=SEEDS)
def test_results_that_another_study_has_already(tuner: dict[str, Any], seed: int) -> None:
    """A second study on the same nodes finds some results there as soon as it asks, and runs nothing twice."""
    world = simulator(study_of(tuner, "shared"), measure=losses(seed), seconds=stragglers(seed))
    for _ in range(seed % 30):
        world.advance()
    second = StudyId("second")
    world.submit(StudyId("grid"), study_of({"kind": "grid", "max_steps": 7}, "shared").to_json())
    world.submit(second, study_of(tuner, "shared").to_json())
    world.run()
    check(world, tuner)
    check(world, tuner, second)
    assert sum(study.executed for study in world.plan.studies.values()) == sum(
        node.steps_run for node in world.plan.nodes.values()
    )


@EVERY
@tuner_property(seed=SEEDS)
def test_the_same_history_gives_the_same_actions(tuner: dict[str, Any], seed: int) -> None:
    """Read at once or line by line."""
    world = run(study_of(tuner, "apart"), seed, fail=0.1, nans=0.05)
    study = world.plan.studies[STUDY]
    fresh, other = TunerDriver(study.spec.json), TunerDriver(study.spec.json)
    for driver in (fresh, other):
        driver.observe(study)
    assert fresh.next_action() == fresh.next_action() == other.next_action()
    again = fold(world.events, SearchPlan()).studies[STUDY]
    assert again.history == study.history
    assert run(study_of(tuner, "apart"), seed, fail=0.1, nans=0.05).events == world.events


@EVERY
def test_max_of_a_metric_is_min_of_its_opposite(tuner: dict[str, Any]) -> None:
    if "target" in tuner:
        return  # it means another value there
    least = run(study_of(tuner, "apart"), 3).plan.studies[STUDY]
    most = run(study_of(tuner, "apart", metric="accuracy", mode="max"), 3).plan.studies[STUDY]
    if tuner["kind"] != "bandit" and "chance" not in tuner:  # a factor is not the same below 0, nor is a threshold
        assert [(x.kind, x.trial, x.steps) for x in least.history] == [(x.kind, x.trial, x.steps) for x in most.history]


@EVERY
def test_fewer_configurations_than_requested(tuner: dict[str, Any]) -> None:
    sampled = tuner if tuner["kind"] in ("grid", "random") else tuner | {"sampler": "grid"}
    study = spec({**sampled, **({"fixed": []} if "fixed" in tuner else {})}, space={"lr": [0.1, 0.2, 0.3]})
    world = run(study, 1)
    trials = check(world, tuner).trials
    first = [trial for trial in trials if "exploits" not in trial.reason and trial.trunk is None]
    assert len(first) == 3


@EVERY
def test_preview(tuner: dict[str, Any]) -> None:
    found = preview(study_of(tuner, "shared"), slots=2)
    assert found["merge_rate"] >= 1 and found["trials"] > 0


def test_external_wants_nothing_and_ends_on_request() -> None:
    study = spec({"kind": "external"})
    world = simulator(study)
    assert not world.advance()
    world.give(c.AddTrial(study=STUDY, hp={"lr": 0.1}, steps=4))
    world.run()
    found = world.plan.studies[STUDY]
    assert (found.state, [trial.state for trial in found.trials]) == ("running", ["completed"])
    assert isinstance(world.give(c.CloseStudy(study=STUDY, at=1.0))[0], e.StudyCompleted)
    assert replay(numbered_events(world.events), STUDY).identical
    assert preview(study, slots=1)["requested"] == 0
