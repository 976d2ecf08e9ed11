"""Enqueued trials run next, are completed by the sampler, are learnt from, and replay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.sampler_inputs import SuggestionWithdrawn
from app.domain.terms import StateConflict, Unknown
from app.events.codec import decode, encode
from app.search.replay import replay
from app.search.samplers import SAMPLERS, queued_sampler_of
from app.simulation.simulator import Simulator
from stagetree.sequences import parse
from stagetree.space import Space, SpaceError
from stagetree.space.distinct import configuration_key
from stagetree.space.suggestions import sample_suggestion, suggested_values
from stagetree.spec import SpecError
from tests.tuners.worlds import STUDY, numbered_events, run_simulator, simulator, spec

LISTED: dict[str, Any] = {"lr": [0.1, 0.2, 0.3], "bs": [32, 64], "wd": [0.0, 0.1]}
DECAYS = {"family": "exponential", "init": {"loguniform": [0.01, 1]}, "gamma": {"uniform": [0.9, 1]}}
SCHEDULES: dict[str, Any] = {
    "lr": [0.1, DECAYS],
    "wsd": {"family": "wsd", "peak": 0.1, "warmup": 2, "decay": {"ratio": {"choice": [0.25, 0.5]}}},
    "bs": [32, 64],
}


def asha(sampler: str = "random", trials: int = 12, **fields: Any) -> dict[str, Any]:
    return {"kind": "asha", "num_trials": trials, "min_steps": 2, "max_steps": 8, "sampler": sampler, **fields}


def suggest(world: Simulator, *configurations: dict[str, Any], by: str = "") -> None:
    world.give(c.SuggestConfigurations(study=STUDY, configurations=configurations, at=world.now, by=by))


def value(trial: Any, name: str) -> Any:
    return parse(trial.hp[name]).at(0)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [each for each in SAMPLERS if each not in ("gp", "halton")])
def test_enqueued_trials_take_the_next_places_and_replay(sampler: str) -> None:
    """At submission and while the study runs, complete and partial; they count as trials, and each names its author."""
    space = LISTED if sampler == "grid" else None
    world = simulator(spec(asha(sampler), space=space, suggestions=[{"lr": 0.1}, {"lr": 0.2, "bs": 32, "wd": 0.1}]))
    while (begun := len(world.plan.studies[STUDY].trials)) < 5:
        world.advance()
    suggest(world, {"lr": 0.3}, {"bs": 64}, by="ann")
    world.run()
    study = world.plan.studies[STUDY]
    assert len(study.trials) == 12
    assert [(t.number, t.reason["suggestion"]) for t in study.trials if "suggestion" in t.reason] == [
        (0, 0),
        (1, 1),
        (begun, 2),
        (begun + 1, 3),
    ]
    assert [value(study.trials[n], "lr") for n in (0, 1, begun)] == [0.1, 0.2, 0.3]
    assert (value(study.trials[1], "bs"), value(study.trials[begun + 1], "bs")) == (32, 64)
    assert study.trials[begun].reason["suggested_by"] == "ann" and "suggested_by" not in study.trials[0].reason
    found = replay(numbered_events(world.events), STUDY)
    assert found.identical, found.difference


PART = st.sampled_from([{name: value} for name, values in LISTED.items() for value in values])
WHOLE = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in LISTED.items()})
TOLD = st.lists(PART | WHOLE, max_size=3, unique_by=str)


@pytest.mark.slow
@given(told=TOLD, later=TOLD, gone=st.sets(st.integers(0, 5)), sampler=st.sampled_from(["random", "grid"]))
@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
def test_no_enqueued_trial_is_drawn_again(told: list[Any], later: list[Any], gone: set[int], sampler: str) -> None:
    """A listed space is covered once, with trials enqueued and withdrawn at any time, and the log replays."""
    world = simulator(spec({**asha(sampler), "distinct": True}, space=LISTED, suggestions=told), slots=1)
    world.advance()
    world.advance()
    had = [hp_key(trial.hp) for trial in world.plan.studies[STUDY].trials]
    suggest(world, *(each for each in later if len(each) == 1 or hp_key(each) not in had))
    before = world.plan.studies[STUDY]
    for number in sorted(gone & set(before.open_suggestions()) - before.trials_by_suggestion().keys()):
        world.give(c.WithdrawSuggestion(study=STUDY, suggestion=number, at=world.now))
    world.run()
    study = world.plan.studies[STUDY]
    assert len(study.trials) == 12 and tuple(study.trials_by_suggestion()) == study.open_suggestions()
    repeated = 12 - len({hp_key(trial.hp) for trial in study.trials})
    whole = sum(len(each.hp) == 3 for each in study.suggestions)
    assert repeated <= whole, "a partial one may have been completed to a later complete one"
    found = replay(numbered_events(world.events), STUDY)
    assert found.identical, found.difference


def test_withdrawn_trials_do_not_run() -> None:
    world = simulator(spec(asha(trials=6), suggestions=[{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]), slots=1)
    world.advance()
    with pytest.raises(StateConflict, match="suggestion 0 is trial 0 already: cancel that trial instead"):
        world.give(c.WithdrawSuggestion(study=STUDY, suggestion=0, at=world.now))
    with pytest.raises(Unknown, match="study study has no suggestion 3: they are numbered from 0 to 2"):
        world.give(c.WithdrawSuggestion(study=STUDY, suggestion=3, at=world.now))
    for _ in range(2):  # a second withdrawal has no effect
        world.give(c.WithdrawSuggestion(study=STUDY, suggestion=1, at=world.now, by="ann"))
    world.run()
    study = world.plan.studies[STUDY]
    assert study.trials_by_suggestion() == {0: 0, 2: 1} and len(study.trials) == 6
    assert [value(study.trials[number], "lr") for number in (0, 1)] == [0.1, 0.3]
    assert sum(isinstance(each, SuggestionWithdrawn) for each in world.events) == 1
    assert replay(numbered_events(world.events), STUDY).identical


def hp_key(hp: dict[str, Any]) -> Any:
    return configuration_key({name: parse(each) for name, each in hp.items()}, 8)


def test_an_eager_tuner_takes_the_enqueued_trials_of_its_file() -> None:
    tuner = {"kind": "hyperband", "min_steps": 1, "max_steps": 9, "loops": 2}
    world = simulator(spec(tuner, suggestions=[{"lr": 0.5}]))
    suggest(world, {"lr": 0.25})
    world.run()
    study = world.plan.studies[STUDY]
    assert [value(study.trials[n], "lr") for n in (0, 1)] == [0.5, 0.25]
    assert replay(numbered_events(world.events), STUDY).identical


def test_a_study_with_known_trials_replays() -> None:
    """Once the recorded reason named `first`, and the replayed one did not."""
    world = run_simulator(spec(asha(first=[{"lr": 0.1, "bs": 32, "wd": 0.05}]), suggestions=[{"lr": 0.2}]))
    trials = world.plan.studies[STUDY].trials
    assert [value(trial, "lr") for trial in trials[:2]] == [0.2, 0.1] and trials[1].reason["first"] == 0
    assert replay(numbered_events(world.events), STUDY).identical


TOLD_FIRST = [{"lr": lr} for lr in (0.85, 0.002, 0.9, 0.01, 0.95, 0.03, 0.88, 0.1)]


def near(node: Any, step: int) -> e.Metrics:
    return {"loss": abs(node.segment.forms["lr"].at(0) - 0.9)}


@pytest.mark.slow
def test_a_learning_sampler_moves_to_good_enqueued_trials() -> None:
    """In a region that random sampling seldom reaches. The sampler also completes partial trials."""
    world = run_simulator(spec({**asha("trunks", 14), "min_steps": 8}, suggestions=TOLD_FIRST), slots=1, measure=near)
    trials = world.plan.studies[STUDY].trials
    assert sum(value(trial, "lr") > 0.5 for trial in trials[8:]) >= 4, "one of ten at random"
    assert "price" in trials[7].reason


def test_optuna_is_told_of_enqueued_trials() -> None:
    study = spec({**asha("tpe", 12), "min_steps": 8}, suggestions=TOLD_FIRST)
    world = run_simulator(study, slots=1, measure=near)
    sampler = queued_sampler_of(study)
    assert sampler is not None
    for event in world.plan.studies[STUDY].history:
        sampler.observe(event)
    sampler.propose(12)
    mirror = sampler.then.mirror  # type: ignore[attr-defined]
    values = [trial.value for trial in mirror.study.trials if trial.state.name == "COMPLETE"]
    assert values[:8] == [abs(told["lr"] - 0.9) for told in TOLD_FIRST]


def test_a_changed_log_fails_to_replay() -> None:
    world = run_simulator(spec(asha(), suggestions=[{"lr": 0.1}]))
    forged = [
        e.ConfigurationSuggested(study=STUDY, hp={"lr": 0.2}, at=0.0) if isinstance(x, e.ConfigurationSuggested) else x
        for x in world.events
    ]
    assert not replay(numbered_events(forged), STUDY).identical
    event = next(x for x in world.events if isinstance(x, e.ConfigurationSuggested))
    assert decode(*encode(event)) == event


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"lr": 0.1}, {"lr": 0}),
        (
            {"lr": {"family": "exponential", "init": 0.5, "gamma": 0.95}},
            {"lr": 1, "lr[1].init": 0.5, "lr[1].gamma": 0.95},
        ),
        ({"lr[1].gamma": 0.95, "bs": 64}, {"lr": 1, "lr[1].gamma": 0.95, "bs": 1}),
        ({"wsd.decay.ratio": 0.5}, {"wsd.decay.ratio": 1}),
        ({"wsd": {"family": "wsd", "peak": 0.1, "warmup": 2, "decay": {"ratio": 0.25}}}, {"wsd.decay.ratio": 0}),
    ],
)
def test_values_of_an_enqueued_trial_are_completed_to_a_configuration(
    given: dict[str, Any], values: dict[str, Any]
) -> None:
    space = Space(SCHEDULES, steps=40)
    assert suggested_values(space, given) == values
    sample, configuration = next(sample_suggestion(space, "key", values))
    assert values.items() <= sample.items() and space.build(sample) == configuration


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"lr": 0.3},
            "lr: must be a sequence that can be drawn (or say lr[1].init, lr[1].gamma), as in the space, got 0.3",
        ),
        ({"lr[1].gamma": 2}, "lr[1].gamma: must be a number from 0.9 to 1, as in the space, got 2"),
        ({"bs": 33}, "bs: must be one of 32, 64, as in the space, got 33"),
        ({"sb": 32}, "sb: must be one of lr, wsd, bs, lr[1].init, lr[1].gamma, wsd.decay.ratio"),
        (
            {"lr": 0.1, "lr[1].gamma": 0.95},
            "lr[1].gamma: must go with the rest of the suggestion, which chooses another",
        ),
        ({}, "must map at least one hyper-parameter to its value, got {}"),
    ],
)
def test_values_outside_the_space_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpaceError) as refused:
        suggested_values(Space(SCHEDULES, steps=40), given)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("tuner", "suggestions", "problem"),
    [
        (
            {"kind": "grid", "max_steps": 8},
            [{"lr": 0.1}],
            "suggestions: must be left out: the study file lists the trials of grid: add",
        ),
        (
            {"kind": "random", "num_trials": 3, "max_steps": 8},
            [{"lr": 0.1}],
            "suggestions: must be left out: random names",
        ),
        (
            {"kind": "pbt", "population_size": 4, "max_steps": 8, "ready_steps": 2},
            [{"lr": 0.1}],
            "suggestions: must be left out: the members",
        ),
        (asha(trials=1), [{"lr": 0.1}, {"lr": 0.2}], "suggestions: must be at most the 1 trials of the study, got 2"),
        (asha(), [{"lr": 0.1}, {"lr": 7}], "suggestions[1].lr: must be one of 0.1, 0.2, 0.3, as in the space, got 7"),
        (asha(), [{"bs": 64}], "suggestions[0]: must be a part of a configuration of the space"),
        (asha(), [{}], "suggestions[0]: must name at least one hyper-parameter"),
    ],
)
def test_a_study_file_with_invalid_suggestions_is_refused(
    tuner: dict[str, Any], suggestions: list[Any], problem: str
) -> None:
    with pytest.raises(SpecError) as refused:
        spec(tuner, space=LISTED, where="bs == 32" if tuner["kind"] != "pbt" else None, suggestions=suggestions)
    assert str(refused.value).startswith(problem)
