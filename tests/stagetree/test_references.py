"""Steps that follow from the schedule of another hyper-parameter: the study is that with the numbers written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stacks import Json
from test_lengths import GRID, spec_of_trials, started_trials, study

from app.simulation.preview import preview
from stagetree import SpecError, StudySpec, fraction
from stagetree.sequences import OneCycle, Piecewise, Sequence, parse
from stagetree.space import Space
from stagetree.space.references import named_steps
from tests.plans import max_examples
from tests.strategies import sequences

WSD: Json = {"family": "wsd", "peak": 0.1, "warmup": 2}
BOUND: Json = {
    "data": {"family": "values", "values": ["web", "code"], "at": "lr.decay_start"},
    "bs": {"family": "multistep", "init": 8, "milestones": [{"ratio": 0.5, "of": "lr.stable_until"}], "gamma": 2},
    "floor": {
        "family": "piecewise",
        "parts": [
            {"steps": {"of": "lr.decay_start"}, "sequence": 0.5},
            {"sequence": {"family": "linear", "init": 1, "slope": 1}},
        ],
    },
}


def literal(lr: Json, names: list[str]) -> Json:
    """The bound entries for one schedule of `lr`, with their numbers worked out by hand."""
    start = lr["stable_until"]
    parts = [{"steps": start, "sequence": 0.5}, {"sequence": {"family": "linear", "init": 1, "slope": 1}}]
    written = {
        "data": {"family": "values", "values": ["web", "code"], "milestones": [start]},
        "bs": {"family": "multistep", "init": 8, "milestones": [int(start / 2 + 0.5)], "gamma": 2},
        "floor": {"family": "piecewise", "parts": parts},
    }
    return {name: parse(written[name]).to_json() for name in names}


@max_examples(25)
@given(
    lengths=st.lists(st.integers(12, 40), min_size=1, max_size=3, unique=True),
    decays=st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True),
    peaks=st.lists(st.sampled_from([0.1, 0.2, 0.4]), min_size=1, max_size=2, unique=True),
    names=st.permutations(["lr", *BOUND]),
)
def test_a_study_with_references_is_the_one_with_its_numbers(
    lengths: list[int], decays: list[int], peaks: list[float], names: list[str]
) -> None:
    """In the same order, regardless of the order of entries, and with as many unique steps."""
    lr = {**WSD, "peak": {"choice": peaks}, "decay": {"choice": decays}}
    bound = study({"max_steps": lengths, **{name: BOUND.get(name, lr) for name in names}})
    trials = []
    for steps in lengths:
        for peak in peaks:
            for decay in decays:
                own = parse({**WSD, "peak": peak, "stable_until": steps - decay, "decay": decay}).to_json()
                follows = literal(own, [*BOUND])
                trials.append(({name: follows.get(name, own) for name in names}, steps))
    assert started_trials(bound) == trials
    assert started_trials(StudySpec.from_dict(bound.to_json())) == trials
    costs = [preview(each, slots=2) for each in (bound, spec_of_trials(*trials))]
    for field in ("requested", "unique", "makespan_steps"):
        assert costs[0][field] == costs[1][field]


@pytest.mark.parametrize(
    "tuner", [{"kind": "random", "num_trials": 20}, {"kind": "asha", "num_trials": 9, "min_steps": 9}]
)
def test_drawn_trials_are_bound_too(tuner: Json) -> None:
    lr = {**WSD, "decay": {"ratio": {"uniform": [0.1, 0.5]}}}
    bound = study({**BOUND, "lr": lr}, {**tuner, "max_steps": 90, "sampling_seed": 4})
    plain = study({"lr": lr}, {**tuner, "max_steps": 90, "sampling_seed": 4})
    samples = [[spec.search_space.sample(4, number) for number in range(20)] for spec in (bound, plain)]
    for one, other in zip(*samples, strict=True):
        assert one["lr"] == other["lr"], "the others change no draw of it"
        rate = one["lr"].to_json()
        assert {name: one[name].to_json() for name in BOUND} == literal(rate, [*BOUND])


@given(ratio=st.floats(0.1, 0.9), decay=st.integers(1, 8), number=st.integers(0, 3))
def test_a_sampler_finds_its_values_again(ratio: float, decay: int, number: int) -> None:
    entries = {
        "bs": {
            "family": "values",
            "values": [8, {"choice": [16, 32]}],
            "milestones": [{"ratio": {"uniform": [0.1, 0.9]}, "of": "lr.stable_until"}],
        },
        "lr": {**WSD, "stable_until": {"randint": [20, 400]}, "decay": {"randint": [1, 8]}},
    }
    space = Space(entries, steps=500)
    built = space.build(
        {"bs.milestones[0].ratio": ratio, "bs.values[1]": number % 2, "lr.stable_until": 300, "lr.decay": decay}
    )
    values = space.values(built)
    assert values is not None and space.build(values) == built
    drawn = space.sample(0, number)
    values = space.values(drawn)
    assert values is not None and space.build(values) == drawn


def test_suggestions_are_read_in_a_space_with_references() -> None:
    lr = {**WSD, "stable_until": {"choice": [10, 20]}, "decay": 5}
    space = study({**BOUND, "lr": lr}, {"kind": "random", "num_trials": 2, "max_steps": 40}).search_space
    built = space.build({"lr.stable_until": 1})
    assert built["data"].to_json()["milestones"] == [20]
    assert space.values(built) == {"lr.stable_until": 1}


def test_listed_trials_know_references() -> None:
    lr = {**WSD, "decay": fraction(0.2)}
    spec = spec_of_trials(({"lr": lr, **BOUND}, 50))
    [(hp, _)] = started_trials(spec)
    assert hp == {**literal(hp["lr"], [*BOUND]), "lr": hp["lr"]}
    with pytest.raises(SpecError) as caught:
        spec_of_trials(({"lr": 0.1, **BOUND}, 50))
    assert caught.value.problems[0].field == "tuner.trials[0].hp.data.milestones[0].of"


def test_one_may_follow_from_one_that_follows() -> None:
    space = {
        "a": {"family": "values", "values": [1, 2], "milestones": [{"ratio": 0.5, "of": "lr.decay_start"}]},
        "b": {**WSD, "stable_until": {"of": "lr.decay_start"}, "decay": {"of": "lr.decay"}},
        "c": {"family": "values", "values": [1, 2], "at": ["b.decay_start", "b.decay_end"]},
        "lr": {**WSD, "decay": {"choice": [4, 8]}},
    }
    space["c"]["values"] = [1, 2, 3]
    found = [
        (hp["a"]["milestones"], hp["c"]["milestones"])
        for hp, _ in started_trials(study(space, {**GRID, "max_steps": 40}))
    ]
    assert found == [([18], [36, 40]), ([16], [32, 40])]


@given(sequences())
def test_named_steps_are_where_the_values_say(sequence: Sequence) -> None:
    """Before a decay starts nothing of it is seen, and from its end on the value stays."""
    named = named_steps(sequence)
    if "decay_start" in named and not isinstance(sequence, OneCycle | Piecewise):
        assert len({repr(value) for value in sequence.take(named["decay_end"] + 5, start=named["decay_end"])}) == 1
        assert 0 <= named["decay_start"] < named["decay_end"]


LR: Json = {**WSD, "decay": 10}


@pytest.mark.parametrize(
    ("space", "field", "problem"),
    [
        ({"d": {"of": "lrr.decay_start"}}, "d.milestones[0].of", "must be a step of lr, such as NAME.decay_start"),
        ({"d": {"of": "lr.decay_begin"}}, "d.milestones[0].of", "lr.decay_start, lr.decay_end, got 'lr.decay_begin'"),
        ({"d": {"of": "lr.peak"}}, "d.milestones[0].of", "must be a step of lr, which here has lr.decay,"),
        ({"d": {"of": "d.milestones"}}, "d.milestones[0].of", "must be a step of lr"),
        ({"d": {"of": "lr.decay_start"}, "lr": [LR, 0.1]}, "d.milestones[0].of", "has none: it is constant"),
        ({"d": {"of": "lr.decay_start", "ratio": "x"}}, "d.milestones[0].ratio", "must be a finite number"),
        ({"d": {"of": "lr.warmup"}, "lr": {**LR, "warmup": {"of": "d.x"}}}, "d", "must not follow from itself"),
    ],
)
def test_errors_say_what_would_be_right(space: Json, field: str, problem: str) -> None:
    data = {"family": "values", "values": [1, 2], "milestones": [space["d"]]}
    with pytest.raises(SpecError) as caught:
        study({"lr": LR, **space, "d": data, "max_steps": 50})
    [found] = caught.value.problems
    assert found.field == f"space.{field}"
    assert problem in found.problem


def test_changing_values_cannot_be_referenced() -> None:
    pbt = {"kind": "pbt", "population_size": 4, "ready_steps": 5, "max_steps": 40}
    space = {"lr": {**LR, "peak": {"choice": [0.1, 0.2]}}, "data": BOUND["data"], "wd": {"uniform": [0, 1]}}
    with pytest.raises(SpecError, match=r"tuner\.fixed: must hold data: steps of data follow from lr"):
        study(space, pbt)
    study(space, {**pbt, "fixed": ["lr", "data"]})


def test_a_condition_on_a_reference_is_refused() -> None:
    space = {"lr": LR, "data": [BOUND["data"], "web"], "wd": {"value": 0.1, "when": {"data": "web"}}, "max_steps": 40}
    with pytest.raises(SpecError, match="must not follow from another hyper-parameter, since a `when` names it"):
        study(space)
