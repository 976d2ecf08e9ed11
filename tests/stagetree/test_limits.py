"""What would keep a service busy for ever is refused with a sentence, and quickly: it is counted, never made."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.terms import Refused, StudyId
from stagetree.limits import Limits, check_size, check_trial
from stagetree.sequences import Constant, SequenceError
from stagetree.space.where import WhereError, compile_where
from stagetree.spec import SpecError, StudySpec
from tests.plans import Story

BASE = {"name": "n", "trainer": "digits", "metric": "loss", "mode": "min"}
TRIANGLE = {"family": "cyclic", "init": 0.1, "max": 0.2, "up": 1, "down": 1}
TENTH = {"uniform": [0, 0.1]}
BILLION = 10**9


def study(tuner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**BASE, "space": {"lr": [0.1, 0.2]}, "tuner": tuner, **more}


def random_study(**more: Any) -> dict[str, Any]:
    return study({"kind": "random", "num_trials": 2, "max_steps": 10}, **more)


def skipping(sequence: Any) -> dict[str, Any]:
    return {"family": "piecewise", "parts": [{"skip": BILLION, "sequence": sequence}]}


def alias_bomb() -> list[Any]:
    """A YAML file of 300 bytes: each list holds the one before ten times."""
    bomb: list[Any] = ["x"]
    for _ in range(12):
        bomb = [bomb] * 10
    return bomb


ATTACKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a triangle wave for a billion steps": (study({"kind": "grid", "max_steps": BILLION}, space={"lr": TRIANGLE}),
        "space.lr",
        "must change at most 10,000 times in a trial, all hyper-parameters together, and within 1,000,000,000 steps"),
    "the second of two options": (study({"kind": "grid", "max_steps": BILLION}, space={"lr": [0.1, TRIANGLE]}),
        "space.lr", "must change at most 10,000 times"),
    "a trial with ten million nodes": (
        {**BASE, "tuner": {"kind": "trials", "trials": [{"hp": {"lr": TRIANGLE}, "steps": 10_000_000}]}},
        "tuner.trials[0].hp.lr", "must change at most 10,000 times"),
    "a skip over a billion half periods": (
        random_study(space={"lr": skipping({"family": "cosine", "init": 1, "min": 0, "period": 2.5})}),
        "space.lr.parts[0].skip", "must pass over at most 20,000 periods"),
    "a billion trials": (study({"kind": "random", "num_trials": BILLION, "max_steps": 1}), "tuner.num_trials",
        "must make at most 100,000 trials, got 1,000,000,000"),
    "a rung at eta to the billionth": (
        study({"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "early_stopping_rate": BILLION}),
        "tuner.early_stopping_rate", "must be a whole number from 0 to 64"),
    "a lowest rung out of reach": (study({"kind": "asha", "num_trials": 9, "min_steps": 1, "early_stopping_rate": 60}),
        "tuner.early_stopping_rate", "must leave the lowest rung at 1,000,000,000 steps at most, got 60"),
    "Hyperband up to a number of 300 digits": (study({"kind": "hyperband", "max_steps": 10**300}), "tuner.max_steps",
        "must be at most 1,000,000,000 steps"),
    "Hyperband's widest bracket": (study({"kind": "hyperband", "max_steps": BILLION}), "tuner.max_steps",
        "must make at most 100,000 trials"),
    "10^12 steps": (study({"kind": "grid", "max_steps": 10**12}, eval_every=1), "tuner.max_steps",
        "must be at most 1,000,000,000 steps, got 1,000,000,000,000"),
    "a billion evaluations": (study({"kind": "grid", "max_steps": BILLION}, eval_every=1), "tuner.max_steps",
        "must have at most 100,000 evaluations on the way"),
    "a billion decisions": (study({"kind": "median", "num_trials": 2, "max_steps": BILLION, "interval": 1}),
        "tuner.interval", "must have at most 100,000 evaluations on the way"),
    "a population of a billion": (study({"kind": "pbt", "population_size": BILLION, "ready_steps": 1, "max_steps": 1}),
        "tuner.population_size", "must make at most 100,000 trials"),
    "generations without end": (study({"kind": "pbt", "population_size": 1000, "ready_steps": 1, "max_steps": 10_000}),
        "tuner.population_size", "must make at most 100,000 trials"),
    "nested choices of 10^12 in a grid": (
        study(
            {"kind": "grid", "max_steps": 1},
            space={
                "lr": {
                    "family": "values",
                    "milestones": list(range(1, 12)),
                    "values": [{"choice": list(range(10))}] * 12,
                }
            },
        ),
        "space.lr",
        "must have at most 1,000,000 ways to be chosen in a grid, got 1.0e+12",
    ),
    "a grid of 10^12": (study({"kind": "grid", "max_steps": 1}, space={f"h{n}": list(range(10)) for n in range(12)}),
        "space", "must make at most 100,000 trials, got 1,000,000,000,000"),
    "a grid as a sampler": (
        study(
            {"kind": "asha", "num_trials": 2, "min_steps": 1, "sampler": "grid"},
            space={f"h{n}": list(range(10)) for n in range(12)},
        ),
        "space",
        "must make at most 100,000 trials, got 1,000,000,000,000",
    ),
    "free values inside": (
        random_study(space={"lr": {"family": "values", "values": [TENTH] * 1001, "milestones": list(range(1, 1001))}}),
        "space", "must leave at most 1,000 values to choose, got 1,001"),
    "a where that is a number": (random_study(where="*".join(["9" * 900] * 2)), "where",
        "must be true or false, got 9999"),
    "a where that shows one": (random_study(where="lr + " + "9" * 900 + " in 3"), "where",
        "this cannot be computed for"),
    "arguments of nine megabytes": (random_study(trainer_args={"a": "x" * 9 * 2**20}), "",
        "must be at most 1,048,576 bytes of JSON"),
    "aliases of aliases": (random_study(trainer_args={"a": alias_bomb()}), "",
        "must be at most 1,048,576 bytes of JSON"),
    "a number that no float holds": (random_study(space={"weight_decay": 10**400}), "space.weight_decay",
        "must be a number from -1.8e308 to 1.8e308"),
    "a value that becomes infinite": (
        study({"kind": "grid", "max_steps": 500}, space={"lr": {"family": "exponential", "init": 1, "gamma": 10}}),
        "space.lr", "must stay a finite number, and is inf at step 499"),
    "names that no terminal should be sent": (random_study(space={"lr\x1b[2J": 0.1}), "space",
        "must name its hyper-parameters without control characters"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_oversized_requests_are_refused_at_once(attack: str) -> None:
    values, field, sentence = ATTACKS[attack]
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict(values)
    [problem] = caught.value.problems
    assert (problem.field, sentence in problem.problem) == (field, True), problem
    assert "\n" not in problem.problem and len(problem.problem) < 400


def test_a_where_may_meet_numbers_that_cannot_be_written() -> None:
    """Python writes none of more than 4,300 digits: it raises, which the API answered with 500."""
    wanted = compile_where("a * a", ["a"])
    with pytest.raises(WhereError, match="must be true or false, got a number of too many digits"):
        wanted({"a": Constant(10**4000)})


@pytest.mark.slow
def test_nested_choices_are_fine_where_they_are_drawn_from() -> None:
    entry = {"family": "values", "values": [{"choice": list(range(10))}] * 12, "milestones": list(range(1, 12))}
    spec = StudySpec.from_dict(random_study(space={"lr": entry}))
    assert len(list(spec.configurations())) == 2


def test_an_accepted_study_is_not_counted_again() -> None:
    """An operator who lowers a limit, or a later version that does, ends no study that runs."""
    values = study({"kind": "random", "num_trials": 200, "max_steps": 1})
    with pytest.raises(SpecError):
        StudySpec.from_dict(values, limits=Limits(trials=100))
    assert StudySpec.from_dict(values, limits=None).tuner.num_trials == 200


def test_ordinary_studies_are_far_below() -> None:
    cosine = {"family": "cosine", "init": 0.1, "min": 0, "period": 50}
    StudySpec.from_dict(study({"kind": "grid", "max_steps": 100_000}, space={"lr": cosine}, eval_every=10))
    StudySpec.from_dict(study({"kind": "hyperband", "max_steps": 81}))
    StudySpec.from_dict(study({"kind": "asha", "num_trials": 10_000, "min_steps": 1, "max_steps": 256}))


def test_a_skip_is_computed_without_counting() -> None:
    """Both can be far along: where a period is a whole number of steps, its start is computed."""
    for sequence in (TRIANGLE, {"family": "cosine", "init": 0.2, "min": 0, "period": 4}):
        assert check_trial({"lr": skipping(sequence)}, 20) > 5


@pytest.mark.parametrize("value", [[[[1]]], {"a": {"b": {"c": 1}}}])
def test_depth_is_that_of_lists_and_objects(value: Any) -> None:
    check_size(value, Limits(depth=3))
    with pytest.raises(SequenceError, match="deeper than 2 levels"):
        check_size(value, Limits(depth=2))


# ---------------------------------------------------------------------------------------------------------- in decide

S = StudyId("s")
SMALL = Limits(trials=3, segments=4, steps=100, evaluations=10, nodes=6, parameters=2, bytes=200, depth=3)


@pytest.fixture
def story() -> Story:
    story = Story()
    story.submit(({"lr": 0.1}, 10), name="s")
    return story


@pytest.mark.parametrize(
    ("hp", "steps", "sentence"),
    [
        ({"lr": TRIANGLE}, 20, "hp.lr: must change at most 4 times"),
        ({"lr": 0.1}, 101, "steps: must be at most 100 steps"),
        ({"a": 1, "b": 1, "c": 1}, 5, "hp: must name at most 2 hyper-parameters"),
        ({"a\x1e": 1}, 5, "hp: must name its hyper-parameters without control characters"),
        ({"a": "x" * 300}, 5, "hp: must be at most 200 bytes"),
        ({"a": 10**400}, 5, "hp.a: must be a number from"),
        ({"a": {"family": "no"}}, 5, "hp.a.family: must be one of"),
        ({"a": {"family": "exponential", "init": 1e300, "gamma": 1e10}}, 5, "hp.a: must stay a finite number"),
        ({}, 5, "hp: must name at least one"),
        ({"a": 1}, 0, "steps: must be at least 1"),
    ],
)
@pytest.mark.parametrize("way", ["tuner", "user", "batch"])
def test_no_way_leads_past_the_limits(story: Story, way: str, hp: dict[str, Any], steps: int, sentence: str) -> None:
    start = c.Start(hp=hp, steps=steps)
    commands = {
        "tuner": c.ApplyTunerActions(study=S, actions=(start,)),
        "user": c.AddTrial(study=S, hp=hp, steps=steps),
        "batch": c.AskForTrials(study=S, actions=(start,)),
    }
    with pytest.raises(Refused) as caught:
        decide(story.plan, commands[way], SMALL)
    assert str(caught.value).startswith(sentence)


def test_trials_and_nodes_are_counted_over_a_whole_batch(story: Story) -> None:
    one = tuple(c.Start(hp={"lr": n}, steps=5) for n in range(3))
    with pytest.raises(Refused, match="a study may have 3 trials"):
        decide(story.plan, c.AskForTrials(study=S, actions=one), SMALL)
    moving = tuple(c.Start(hp={"lr": {**TRIANGLE, "init": n, "up": 2, "down": 2}}, steps=4) for n in (5, 6))
    with pytest.raises(Refused, match="a search plan may have 6 nodes"):
        decide(story.plan, c.AskForTrials(study=S, actions=moving), SMALL)


def test_a_longer_trial_is_counted_too(story: Story) -> None:
    story.give(c.AddTrial(study=S, hp={"lr": {**TRIANGLE, "up": 20, "down": 20}}, steps=10))
    for steps, sentence in ((101, "must be at most 100 steps"), (100, "must change at most 4 times")):
        with pytest.raises(Refused, match=sentence):
            decide(story.plan, c.AskForTrials(study=S, actions=(c.Extend(trial=1, steps=steps),)), SMALL)


def test_a_study_cannot_be_submitted_or_reopened_past_the_limits(story: Story) -> None:
    spec = {"name": "x", "trainer_args": {"a": "x" * 300}}
    with pytest.raises(Refused, match="the study: must be at most 200 bytes"):
        decide(story.plan, c.SubmitStudy(plan=story.plan.opened, study=StudyId("t"), spec=spec, at=0.0), SMALL)
