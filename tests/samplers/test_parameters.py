"""The free parameters of a space, by name, and configurations built from values for them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.search.samplers import SAMPLERS
from stagetree.sequences import Constant, Exponential, Values
from stagetree.space import Choice, Distribution, LogUniform, RandInt, Space, SpaceError, Uniform, random_choices
from stagetree.spec import StudySpec

SPACE = Space(
    {
        "lr": [
            {"family": "exponential", "init": {"choice": [0.1, {"uniform": [1, 2]}]}, "gamma": {"uniform": [0, 1]}},
            3,
        ],
        "bs": {"family": "values", "values": [{"randint": [1, 8]}, 64], "milestones": [{"choice": [5, 9]}]},
        "wd": {"loguniform": [1e-4, 1e-1]},
        "only": [{"uniform": [2, 2]}],
        "dots.in.it": {"uniform": [0, 1]},
    }
)


def test_free_parameters_are_named_by_their_place() -> None:
    found = SPACE.parameters()
    assert {name: free for name, free in found.items() if not isinstance(free, Choice)} == {
        "lr[0].init[1]": Uniform(1, 2),
        "lr[0].gamma": Uniform(0, 1),
        "bs.values[0]": RandInt(1, 8),
        "wd": LogUniform(1e-4, 1e-1),
        "['dots.in.it']": Uniform(0, 1),
    }
    choices = {name: len(free.options) for name, free in found.items() if isinstance(free, Choice)}
    assert choices == {"lr": 2, "lr[0].init": 2, "bs.milestones[0]": 2}


def test_a_configuration_is_built_from_values() -> None:
    values = {"bs.values[0]": 2, "bs.milestones[0]": 1, "wd": 0.01, "['dots.in.it']": 0.5}
    rest = {"bs": Values([2, 64], [9]), "wd": Constant(0.01), "only": Constant(2.0), "dots.in.it": Constant(0.5)}
    assert SPACE.build({**values, "lr": 1}) == {"lr": Constant(3), **rest}
    inside = {"lr": 0, "lr[0].init": 1, "lr[0].init[1]": 1.5, "lr[0].gamma": 0.25}
    assert SPACE.build({**values, **inside}) == {"lr": Exponential(1.5, 0.25), **rest}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "wd: must be from 0.1 to 1.0, got None"),
        ({"wd": 2}, "wd: must be from 0.1 to 1.0, got 2"),
        ({"wd": "0.5"}, "wd: must be from 0.1 to 1.0, got '0.5'"),
        ({"wd": 0.5, "bs": 1.0}, "bs: must be from 1 to 8, got 1.0"),
        ({"wd": 0.5, "bs": True}, "bs: must be from 1 to 8, got True"),
        ({"wd": 0.5, "bs": 3, "n": 2}, "n: must be from 0 to 1, got 2"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], problem: str) -> None:
    space = Space({"wd": {"uniform": [0.1, 1]}, "bs": {"randint": [1, 8]}, "n": [1, 2]})
    with pytest.raises(SpaceError) as caught:
        space.build(values)
    assert f"{caught.value.field}: {caught.value.problem}" == problem


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_composed_values_are_rebuilt_from_choices(seed: int) -> None:
    chosen: dict[str, Any] = {}
    draw = random_choices(Random(seed))

    def choose(place: str, free: Distribution) -> Any:
        chosen[place] = draw(place, free)
        return chosen[place]

    composed = SPACE.compose(choose)
    assert SPACE.build(chosen) == composed
    assert SPACE.build({name: value for name, value in chosen.items() if name in SPACE.parameters()}) == composed


def test_every_configuration_of_a_grid_is_built_from_choices() -> None:
    space = Space({"lr": [{"family": "exponential", "init": {"choice": [1, 2]}, "gamma": 0.5}, 0.1], "bs": [1, 2]})
    names = list(space.parameters())
    assert names == ["lr", "lr[0].init", "bs"]
    pairs = [(lr, init, bs) for lr in (0, 1) for init in (0, 1) for bs in (0, 1)]
    built = [space.build(dict(zip(names, pair, strict=True))) for pair in pairs]
    assert [each for number, each in enumerate(built) if each not in built[:number]] == list(space.grid())


def test_shares_go_from_the_lowest_value_to_the_highest() -> None:
    top = 1 - 2**-53
    assert (Uniform(1, 3).at(0), Uniform(1, 3).at(0.5), Uniform(1, 3).at(top)) == (1, 2, pytest.approx(3))
    assert LogUniform(0.01, 1).at(0.5) == pytest.approx(0.1)
    assert [RandInt(1, 4).at(u) for u in (0, 0.25, 0.5, top)] == [1, 2, 3, 4]
    assert [Choice(("a", "b"), "x").at(u) for u in (0, 0.49, 0.5, top)] == [0, 0, 1, 1]


def test_allows_evaluates_where() -> None:
    space = Space({"lr": {"uniform": [0, 1]}}, "lr > 0.5")
    assert not space.allows(space.build({"lr": 0.2}))
    assert space.allows(space.build({"lr": 0.7}))


MIXED = {"x": [True, 1, 1.0, 0.0, -0.0, False, {"uniform": [2, 4]}, {"randint": [2, 4]}], "y": {"float": [0, 1]}}


@pytest.mark.parametrize("option", range(8))
def test_a_value_comes_from_the_option_of_its_type(option: int) -> None:
    """1 once matched the option true. 3.0 of a float range is no int of another range."""
    space = Space(MIXED)
    places = {6: {"x[6]": 3.0}, 7: {"x[7]": 3}}
    values = {"x": option, "y": 1.0, **places.get(option, {})}
    found = space.values(space.build(values))
    assert found is not None and repr(sorted(found.items())) == repr(sorted(values.items()))


def test_a_number_matches_in_any_notation() -> None:
    space = Space({"x": [0.5, 1.0], "y": {"uniform": [0, 1]}, "z": {"randint": [1, 3]}})
    written = {"x": Constant(1), "y": Constant(0), "z": Constant(2)}
    assert repr(space.values(written)) == "{'x': 1, 'y': 0.0, 'z': 2}"
    assert space.values({**written, "x": Constant(True)}) is None
    assert repr(space.build({"x": 1, "y": 1, "z": 1})["y"]) == repr(Constant(1.0))


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ({"uniform": [0, 4]}, float),
        ({"uniform": [0, 4], "step": 1}, float),
        ({"uniform": [2, 2]}, float),
        ({"loguniform": [1, 4]}, float),
        ({"loguniform": [1, 4], "step": 1}, float),
        ({"normal": [2, 1]}, float),
        ({"normal": [2, 1], "step": 1, "min": 1, "max": 3}, float),
        ({"randint": [0, 4]}, int),
        ({"randint": [3, 3]}, int),
        ({"lograndint": [1, 4]}, int),
        ({"min": 0, "max": 4}, int),
        ({"min": 0, "max": 4.0}, float),
    ],
)
def test_a_range_gives_the_type_of_its_name(written: dict[str, Any], kind: type) -> None:
    tuner = {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 4, "distinct": False, "sampling_seed": 1}
    fields = {"name": "s", "trainer": "t", "metric": "m", "mode": "min", "space": {"x": written}}
    for sampler in ("random", "sobol", "tpe", "gp", "cmaes"):
        made = SAMPLERS[sampler](StudySpec.from_dict({**fields, "tuner": {**tuner, "sampler": sampler}}))
        drawn = [proposal.hp["x"]["value"] for number in range(12) if (proposal := made.propose(number)) is not None]
        assert drawn and {type(value) for value in drawn} == {kind}, sampler
