"""Mixes as values: one form for all ways to write one, and nothing in it is taken for anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.domain.schedule import path
from stagetree import SequenceError, Space, StudySpec, Values, choice, mix, shares, uniform
from stagetree.sequences import parse

NAMES = st.sampled_from(
    ["web", "code", "family", "choice", "ratio", "of", "min", "max", "mix", "value", "when", "uniform"]
)
WEIGHTS = st.dictionaries(NAMES, st.integers(0, 1000), min_size=1).filter(lambda weights: any(weights.values()))


def name_of(data: Any) -> Any:
    return list(path({"lr": 0.1, "data": data}, 10, ""))


@given(WEIGHTS, st.randoms(use_true_random=False), st.sampled_from([1, 3, 0.1, 0.007, 2.5]))
def test_order_and_scale_of_weights_change_nothing(weights: dict[str, int], chance: Any, scale: float) -> None:
    names = list(weights)
    chance.shuffle(names)
    other = {name: float(f"{weights[name] * scale:.6g}") for name in names}
    one = parse(mix(weights))
    assert one == parse(mix(other)) == parse(one.to_json()) == parse({"family": "constant", "value": mix(other)})
    assert name_of(mix(weights)) == name_of(mix(other))
    whole = sum(weights.values())
    assert shares(one.at(0)) == {name: weight / whole for name, weight in sorted(weights.items()) if weight}


@given(WEIGHTS, WEIGHTS)
def test_other_shares_have_other_names(one: dict[str, int], other: dict[str, int]) -> None:
    equal = all(
        one.get(name, 0) * sum(other.values()) == other.get(name, 0) * sum(one.values()) for name in {*one, *other}
    )
    assume(not equal)
    assert name_of(mix(one)) != name_of(mix(other))
    before = [name_of({"family": "values", "values": ["web", mix(each)], "milestones": [4]}) for each in (one, other)]
    assert before[0][0] == before[1][0] == name_of("web")[0]


@given(WEIGHTS)
def test_names_of_streams_are_no_notation(weights: dict[str, int]) -> None:
    """In a space, and in a study whose fields may be fractions."""
    for entry in (mix(weights), [mix(weights)], {"family": "values", "values": [mix(weights)], "milestones": []}):
        (found,) = Space({"data": entry}).grid()
        assert found["data"].at(0) == parse(mix(weights)).at(0)
    study = {"name": "s", "trainer": "t", "metric": "m", "mode": "min", "space": {"data": mix(weights)}}
    spec = StudySpec.model_validate({**study, "tuner": {"kind": "grid", "max_steps": 4}})
    assert spec.model_dump(mode="json")["space"]["data"] == mix(weights)


def test_sampled_weights_are_recognised() -> None:
    drawn = {
        "web": 0.7,
        "code": uniform(0.1, 0.5),
        "min": choice([0, 1]),
        "books": choice([uniform(1, 2, step=0.25), 3]),
    }
    space = Space(
        {"data": [Values(["web", "web"], [5]), {"family": "values", "values": ["web", mix(drawn)], "milestones": [5]}]}
    )
    assert "data[1].values[1].mix.code" in space.parameters()
    for number in range(30):
        found = space.sample(0, number)
        values = space.values(found)
        assert values is not None
        again = space.build(values)["data"].at(5)
        assert shares(again) == pytest.approx(shares(found["data"].at(5)))
    assert space.values({"data": parse({"family": "values", "values": ["web", "code"], "milestones": [5]})}) is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (mix({}), "data.mix: must map names of streams to their weights, got {}"),
        ({"mix": "web"}, "data.mix: must map names of streams to their weights, got 'web'"),
        (mix({"web": -1}), "data.mix.web: must be a finite number from 0 on, got -1"),
        (mix({"web": True}), "data.mix.web: must be a finite number from 0 on, got True"),
        (mix({"web": 0}), "data.mix: must have a weight above 0"),
        (mix({"we:b": 1}), "data.mix: must name a stream by a string without , and :, got 'we:b'"),
        ({"mix": {2024: 1}}, "data.mix: must name a stream by a string without , and :, got 2024"),
        ({"web": 0.7, "code": 0.3}, r"data: must be a sequence, .*: a mix of streams is {mix: {web: 0.7, code: 0.3}}"),
        ({"mix": {"web": 1}, "code": 1}, "data: must be a sequence, .*, with nothing beside it"),
        ({"family": "values", "values": [mix({"web": -1})], "milestones": []}, r"data.values\[0\].mix.web: must be"),
        ({"family": "multistep", "init": mix({"web": 1}), "milestones": [], "gamma": 1}, "data.init: must be a finite"),
    ],
)
def test_invalid_mixes_are_refused(data: Any, sentence: str) -> None:
    with pytest.raises(SequenceError, match=sentence):
        Space({"data": data})


@pytest.mark.parametrize("text", ["b:0.5,a:0.5", "a:0.5,b:0.6", "a:0.5", "a:x,b:0.5", "a:0.50,b:0.5", "a:nan,b:0.5"])
def test_a_mix_by_hand_must_have_its_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="must be a mix such as"):
        shares(text)
    assert shares("web") == {"web": 1.0}
