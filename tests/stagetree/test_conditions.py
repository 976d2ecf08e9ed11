"""Hyper-parameters that exist only if others have certain values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.samplers import SAMPLERS
from stagetree import MultiStep, Space, SpaceError, SpecError, StudySpec, choice, uniform, when
from stagetree.sequences import Constant, parse
from stagetree.space.where import WhereError

SPACE: dict[str, Any] = {
    "momentum": when({"optimizer": ["sgd", "nesterov"]}, uniform(0.8, 0.99)),
    "optimizer": ["adam", "sgd", "nesterov"],
    "damping": when({"optimizer": "sgd", "bs": 64}, [0, 0.1]),
    "bs": [64, 128],
}
GRID = {**SPACE, "momentum": when({"optimizer": ["sgd", "nesterov"]}, [0.8, 0.9])}
FIELDS = {"name": "x", "trainer": "x", "metric": "x", "mode": "max"}
TUNER = {"num_trials": 4, "min_steps": 1, "max_steps": 4, "eta": 2}


def belongs(hp: dict[str, Any]) -> set[str]:
    """What a configuration must hold, said once more."""
    optimizer, bs = (hp[name].value if isinstance(hp[name], Constant) else hp[name] for name in ("optimizer", "bs"))
    has_momentum, has_damping = optimizer != "adam", optimizer == "sgd" and bs == 64
    return {"optimizer", "bs", *["momentum"] * has_momentum, *["damping"] * has_damping}


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_a_sample_has_only_existing_parameters(seed: int, number: int) -> None:
    hp = Space(SPACE).sample(seed, number)
    assert set(hp) == belongs(hp)


def test_a_condition_changes_no_draw_of_the_others() -> None:
    free = {**SPACE, "momentum": uniform(0.8, 0.99), "damping": [0, 0.1]}
    for number in range(50):
        drawn, all_drawn = Space(SPACE).sample(3, number), Space(free).sample(3, number)
        assert drawn == {name: all_drawn[name] for name in drawn}


def test_a_grid_crosses_only_existing_parameters() -> None:
    space = Space(GRID)
    configurations = list(space.grid())
    assert all(set(hp) == belongs(hp) for hp in configurations)
    assert len(configurations) == space.size() == 2 * 1 + (2 * 2 + 2) + 2 * 2
    assert len({tuple(sorted((name, value.at(0)) for name, value in hp.items())) for hp in configurations}) == 12


@pytest.mark.parametrize(
    ("options", "wanted", "having"),
    [
        ([True, 1, 1.0, 0], 1, ["1"]),
        ([True, 1, 1.0, 0], [True, 1.0], ["True", "1.0"]),
        ([0.0, 0.5, False], 0, ["0.0"]),
        ([0, -0.0, 0.0], -0.0, ["-0.0"]),
        ([{"uniform": [1, 1]}, True], 1, ["1.0"]),
        ([{"family": "linear", "init": 1.0, "slope": 0}, 1], {"family": "linear", "init": 1, "slope": 0}, ["linear"]),
    ],
)
def test_a_wanted_number_is_the_one_that_is_written_alike_or_else_its_equal(
    options: list[Any], wanted: Any, having: list[str]
) -> None:
    space = Space({"x": {"choice": options}, "y": when({"x": wanted}, 3)})
    drawn = [space.sample(0, number) for number in range(60)]
    x = [each["x"] for each in drawn if "y" in each]
    found = {repr(each.value) if isinstance(each, Constant) else each.family for each in x}
    assert found == set(having) and len(x) < len(drawn)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_proposes_existing_parameters(sampler: str) -> None:
    space = GRID if sampler == "grid" else SPACE
    spec = StudySpec(**FIELDS, space=space, tuner={"kind": "asha", "sampler": sampler, **TUNER})
    made = SAMPLERS[sampler](StudySpec.from_dict(spec.to_json()))
    for number in range(12):
        proposal = made.propose(number)
        assert proposal is not None
        hp = {name: parse(value) for name, value in proposal.hp.items()}
        assert set(hp) == belongs(hp)


def test_values_and_configurations_are_each_others_inverse() -> None:
    space = Space({**SPACE, "lr": [MultiStep(0.1, [3], 0.5), {"family": "linear", "init": uniform(0, 1), "slope": 0}]})
    for number in range(60):
        configuration = space.sample(0, number)
        values = space.values(configuration)
        assert values is not None and space.build(values) == configuration
    assert space.values({**configuration, "lr": Constant(3)}) is None
    assert space.values({"lr": Constant(3)}) is None


def test_where_gets_none_for_missing_parameters() -> None:
    space = Space(GRID, "momentum == None or momentum > 0.85")
    assert {hp["momentum"].at(0) for hp in space.grid() if "momentum" in hp} == {0.9}
    with pytest.raises(WhereError, match=r"this cannot be computed for None and 0\.85"):
        list(Space(GRID, "momentum > 0.85").grid())


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"a": when({"b": 1}, 2)}, "a.when.b: must be one of no others"),
        ({"a": when({"c": 1}, 2), "cc": 1}, "a.when.c: must be one of cc; did you mean cc?"),
        ({"a": when({"b": "sdg"}, 2), "b": ["sgd", "adam"]},
         "a.when.b: must be one of sgd, adam, got sdg; did you mean sgd?"),
        ({"a": when({"b": 1}, 2), "b": when({"a": 2}, 1)}, "a.when: must not depend on itself, through a, b"),
        ({"a": {"when": {"b": 1}}, "b": 1}, "a: must have value and when, and no others, got when"),
        ({"a": {"value": 1, "when": {}}, "b": 1}, "a.when: must map other hyper-parameters to their values, got {}"),
        ({"a": when({"b": 1}, {"uniform": [2, 1]}), "b": 1},
         "a.uniform: must be [lowest, highest], but 2 is more than 1"),
    ],
)  # fmt: skip
def test_conditions_that_cannot_be(entries: Any, problem: str) -> None:
    with pytest.raises(SpaceError) as refused:
        Space(entries)
    assert str(refused.value) == problem
    with pytest.raises(SpecError):
        StudySpec(**FIELDS, space=entries, tuner={"kind": "random", "num_trials": 2, "max_steps": 4})


def test_pbt_keeps_parameters_that_others_depend_on() -> None:
    tuner = {"kind": "pbt", "population_size": 4, "ready_steps": 2, "max_steps": 8}
    with pytest.raises(SpecError, match=r"tuner.fixed: must hold bs: whether others exist depends on it"):
        StudySpec(**FIELDS, space=SPACE, tuner=tuner)
    StudySpec(**FIELDS, space=SPACE, tuner={**tuner, "fixed": ["bs", "optimizer"]})


# ------------------------------------------------------------------------------------------------- known ones, seeds


def test_known_trials_run_first() -> None:
    first = [{"lr": 0.25, "bs": 64}, {"lr": 0.5, "bs": 128}]
    spec = StudySpec(
        **FIELDS,
        space={"lr": uniform(0, 1), "bs": choice([64, 128])},
        tuner={"kind": "random", "num_trials": 4, "max_steps": 4, "first": first},
    )
    found = [[hp["lr"].at(0), hp["bs"].at(0)] for hp in spec.configurations()]
    assert found[:2] == [[0.25, 64], [0.5, 128]] and len(found) == 4
    assert StudySpec.from_dict(spec.to_json()) == spec


def test_known_trials_must_be_in_the_space() -> None:
    tuner = {"kind": "random", "num_trials": 4, "max_steps": 4, "first": [{"lr": 0.25}]}
    with pytest.raises(SpecError, match=r"^tuner.first\[0\]: must hold exactly lr, bs, got lr$"):
        StudySpec(**FIELDS, space={"lr": uniform(0, 1), "bs": 64}, tuner=tuner)


def test_the_seed_of_draws_is_not_the_seed_of_training() -> None:
    tuner = {"kind": "random", "num_trials": 3, "max_steps": 4}
    spec = StudySpec(**FIELDS, space={"lr": uniform(0, 1)}, tuner=tuner, seed=7)
    other = spec.fill_in(8)
    assert (spec.sampling_seed, other.sampling_seed, other.seed) == (7, 8, 7)
    assert list(spec.configurations()) != list(other.configurations())
    assert other.fill_in(9) == other
    assert spec.is_written_as(other.to_json()) and not spec.is_written_as({**other.to_json(), "seed": 8})
    assert not other.is_written_as(other.fill_in(8).to_json() | {"name": "y"})
    assert other.is_written_as(other.to_json())
    grid = StudySpec(**FIELDS, space={"lr": [1, 2]}, tuner={"kind": "grid", "max_steps": 4})
    assert grid.fill_in(3) == grid and grid.is_written_as(grid.to_json())
