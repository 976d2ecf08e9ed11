"""The same question with sharing in mind: what a study is rewritten to, and at what price."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.simulation.preview import plan_study, preview
from stagetree import StudySpec
from stagetree.advice.rewrites import Rewrite, rewrites
from stagetree.sequences import parse
from tests.plans import max_examples

LENGTHS = [1000, 2000, 4000]
COSINE = {"family": "cosine", "init": 0.1, "min": 0, "period": {"ratio": 1}}
LINEAR = {"family": "polynomial", "init": 0.1, "final": 0, "power": 1, "steps": {"ratio": 1}}
CYCLE = {"family": "one_cycle", "max": 0.1, "up": {"ratio": 0.1}}
WSD = {"family": "wsd", "peak": {"choice": [0.1, 0.2, 0.4]}, "warmup": 3, "decay": {"choice": [20, 40]}}


def spec(space: Any, **fields: Any) -> StudySpec:
    study = {"name": "x", "trainer": "x", "metric": "x", "mode": "max", "tuner": {"kind": "grid"}}
    return StudySpec.from_dict({**study, "space": space, **fields})


def rewrites_by_name(space: Any, **fields: Any) -> dict[str, Rewrite]:
    return {each.name: each for each in rewrites(spec(space, **fields))}


@pytest.mark.parametrize("schedule", [COSINE, LINEAR, {"family": "warmup", "steps": 10, "then": COSINE}, CYCLE])
def test_lengths_share_a_trunk_where_schedules_were_stretched_over_each(schedule: Any) -> None:
    """1,000, 2,000 and 4,000 steps: 7,000 as written, and a trunk of 3,200 with tails of 200, 400 and 800."""
    space = {"lr": schedule, "max_steps": LENGTHS}
    [offered] = preview(spec(space), slots=1)["rewrites"]
    assert offered["name"] == "horizon" and offered["change"].startswith(
        "lr as wsd: held, and a decay over the last 20%"
    )
    assert offered["unique"] == pytest.approx(4600, abs=3) and offered["saved"] == pytest.approx(0.34, abs=0.01)
    assert offered["study"]["space"]["lr"]["family"] == "wsd"


def test_lengths_that_a_schedule_lists_become_those_of_the_trials() -> None:
    schedule = LINEAR | {"steps": {"choice": LENGTHS}}
    rewritten = rewrites_by_name({"lr": schedule, "max_steps": {"end": "lr"}})["horizon"].spec
    assert rewritten.space is not None and rewritten.space["max_steps"] == LENGTHS
    assert plan_study(rewritten).unique == pytest.approx(4600, abs=3)  # type: ignore[union-attr]


def test_values_are_compared_from_where_the_rates_part() -> None:
    """Two rates that part at step 61, where the longer decay leaves its full value, and two batch sizes."""
    lr = WSD | {"peak": 0.1}
    seen = preview(spec({"lr": lr, "max_steps": 100, "bs": [32, 64]}), slots=1)
    [offered] = seen["rewrites"]
    assert offered["name"] == "order" and offered["change"] == (
        "bs takes its first value up to step 61, where lr begins to differ, and the compared values after it"
    )
    bs = parse(offered["study"]["space"]["bs"] | {"values": [32, 64]})
    assert (bs.at(60), bs.at(61)) == (32, 64)
    assert (seen["unique"], offered["unique"]) == (2 * (100 + 39), 61 + 4 * 39)


def test_one_peak_is_the_middle_one() -> None:
    offered = {each["name"]: each for each in preview(spec({"lr": WSD, "max_steps": 100}), slots=1)["rewrites"]}
    assert offered["peak"]["change"] == "lr.peak is 0.2 for all trials, so that peaks are not compared"
    assert offered["peak"]["trials"] == 2 and offered["peak"]["study"]["space"]["lr"]["peak"] == 0.2
    drawn = WSD | {"peak": {"loguniform": [0.01, 1.0]}}
    random = {"kind": "random", "num_trials": 6}
    assert rewrites_by_name({"lr": drawn, "max_steps": 100}, tuner=random)["peak"].spec.space["lr"]["peak"] == 0.1  # type: ignore[index]


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        ({"lr": [0.1, 0.2], "bs": [32, 64]}, {"tuner": {"kind": "grid", "max_steps": 10}}),
        ({"lr": WSD | {"peak": 0.1, "decay": {"ratio": 0.2}}, "max_steps": LENGTHS}, {}),
        ({"lr": COSINE, "max_steps": LENGTHS}, {"merge": False}),
        ({"lr": COSINE, "max_steps": 1000}, {}),
        ({"lr": {"loguniform": [0.01, 0.1]}}, {"tuner": {"kind": "random", "num_trials": 8, "max_steps": 10}}),
    ],
)
def test_nothing_is_offered_that_saves_nothing_or_compares_nothing(space: Any, fields: Any) -> None:
    assert preview(spec(space, **fields), slots=1)["rewrites"] == []


def test_a_where_on_a_replaced_parameter_prevents_the_rewrite() -> None:
    schedule = LINEAR | {"init": {"choice": [0.1, 0.2]}}
    assert "horizon" in rewrites_by_name({"lr": schedule, "max_steps": LENGTHS})
    assert "horizon" not in rewrites_by_name({"lr": schedule, "max_steps": LENGTHS}, where="lr.init > 0.1")


@max_examples(25)
@given(
    lengths=st.lists(st.integers(20, 400), min_size=2, max_size=4, unique=True),
    peaks=st.lists(st.floats(0.01, 1), min_size=1, max_size=3, unique=True),
    sizes=st.lists(st.sampled_from([8, 16, 32]), min_size=1, max_size=3, unique=True),
    schedule=st.sampled_from([COSINE, LINEAR]),
)
def test_each_rewrite_is_valid_and_has_the_stated_cost(lengths: Any, peaks: Any, sizes: Any, schedule: Any) -> None:
    written = spec({"lr": schedule | {"init": {"choice": peaks}}, "bs": sizes, "max_steps": lengths})
    seen = preview(written, slots=2)
    for each in seen["rewrites"]:
        again = preview(StudySpec.from_dict(each["study"]), slots=2)
        assert (again["unique"], again["trials"]) == (each["unique"], each["trials"])
        assert each["unique"] <= 0.95 * seen["unique"]
