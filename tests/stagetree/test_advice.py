"""What would make a study cost less."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.simulation.preview import preview
from stagetree import Exponential, StudySpec, choice, loguniform, uniform
from stagetree.advice import advice

FIELDS = {"name": "x", "trainer": "x", "metric": "x", "mode": "max"}
ASHA = {"kind": "asha", "num_trials": 40, "min_steps": 4, "max_steps": 32, "eta": 2}


def spec(space: Any, **fields: Any) -> StudySpec:
    return StudySpec(**FIELDS, **{"space": space, "tuner": ASHA, **fields})


def decaying(init: Any) -> dict[str, Any]:
    return {"family": "exponential", "init": init, "gamma": uniform(0.9, 1)}


def test_a_drawn_peak_shares_nothing() -> None:
    [said] = advice(spec({"lr": decaying(loguniform(1e-4, 1e-1)), "bs": choice([32, 64])}))
    assert said == (
        "lr.init is drawn, so no two trials begin alike and nothing is shared: list 4 values and draw what comes "
        "later, such as a decay; 40 trials then have 4 beginnings to train, not 40"
    )


def test_several_are_drawn() -> None:
    [said] = advice(spec({"lr": decaying(uniform(0.1, 1)), "momentum": uniform(0.8, 0.99)}))
    assert said.startswith("lr.init and momentum are drawn, so no two trials begin alike")
    assert "list 4 values each" in said and "have 16 beginnings" in said


@pytest.mark.parametrize(
    "quiet",
    [
        spec({"lr": decaying(choice([0.1, 0.2])), "bs": choice([32, 64])}),
        spec({"lr": [Exponential(0.1, 0.9), 0.2]}, tuner={"kind": "grid", "max_steps": 4}),
        spec({"lr": uniform(0, 1)}, merge=False),
        spec(None, tuner={"kind": "external"}),
        spec({"lr": uniform(0, 1)}, tuner={"kind": "random", "num_trials": 2, "max_steps": 4}),
    ],
    ids=["listed", "grid", "alone", "external", "two"],
)
def test_nothing_to_say(quiet: StudySpec) -> None:
    assert advice(quiet) == []


def test_who_takes_the_advice_saves_what_it_says() -> None:
    before = preview(spec({"lr": decaying(uniform(0.1, 1))}), slots=1)
    after = preview(spec({"lr": decaying(choice([0.1, 0.4, 0.7, 1.0]))}), slots=1)
    assert before["advice"] and not after["advice"]
    assert before["requested"] == before["unique"]
    assert after["unique"] <= before["unique"] - (40 - 4)  # each of 40 trained its first step; 4 beginnings do now


def test_what_is_saved_is_said_in_steps() -> None:
    """The steps of the study as it is, and of one that lists beginnings and draws the rest half-way."""
    before = preview(spec({"lr": decaying(uniform(0.1, 1))}), slots=1)
    [said] = before["advice"]
    found = re.search(r"if they part half-way, (\d+) steps instead of (\d+), (\d+)% less$", said)
    assert found is not None
    fewer, now, share = map(int, found.groups())
    assert now == before["unique"] and fewer < 0.6 * now and share == round(100 * (1 - fewer / now))
    parts = [{"steps": 16, "sequence": choice([0.1, 0.4, 0.7, 1.0])}, {"sequence": decaying(uniform(0.1, 1))}]
    taken = preview(spec({"lr": {"family": "piecewise", "parts": parts}}), slots=1)
    assert taken["advice"] == [] and abs(taken["unique"] - fewer) <= 16


def test_steps_that_cannot_be_counted_are_not_said() -> None:
    drawn = spec({"lr": decaying(uniform(0.1, 1))})
    assert advice(drawn, lambda study: None) == advice(drawn)
    assert advice(spec({"lr": uniform(0, 1)}, where="lr < 0.5"), lambda study: 10) == advice(
        spec({"lr": uniform(0, 1)}, where="lr < 0.5")
    )  # nothing is saved


CURVES: dict[str, Any] = {"num_trials": 8, "max_steps": 20}


@pytest.mark.parametrize(
    ("tuner", "fields", "points"),
    [
        ({"kind": "early_term"}, {}, 0),
        ({"kind": "early_term", "boundary": 5}, {}, 3),
        ({"kind": "pop", "boundary": 10}, {"eval_every": 5}, 2),
        ({"kind": "median", "interval": 5}, {"stop_hopeless": {"boundary": 10}}, 1),
    ],
)
def test_a_rule_that_could_end_nobody(tuner: dict[str, Any], fields: dict[str, Any], points: int) -> None:
    """What it lacks is said, and with what is proposed instead nothing is left to say."""
    study = spec({"lr": choice([0.1, 0.2])}, tuner=CURVES | tuner, **fields)
    [said] = advice(study)
    assert f"from 4 evaluations on, and a trial has {points} when it is last asked about, so none would end" in said
    assert said.endswith("give eval_every: 1 and boundary: 2")
    rule = {"tuner": CURVES | tuner | {"boundary": 2}}
    if "stop_hopeless" in fields:
        rule = {"tuner": CURVES | tuner, "stop_hopeless": {"boundary": 2}}
    assert advice(spec({"lr": choice([0.1, 0.2])}, eval_every=1, **rule)) == []


def test_rules_with_enough_evaluations() -> None:
    for tuner in ({"kind": "pop"}, {"kind": "early_term", "boundary": 4}):
        assert advice(spec({"lr": choice([0.1, 0.2])}, tuner=CURVES | tuner)) == []
