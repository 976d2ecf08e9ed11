"""Lengths that are values of the space, and numbers of steps that are fractions: ladders of cooldowns."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stacks import Json

from app.domain.commands import Start
from app.search.tuners.driver import TunerDriver
from app.simulation.preview import preview
from stagetree import Constant, OneCycle, SequenceError, SpecError, StudySpec, Wsd, fraction
from stagetree.advice import advice
from stagetree.sequences import parse
from stagetree.sequences.fractions import resolve_fractions
from stagetree.space import Space

WSD: Json = {"family": "wsd", "peak": 0.01, "warmup": 100}
STUDY: Json = {"name": "ladder", "trainer": "toy", "metric": "loss", "mode": "min"}
GRID: Json = {"kind": "grid"}


def study(space: Json, tuner: Json = GRID, **fields: Any) -> StudySpec:
    return StudySpec.from_dict({**STUDY, "space": space, "tuner": tuner, **fields})


def spec_of_trials(*trials: tuple[Json, int]) -> StudySpec:
    """The same trials, written one by one."""
    return StudySpec.from_dict(
        {**STUDY, "tuner": {"kind": "trials", "trials": [{"hp": hp, "steps": steps} for hp, steps in trials]}}
    )


def started_trials(spec: StudySpec) -> list[tuple[Json, int]]:
    """Configurations and steps of all that the study's tuner starts."""
    starts = TunerDriver(spec.to_json()).tuner.suggest_many(10_000)
    return [(dict(start.hp), start.steps) for start in starts if isinstance(start, Start)]


# ------------------------------------------------------------------------------------------------ ladders


def test_a_ladder_costs_as_much_as_its_list() -> None:
    """The study of the review: 25,597 steps as a space then, 8,597 as a list."""
    lengths = [1200, 2200, 4200, 8200]
    ladder = study({"max_steps": lengths, "lr": {**WSD, "decay": 200}})
    by_end = study(
        {"max_steps": {"end": "lr"}, "lr": {**WSD, "stable_until": {"choice": [1000, 2000, 4000, 8000]}, "decay": 200}}
    )
    as_list = spec_of_trials(
        *(({"lr": {**WSD, "stable_until": steps - 200, "decay": 200}}, steps) for steps in lengths)
    )
    assert started_trials(ladder) == started_trials(by_end) == started_trials(as_list)
    assert {preview(each, slots=1)["unique"] for each in (ladder, by_end, as_list)} == {8797}


def test_a_trial_ends_where_its_rate_stays_though_a_warmup_comes_to_it() -> None:
    """It was a step longer where `final` is `peak`, for the last step of the warm-up."""
    lr = {**WSD, "warmup": {"choice": [3, 4]}, "stable_until": 10, "decay": 5, "final": 0.01}
    assert [steps for _, steps in started_trials(study({"max_steps": {"end": "lr"}, "lr": lr}))] == [2, 3]


@pytest.mark.slow
@given(
    lengths=st.lists(st.integers(20, 90), min_size=1, max_size=4, unique=True),
    warmup=st.integers(0, 5),
    ratios=st.lists(st.sampled_from([0.05, 0.1, 0.25, 1 / 3, 0.5]), min_size=1, max_size=3, unique=True),
    peaks=st.lists(st.sampled_from([0.1, 0.2]), min_size=1, max_size=2, unique=True),
)
def test_any_ladder_is_the_list_of_its_trials(
    lengths: list[int], warmup: int, ratios: list[float], peaks: list[float]
) -> None:
    decay = {"ratio": {"choice": ratios}}
    lr = {"family": "wsd", "peak": {"choice": peaks}, "warmup": warmup, "decay": decay}
    ladder = study({"max_steps": lengths, "lr": lr, "bs": [1, 2]})
    trials = [
        ({"lr": Wsd(peak, warmup, steps - part, part).to_json(), "bs": {"family": "constant", "value": bs}}, steps)
        for steps in lengths
        for peak in peaks
        for part in (int(Fraction(ratio) * steps + Fraction(1, 2)) for ratio in ratios)
        for bs in (1, 2)
    ]
    assert started_trials(ladder) == trials
    costs = [preview(each, slots=2) for each in (ladder, spec_of_trials(*trials))]
    assert costs[0]["unique"] == costs[1]["unique"]
    assert costs[0]["makespan_steps"] == costs[1]["makespan_steps"]


@pytest.mark.parametrize("family", ["inverse_sqrt", "power"])
def test_trials_of_all_lengths_share_a_curve_that_knows_none(family: str) -> None:
    """The longest trial, and the decays of the others."""
    lr = {"family": family, "peak": 0.1, "warmup": 10, "decay": fraction(0.2)}
    ladder = study({"max_steps": [100, 200, 400], "lr": lr})
    assert [hp["lr"]["decay_start"] for hp, _ in started_trials(ladder)] == [80, 160, 320]
    by_end = study({"max_steps": {"end": "lr"}, "lr": {**lr, "decay": 20, "decay_start": {"choice": [80, 160]}}})
    assert [steps for _, steps in started_trials(by_end)] == [100, 180]
    costs = preview(ladder, slots=1)
    assert (costs["requested"], costs["unique"]) == (700, 400 + 20 + 40)
    plain = preview(study({"max_steps": [100, 400], "lr": {"family": family, "peak": 0.1, "warmup": 10}}), slots=1)
    assert plain["unique"] == 400


def test_where_may_name_the_length() -> None:
    space = {"max_steps": [100, 200], "lr": [0.1, 0.2]}
    assert [
        (hp["lr"]["value"], steps) for hp, steps in started_trials(study(space, where="max_steps == 200 or lr == 0.1"))
    ] == [(0.1, 100), (0.1, 200), (0.2, 200)]


def test_others_may_exist_for_some_lengths_only() -> None:
    space = {"max_steps": [100, 200], "lr": 0.1, "ema": {"value": 0.99, "when": {"max_steps": 200}}}
    assert [sorted(hp) for hp, _ in started_trials(study(space))] == [["lr"], ["ema", "lr"]]


def test_lengths_are_drawn_too() -> None:
    spec = study(
        {"max_steps": {"randint": [50, 60]}, "lr": {"family": "cosine", "init": 0.1, "min": 0, "period": {"ratio": 1}}},
        {"kind": "random", "num_trials": 30, "sampling_seed": 3},
    )
    found = started_trials(spec)
    assert len(found) == 11  # all there are, none twice
    assert {steps for _, steps in found} == set(range(50, 61))
    assert all(hp["lr"]["period"] == steps for hp, steps in found)
    assert started_trials(StudySpec.from_dict(spec.to_json())) == found


def test_known_configurations_say_their_length() -> None:
    tuner = {"kind": "random", "num_trials": 2, "first": [{"lr": 0.3, "max_steps": 70}]}
    assert started_trials(study({"max_steps": [50, 60], "lr": {"uniform": [0, 1]}}, tuner))[0] == (
        {"lr": {"family": "constant", "value": 0.3}},
        70,
    )


def test_a_function_may_choose_among_them() -> None:
    space = {"max_steps": [100, 200], "lr": [0.1, 0.2]}
    spec = StudySpec(**STUDY, space=space, where=lambda hp: hp["max_steps"] == Constant(200), tuner=GRID)
    assert [trial["steps"] for trial in spec.to_json()["tuner"]["trials"]] == [200, 200]


# ------------------------------------------------------------------------------------------------ fractions


@given(ratio=st.floats(0, 4), steps=st.integers(1, 10_000))
def test_a_fraction_is_rounded_to_whole_steps(ratio: float, steps: int) -> None:
    found = resolve_fractions(fraction(ratio), steps)
    assert isinstance(found, int)
    assert abs(found - ratio * steps) <= 0.5 + 1e-9


def test_a_fraction_may_be_of_another_field_that_is_one() -> None:
    written = {**WSD, "stable_until": fraction(0.8), "decay": fraction(0.25, of="stable_until")}
    assert resolve_fractions(written, 1000) == {**WSD, "stable_until": 800, "decay": 200}


def test_every_tuner_knows_fractions_of_its_length() -> None:
    spec = study(
        {"lr": {**WSD, "warmup": 0, "decay": fraction(0.2)}},
        {"kind": "asha", "num_trials": 3, "min_steps": 5, "max_steps": 50},
    )
    assert spec.search_space.sample(0, 0)["lr"] == Wsd(0.01, 0, 40, 10)


def test_trials_know_them() -> None:
    written = spec_of_trials(({"lr": {**WSD, "warmup": 0, "decay": fraction(0.2)}}, 50))
    assert started_trials(written) == [({"lr": Wsd(0.01, 0, 40, 10).to_json()}, 50)]


@given(ratio=st.floats(0.05, 0.5), number=st.integers(0, 2))
def test_a_sampler_finds_its_values_again(ratio: float, number: int) -> None:
    options = [0.1, 0.2, 0.4]
    space = Space(
        {
            "lr": {**WSD, "warmup": 0, "decay": {"ratio": {"uniform": [0.05, 0.5]}}},
            "wd": {"family": "multistep", "init": 1, "gamma": 0.5, "milestones": [{"ratio": {"choice": options}}]},
        },
        steps=1000,
    )
    chosen = {"lr.decay.ratio": ratio, "wd.milestones[0].ratio": number}
    configuration = space.build(chosen)
    found = space.values(configuration)
    assert found is not None
    assert found["wd.milestones[0].ratio"] == number
    assert space.build(found) == configuration


def test_pbt_leaves_fractions_as_they_are() -> None:
    space = {"lr": {**WSD, "peak": {"loguniform": [0.001, 0.1]}, "warmup": 0, "decay": fraction(0.2)}}
    tuner = {"kind": "pbt", "population_size": 4, "ready_steps": 10, "max_steps": 50}
    spec = study(space, tuner)
    from app.search.tuners.explore import Explorer

    hp = {name: sequence.to_json() for name, sequence in spec.search_space.sample(0, 0).items()}
    changed = Explorer(spec).explore(hp, "a key")["lr"]["to"]
    assert changed["peak"] != hp["lr"]["peak"]
    assert (changed["stable_until"], changed["decay"]) == (40, 10)


# ------------------------------------------------------------------------------------------------ one cycle


def torch_one_cycle(total: int, up: int, highest: float, strategy: str) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, highest, total_steps=total, pct_start=(up + 1) / total, anneal_strategy=strategy
    )
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(total - 1):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@given(st.data(), st.integers(3, 300), st.sampled_from([("cos", "cosine"), ("linear", "linear")]))
def test_one_cycle_is_that_of_torch(data: st.DataObject, total: int, shape: tuple[str, str]) -> None:
    """Without `down` it ended one step after torch's."""
    up = data.draw(st.integers(1, total - 2))
    cycle = {"family": "one_cycle", "max": 0.5, "init": 0.5 / 25, "final": 0.5 / 250_000, "shape": shape[1]}
    [(hp, steps)] = started_trials(study({"lr": {**cycle, "up": up}}, {"kind": "grid", "max_steps": total}))
    assert steps == total
    assert hp["lr"] == {**cycle, "up": up, "down": total - 1 - up}
    assert parse(hp["lr"]).take(total) == pytest.approx(torch_one_cycle(total, up, 0.5, shape[0]), rel=1e-9)


def test_one_cycle_may_end_with_the_trial() -> None:
    spec = study({"lr": {"family": "one_cycle", "max": 0.1, "up": fraction(0.3)}}, {"kind": "grid", "max_steps": 50})
    assert started_trials(spec) == [({"lr": OneCycle(0.1, 15, 34).to_json()}, 50)]
    assert advice(spec) == []


# ------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize(
    ("space", "tuner", "field", "problem"),
    [
        ({"lr": 0.1}, GRID, "tuner.max_steps", "is missing"),
        ({"lr": 0.1}, {**GRID, "max_steps": {"end": "lr"}}, "tuner.max_steps", "is a hyper-parameter: space.max_steps"),
        ({"lr": 0.1}, {**GRID, "max_steps": [10, 20]}, "tuner.max_steps", "is a hyper-parameter: space.max_steps"),
        ({"lr": 0.1, "max_steps": [10]}, {**GRID, "max_steps": 20}, "tuner.max_steps",
         "must be left out: the space says"),
        ({"lr": 0.1, "max_steps": {"end": "lrr"}}, GRID, "space.max_steps.end", "must be one of lr, got 'lrr'"),
        ({"lr": 0.1, "max_steps": {"end": "lr"}}, GRID, "space.max_steps.end", "lr never does"),
        ({"lr": 0.1, "max_steps": [10, "x"]}, GRID, "space.max_steps[1]", "must be a whole number of steps"),
        ({"lr": 0.1, "max_steps": {"uniform": [1, 9]}}, GRID, "space.max_steps", "must be numbers of steps, such as"),
        ({"lr": 0.1, "max_steps": 10**12}, GRID, "space.max_steps", "must be at most"),
        ({"lr": {**WSD, "decay": {"ratio": "x"}}, "max_steps": [500]}, GRID, "space.lr.decay.ratio",
         "must be a finite"),
        ({"lr": {**WSD, "stable_until": 200, "decay": {"ratio": 0.1, "of": "stable"}}, "max_steps": [500]}, GRID,
         "space.lr.decay.of", "did you mean stable_until?"),
        ({"lr": {**WSD, "stable_until": {"ratio": 2, "of": "decay"}, "decay": {"ratio": 2, "of": "stable_until"}}},
         {**GRID, "max_steps": 10}, "space.lr.stable_until.of.of", "must be one of"),
        ({"lr": {**WSD, "stable_until": 200, "decay": {"ratio": 0.1}}},
         {"kind": "asha", "num_trials": 3, "min_steps": 10}, "space.lr.decay",
         "must be a fraction of another field, such as {ratio: 0.2, of: stable_until}"),
    ],
)  # fmt: skip
def test_errors_say_what_would_be_right(space: Json, tuner: Json, field: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        study(space, tuner)
    [found] = caught.value.problems
    assert found.field == field
    assert problem in found.problem
    assert "\n" not in found.problem


def test_a_fraction_alone_has_no_length() -> None:
    with pytest.raises(SequenceError, match="the trial's length is not known"):
        resolve_fractions(fraction(0.2), None)


def test_advice_where_trials_train_at_zero() -> None:
    lr = {**WSD, "stable_until": {"choice": [1000, 2000, 4000, 7800]}, "decay": 200}
    [found] = advice(study({"lr": lr}, {**GRID, "max_steps": 8000}), lambda spec: preview(spec, slots=1)["unique"])
    assert found == (
        "3 of 4 trials train at lr 0 for 16400 steps: write max_steps: {end: lr} in the space and leave it out of the "
        "tuner: 8597 steps instead of 24997, 66% less"
    )


def test_the_price_of_a_choice_is_what_the_study_takes_less_without_it() -> None:
    """Compared with the study that lists all trials but those."""
    spec = study({"max_steps": [40, 60, 80], "lr": {**WSD, "warmup": 5, "decay": {"choice": [5, 10]}}, "bs": [1, 2]})
    found = preview(spec, slots=1)
    trials = started_trials(spec)
    assert {each["field"] for each in found["choices"]} == {"max_steps", "lr.stable_until", "lr.decay", "bs"}
    for each in found["choices"]:
        name = each["field"].split(".")
        has_it = [(steps if name == ["max_steps"] else _value_at(hp, name)) == each["value"] for hp, steps in trials]
        others = spec_of_trials(*(trial for trial, is_one in zip(trials, has_it, strict=True) if not is_one))
        assert each["trials"] == sum(has_it)
        assert each["steps"] == found["unique"] - preview(others, slots=1)["unique"]


def _value_at(hp: Json, name: list[str]) -> Any:
    return hp[name[0]][name[1]] if len(name) > 1 else hp[name[0]]["value"]
