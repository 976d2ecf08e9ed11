"""No configuration is sampled twice while another one is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain.schedule import path
from app.search.replay import replay
from app.search.tuners import sampler_of
from app.simulation.preview import preview
from app.simulation.simulator import Simulator
from stagetree import StudySpec
from stagetree.space import Space
from stagetree.space import distinct as module
from stagetree.space.distinct import UniqueSamples
from tests.plans import max_examples
from tests.tuners.worlds import STUDY, losses, numbered_events, run_simulator, spec

VALUES = st.lists(st.sampled_from([0.1, 0.2, 0.3, "a", True]), min_size=1, max_size=4)
ENTRIES = st.one_of(
    VALUES,
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda ends: {"randint": [0, sum(ends)]}),
    st.builds(
        lambda milestones, gammas: {
            "family": "multistep",
            "init": 0.1,
            "milestones": [{"choice": milestones}],
            "gamma": {"choice": gammas},
        },
        st.lists(st.integers(1, 12), min_size=1, max_size=3),
        st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=1, max_size=2),
    ),
)
SPACES = st.dictionaries(st.sampled_from("abc"), ENTRIES, min_size=1, max_size=3)
STEPS = 8
MANY: dict[str, Any] = {"num_trials": 500, "max_steps": STEPS, "distinct": True, "sampling_seed": 3}
SMALL = {"lr": [0.1, 0.2, {"family": "multistep", "init": 0.1, "milestones": [5], "gamma": 0.5}, 0.3], "bs": [32, 64]}
SAMPLING = ["random", "grid", "sobol", "halton", "tpe", "cmaes", "gp", "trunks"]


def nodes(hp: Any) -> tuple[Any, ...]:
    """The name of a trial's leaf node in the plan."""
    return tuple(path(hp, STEPS, ""))


def whole(space: Any) -> set[tuple[Any, ...]]:
    found = Space(space).list_configurations()
    return {nodes({name: each.to_json() for name, each in configuration.items()}) for configuration in found}


def trials(world: Simulator) -> list[tuple[Any, ...]]:
    return [nodes(trial.hp) for trial in world.plan.studies[STUDY].trials]


@pytest.mark.slow
@max_examples(60)
@given(space=SPACES, seed=st.integers(0, 99), kind=st.sampled_from(["random", "sobol", "halton"]))
def test_the_whole_space_is_covered_once(space: Any, seed: int, kind: str) -> None:
    tuner = MANY | {"kind": "asha", "min_steps": 1, "sampler": kind, "sampling_seed": seed}
    sampler = sampler_of(spec(tuner, space=space))
    assert sampler is not None and sampler.size() == len(whole(space))
    drawn = [sampler.propose(number) for number in range(len(whole(space)) + 1)]
    assert drawn.pop() is None
    found = [nodes(proposal.hp) for proposal in drawn if proposal]
    assert len(found) == len(set(found)) and set(found) == whole(space)


@max_examples(40)
@given(space=SPACES, seed=st.integers(0, 99))
def test_the_tuner_random_too(space: Any, seed: int) -> None:
    study = spec(MANY | {"kind": "random", "sampling_seed": seed}, space=space)
    found = [nodes({name: each.to_json() for name, each in hp.items()}) for hp in study.configurations()]
    assert len(found) == len(set(found)) and set(found) == whole(space)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLING)
@pytest.mark.parametrize("kind", ["asha", "sha", "hyperband", "median"])
def test_every_sampler_under_every_tuner(kind: str, sampler: str) -> None:
    if sampler in ("tpe", "cmaes"):
        pytest.importorskip("optuna")
    fields: dict[str, Any] = {"max_steps": STEPS, "sampler": sampler, "distinct": True}
    if kind != "hyperband":
        fields |= {"num_trials": 30}
    fields |= {"interval": 4} if kind == "median" else {"min_steps": 1, "eta": 2}
    study = spec({"kind": kind, **fields}, space=SMALL)
    world = run_simulator(study)
    assert world.plan.studies[STUDY].state == "completed"
    assert len(trials(world)) == len(set(trials(world))) == 8
    found = replay(numbered_events(world.events), STUDY)
    assert found.identical, found.difference


def test_configurations_that_train_alike_are_equal_in_any_notation() -> None:
    late = {"family": "multistep", "init": 0.1, "milestones": [STEPS], "gamma": 0.5}
    space = Space({"lr": [0.1, late, {"family": "constant", "value": 0.1}, 0.2]})
    assert UniqueSamples(space, STEPS).size() == 2
    assert UniqueSamples(space, STEPS + 1).size() == 3
    assert UniqueSamples(space, None).size() == 3


def test_configurations_that_come_first_are_not_drawn_again() -> None:
    first = [{"lr": 0.2, "bs": 64}, {"lr": 0.9, "bs": 64}]  # the second one is not in the space
    for tuner in (
        {"kind": "random"},
        {"kind": "asha", "min_steps": 1},
        {"kind": "asha", "min_steps": 1, "sampler": "grid"},
    ):
        world = run_simulator(spec(MANY | {"first": first} | tuner, space=SMALL))
        assert len(trials(world)) == len(set(trials(world))) == 9


@pytest.mark.parametrize("kind", ["random", "asha", "async_hyperband", "median"])
def test_a_reopened_study_draws_no_repeats(kind: str) -> None:
    tuner: dict[str, Any] = {"kind": kind, "num_trials": 5, "max_steps": STEPS, "distinct": True}
    tuner |= {"asha": {"min_steps": 1}, "median": {"interval": 4}}.get(kind, {})
    world = run_simulator(spec(tuner, space=SMALL))
    assert len(set(trials(world))) == 5
    world.give(c.ReopenStudy(study=STUDY, trials=20, at=0.0))
    world.run()
    assert len(trials(world)) == len(set(trials(world))) == 8
    assert replay(numbered_events(world.events), STUDY).identical


def test_a_study_that_is_not_distinct_samples_with_replacement() -> None:
    tuner = {"kind": "asha", "num_trials": 30, "min_steps": 1, "max_steps": STEPS, "distinct": False}
    study = spec(tuner, space=SMALL)
    drawn = [study.search_space.sample(study.sampling_seed, number) for number in range(30)]
    world = run_simulator(study)
    expected = [{name: each.to_json() for name, each in hp.items()} for hp in drawn]
    assert [trial.hp for trial in world.plan.studies[STUDY].trials] == expected
    assert len(set(trials(world))) < 30 and replay(numbered_events(world.events), STUDY).identical


def test_continuous_draws_stay_as_they_are() -> None:
    space = {"lr": {"loguniform": [1e-3, 1]}, "bs": [32, 64]}
    one, other = (
        sampler_of(spec({"kind": "asha", "num_trials": 9, "min_steps": 1, "distinct": distinct}, space=space))
        for distinct in (True, False)
    )
    assert one and other and [one.propose(n) for n in range(50)] == [other.propose(n) for n in range(50)]
    assert one.size() is None


def test_few_values_beside_a_range_are_drawn_once() -> None:
    space = {"lr": [0.1, {"loguniform": [1e-3, 1]}]}
    drawn = spec(MANY | {"kind": "random", "num_trials": 40}, space=space).configurations()
    assert sum(str(hp["lr"].at(0)) == "0.1" for hp in drawn) == 1


def test_a_space_too_large_to_list_is_sampled_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LISTED", 7)
    drawn = list(spec(MANY | {"kind": "random", "num_trials": 12}, space=SMALL).configurations())
    found = [nodes({name: each.to_json() for name, each in hp.items()}) for hp in drawn]
    assert len(found) == 12 and len(set(found[:8])) == 8


def test_the_preview_reports_distinct_sampling() -> None:
    study = spec({"kind": "random", "num_trials": 30, "max_steps": STEPS}, space=SMALL)
    said = preview(study, slots=1)
    assert said["trials"] == 8
    assert said["advice"][0].startswith("8 different, 30 asked for")
    alike = preview(
        spec({"kind": "random", "num_trials": 30, "max_steps": STEPS, "distinct": False}, space=SMALL), slots=1
    )
    assert alike["trials"] == 30 and not alike["advice"]


def test_a_study_is_distinct_and_found_again_by_its_file() -> None:
    written = spec({"kind": "asha", "num_trials": 30, "min_steps": 1}, space=SMALL)
    submitted = written.fill_in(5)
    assert submitted.to_json()["tuner"]["distinct"] is True
    assert written.is_written_as(submitted.to_json())
    assert StudySpec.from_dict(submitted.to_json()) == submitted


@pytest.mark.slow
@max_examples(20)
@given(seed=st.integers(0, 10**6), slots=st.sampled_from([1, 4]))
def test_a_study_with_failures_draws_no_repeats(seed: int, slots: int) -> None:
    tuner = {"kind": "asha", "num_trials": 30, "min_steps": 1, "max_steps": STEPS, "eta": 2, "distinct": True}
    world = run_simulator(spec(tuner, space=SMALL), slots=slots, measure=losses(seed, nans=0.2))
    assert len(trials(world)) == len(set(trials(world))) == 8
    assert replay(numbered_events(world.events), STUDY).identical
