"""Distributions as people write them: one form is kept, and draws are among the values written."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.samplers import sampler_of
from app.search.tuners.explore import perturb
from stagetree.sequences import Constant
from stagetree.space import (
    Choice,
    LogRandInt,
    LogUniform,
    Normal,
    RandInt,
    Range,
    Space,
    SpaceError,
    Uniform,
    canonical,
)
from stagetree.space.distinct import UniqueSamples
from stagetree.space.notation import choice, lograndint, normal, uniform
from stagetree.space.patterns import read_pattern
from stagetree.spec import SpecError, StudySpec

TENTHS = st.integers(1, 400).map(lambda tenths: tenths / 10)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    low, width = draw(TENTHS), draw(TENTHS)
    step = draw(st.none() | st.sampled_from([0.1, 0.3, 1, 7]))
    first, last = draw(st.integers(1, 2**70)), draw(st.integers(0, 1000))
    written: list[Any] = [
        {"uniform": [low, low + width], "step": step},
        {"loguniform": [low, low + width], "step": step},
        {"normal": [low, width], "step": step},
        {"randint": [first, first + last], "step": draw(st.integers(1, 9))},
        {"lograndint": [draw(st.integers(1, 9)), 9 + last]},
    ]
    chosen = draw(st.sampled_from(written))
    found = read_pattern({name: item for name, item in chosen.items() if item is not None}, "")
    assert isinstance(found, Range)
    return found


@given(ranges(), st.floats(0, 1, exclude_max=True), TENTHS)
def test_a_sample_is_one_of_the_written_values(among: Range, share: float, anything: float) -> None:
    drawn = among.at(share)
    assert among.holds(drawn) and among.low <= drawn <= among.high
    assert among.holds(among.near(anything))
    assert read_pattern(among.to_json(), "") == among == read_pattern(canonical(among.to_json()), "")
    space = Space({"x": among})
    assert space.values(space.build({"x": drawn})) == ({"x": drawn} if among.low < among.high else {})
    assert among.holds(perturb(among, drawn, Random(1), [1.2, 0.8]))


@given(ranges())
def test_listed_values_equal_possible_samples(among: Range) -> None:
    if (count := among.count()) is not None and count < 100:
        drawn = {among.at(number / 2_000) for number in range(2_000)}
        assert drawn <= set(among.listed()) and len(among.listed()) == count
        assert not isinstance(among, Uniform) or drawn == set(among.listed())
        assert UniqueSamples(Space({"x": among}), 1).size() == count


def test_steps_do_not_add_up_to_errors() -> None:
    assert uniform(0.1, 0.7, 0.2).listed() == (0.1, 0.3, 0.5, 0.7)
    assert read_pattern({"int": [16, 100], "step": 16}, "") == RandInt(16, 96, 16)
    assert normal(1, 0.5, min=0.5, step=0.2) == Normal(0.6, 3.0, 0.2, 1, 0.5, (("min", 0.5), ("step", 0.2)))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"min": 0.1, "max": 0.5}, {"uniform": [0.1, 0.5]}),
        ({"min": 1, "max": 8}, {"randint": [1, 8]}),
        ({"min": 1, "max": 8, "step": 0.5}, {"uniform": [1, 8], "step": 0.5}),
        ({"max": 1e-1, "min": 1e-4, "log": True}, {"loguniform": [1e-4, 1e-1]}),
        ({"int": [1, 9], "step": 2}, {"randint": [1, 9], "step": 2}),
        ({"int": [1, 1024], "log": True}, {"lograndint": [1, 1024]}),
        ({"log_int": [1, 1024]}, {"lograndint": [1, 1024]}),
        ({"log_uniform": [1, 2]}, {"loguniform": [1, 2]}),
        ({"float": [1, 2], "log": False}, {"uniform": [1, 2]}),
        ({"values": ["a", "b"], "probabilities": [0.7, 0.3]}, {"choice": ["a", "b"], "weights": [0.7, 0.3]}),
        ({"normal": [0, 1], "min": 0}, {"normal": [0, 1], "min": 0}),
        ([{"min": 1, "max": 8}, 3], [{"randint": [1, 8]}, 3]),
        ({"family": "cosine", "init": {"min": 0.1, "max": 0.5}, "min": 0, "period": 9},
         {"family": "cosine", "init": {"uniform": [0.1, 0.5]}, "min": 0, "period": 9}),
        ({"value": 0.9}, 0.9),
        ({"distribution": "constant", "value": 0.9}, 0.9),
        ({"distribution": "uniform", "min": 0, "max": 1}, {"uniform": [0, 1]}),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1}, {"uniform": [0, 1], "step": 0.1}),
        ({"distribution": "int_uniform", "min": 1, "max": 8}, {"randint": [1, 8]}),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1}, {"loguniform": [1e-4, 0.1]}),
        ({"distribution": "normal", "mu": 0, "sigma": 2}, {"normal": [0, 2]}),
        ({"distribution": "categorical", "values": [1, 2]}, {"choice": [1, 2]}),
        ({"distribution": "categorical_w_probabilities", "values": [1, 2], "probabilities": [0.7, 0.3]},
         {"choice": [1, 2], "weights": [0.7, 0.3]}),
        ({"value": {"min": 1, "max": 2}, "when": {"int": 3}}, {"value": {"randint": [1, 2]}, "when": {"int": 3}}),
    ],
)  # fmt: skip
def test_one_form_is_kept(written: Any, kept: Any) -> None:
    assert canonical(written) == kept == canonical(kept)
    assert Space({"x": written, "int": [3, 4]}).to_json()["x"] == kept


WEIGHED = {"choice": [1, 2], "weights": [1, 1]}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"min": 0.1}, "x: must have both min and max, got {'min': 0.1}"),
        ({"init": 0.1, "min": 0, "period": 4}, "x.family: is missing: cosine has these fields"),
        ({"distribution": "log_uniform", "min": -9, "max": 0}, "x.distribution: must be one of uniform, q_uniform"),
        ({"distribution": "q_uniform", "min": 1}, "x.max: is missing: q_uniform needs min and max"),
        (
            {"distribution": "uniform", "min": 0, "max": 1, "mu": 1},
            "x.mu: must be left out: beside uniform there may be",
        ),
        ({"min": 2, "max": 1}, "x.randint: must be [lowest, highest], but 2 is more than 1"),
        ({"uniform": [0, 1], "min": 0}, "x.min: must be left out: beside uniform there may be step"),
        ({"uniform": [0, 1], "log": True}, "x.loguniform: must have bounds above 0, since"),
        ({"uniform": [0, 1], "log": 1}, "x.log: must be true or false, got 1"),
        ({"int": [0, 1], "randint": [0, 1]}, "x.int: must be left out: beside randint there may be step"),
        ({"int": [1, 9], "step": 0.5}, "x.step: must be a whole number above 0, got 0.5"),
        ({"log_int": [1, 9], "step": 2}, "x.step: must not be beside lograndint"),
        ({"normal": [0, 0]}, "x.normal: must be [mean, standard deviation], the second above 0, got [0, 0]"),
        ({"normal": [0, 1], "min": 9}, "x.normal: must leave a number within its bounds and 4 deviations of its mean"),
        ({"normal": [0, 1], "max": "a"}, "x.max: must be a finite number, got 'a'"),
        ({"choice": [1, 2], "weights": [1]}, "x.weights: must be a list of 2 numbers, one for each option, got [1]"),
        ({"choice": [1, 2], "weights": [0, 0]}, "x.weights: must be numbers, 0 or more, of which one is above 0"),
        ({**WEIGHED, "probabilities": [1, 1]}, "x.probabilities: must be left out: beside choice there may be weights"),
    ],
)
def test_contradictory_notations_are_refused(written: Any, problem: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Space({"x": written})
    assert f"{caught.value.field}: {caught.value.problem}".startswith(problem)


def test_weights_are_chances() -> None:
    among = choice(["a", "b", "c", "d"], [3, 0, 1, 0])
    assert Counter(among.at(number / 400) for number in range(400)) == {0: 300, 2: 100}
    assert list(Space({"x": among}).grid()) == [{"x": Constant(each)} for each in "abcd"]
    assert Choice(("a", "b"), weights=(1, 1)).at(1 - 2**-53) == 1


def test_draws_follow_their_distribution() -> None:
    shares = [number / 1000 for number in range(1000)]
    octaves = Counter(lograndint(1, 1024).at(share).bit_length() for share in shares)
    assert all(70 < octaves[each] < 140 for each in range(2, 11))
    drawn = [normal(5, 2).at(share) for share in shares]
    assert 660 < sum(abs(value - 5) < 2 for value in drawn) < 700 and -3 <= min(drawn) < -2.9
    assert [LogRandInt(1, 3).at(share) for share in (0, 1 - 2**-53)] == [1, 3]
    assert LogUniform(0.1, 10, 0.1).at(0.5) == 1.0


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "sobol"])
def test_samplers_propose_possible_samples(sampler: str) -> None:
    pytest.importorskip("optuna")
    space = {
        "steps": {"uniform": [0.1, 0.7], "step": 0.2},
        "far": {"loguniform": [1, 100], "step": 3},
        "whole": {"int": [1, 9], "step": 4},
        "size": {"log_int": [1, 64]},
        "near": {"normal": [0, 1], "step": 0.5},
        "option": {"choice": ["a", "b"], "weights": [3, 1]},
    }
    tuner = {"kind": "asha", "sampler": sampler, "num_trials": 4, "min_steps": 1, "max_steps": 4, "distinct": True}
    spec = StudySpec.from_dict({**STUDY, "mode": "min", "space": space, "tuner": {**tuner, "sampling_seed": 1}})
    source = sampler_of(spec)
    assert source is not None
    for number in range(3):
        proposal = source.propose(number)
        assert proposal is not None
        configuration = {name: spec.search_space.read(name, value) for name, value in proposal.hp.items()}
        assert spec.search_space.values(configuration) is not None


STUDY: dict[str, Any] = {"name": "study", "trainer": "digits", "metric": "loss", "space": {"lr": [1, 2]}}
GRID = {"kind": "grid", "max_steps": 3}
OURS = {**STUDY, "mode": "min", "tuner": GRID}


@pytest.mark.parametrize(
    "written",
    [
        {"mode": "minimize"},
        {"direction": "minimize"},
        {"direction": "min"},
        {"minimize": True},
        {"maximize": False},
        {"minimize": "loss", "metric": None},
    ],
)
def test_a_study_says_what_is_better_in_many_ways(written: dict[str, Any]) -> None:
    whole = {name: item for name, item in {**STUDY, "tuner": GRID, **written}.items() if item is not None}
    assert StudySpec.from_dict(whole).to_json() == StudySpec.from_dict(OURS).to_json()


def test_other_names_of_a_study() -> None:
    drawn = {"kind": "random", "max_steps": 3, "num_trials": 5}
    ours = StudySpec.from_dict({**OURS, "max_time": 60, "tuner": drawn}).to_json()
    unsaid = {"kind": "random", "max_steps": 3}
    for written in ({"n_trials": 5, "tuner": unsaid}, {"tuner": {**unsaid, "n_trials": 5}}):
        assert StudySpec.from_dict({**OURS, "timeout": 60, **written}).to_json() == ours


UNSAID = {"mode": None}
COUNTED = {"kind": "random", "max_steps": 3, "num_samples": 5}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"direction": "max"}, "direction: is another name for mode, which is there already"),
        ({"minimize": True}, "minimize: must be left out beside mode, which says it already"),
        ({**UNSAID, "minimize": "acc"}, "minimize: must be true or false beside metric, which names it already"),
        ({**UNSAID, "minimize": 1}, "minimize: must be true, false or the name of a metric, got 1"),
        ({**UNSAID, "minimize": True, "maximize": True}, "minimize: must be left out beside mode, which says it"),
        ({"mode": "maximal"}, "mode: must be max or min: whether more or less of the metric is better, got 'maximal'"),
        ({"timeout": 1, "max_time": 1}, "timeout: is another name for max_time, which is there already"),
        ({"n_trials": 5, "tuner": COUNTED}, "n_trials: must be left out beside tuner.num_samples, which says it"),
        ({"n_trials": 5}, "tuner.n_trials: is not a field here"),
    ],
)
def test_a_study_with_a_field_given_twice_is_refused(written: dict[str, Any], problem: str) -> None:
    whole = {name: item for name, item in {**OURS, **written}.items() if item is not None}
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict(whole)
    assert any(line.startswith(problem) for line in str(caught.value).splitlines())


@pytest.mark.parametrize("text", ["0.1:0.2", "1e-4 : 1e-1", "16..64", "0.1,0.2"])
def test_a_range_as_other_tools_have_it_is_refused_with_the_one_meant(text: str) -> None:
    with pytest.raises(SpaceError, match=r"a study has ranges as \{uniform: \["):
        read_pattern(text, "lr")


@pytest.mark.parametrize("entry", ["cuda:0", "adam", ["16:9", "4:3"], "v1.2"])
def test_a_constant_that_is_no_range_stays(entry: Any) -> None:
    read_pattern(entry, "kind")
