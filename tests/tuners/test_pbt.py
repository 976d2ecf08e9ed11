"""Population based training: selection as in the ASHA paper, A.3, and how the copies share trained steps."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain.commands import Extend, Start, Stop
from app.domain.search_plan import Study
from app.search.replay import replay
from app.search.tuners.base import NewTrial
from app.search.tuners.explore import perturb, splice
from stagetree.sequences import parse
from stagetree.space import read_entry
from stagetree.spec.tuners import PbtTuner
from tests.strategies import sequences
from tests.tuners.worlds import SPACE, STUDY, Table, losses, numbered_events, run_simulator, spec, stragglers

TEN = {"kind": "pbt", "population_size": 10, "ready_steps": 5, "max_steps": 15}


def generation(table: Table, losses: dict[int, float | None]) -> list[Any]:
    """The wishes after these results; None is a failure."""
    for trial, loss in losses.items():
        assert table.tuner.suggest() is None, "the generation is not complete"
        table.fail(trial) if loss is None else table.result(trial, loss)
    return table.ask_all()


def kinds(actions: list[Any]) -> dict[str, list[int]]:
    """The continued and the stopped trials, and the parents of the new ones."""
    found: dict[str, list[int]] = {"on": [], "stop": [], "copy of": []}
    for action in actions:
        match action:
            case Extend():
                found["on"].append(action.trial)
            case Stop():
                found["stop"].append(action.trial)
            case Start():
                found["copy of"].append(action.reason["exploits"])
    return found


def test_the_settings_of_a_3() -> None:
    found = PbtTuner(ready_steps=1000, max_steps=30000)
    assert (found.quantile, found.resample_probability, found.factors) == (0.2, 0.25, [1.2, 0.8])
    assert 20 <= found.population_size <= 40


def test_the_bottom_fifth_gives_way_to_copies_of_the_top_fifth() -> None:
    table = Table(TEN, seed=1)
    table.ask_all()
    found = kinds(generation(table, {trial: (7 * trial % 10) / 10 for trial in range(10)}))
    # losses 0, .7, .4, .1, .8, .5, .2, .9, .6, .3: best are 0 and 3, worst 7 and 4
    assert found["on"] == [0, 3, 6, 9, 2, 5, 8, 1]
    assert found["stop"] == [4, 7]
    assert set(found["copy of"]) <= {0, 3}
    assert table.started == 12
    again = kinds(generation(table, dict.fromkeys([*found["on"], 10, 11], 0.5)))
    assert again["stop"] == [10, 11]  # equal: the trials started last are worst
    last = generation(table, dict.fromkeys([*again["on"], 12, 13], 0.5))
    assert last == []


def test_failed_members_are_replaced_and_cancelled_ones_are_not() -> None:
    table = Table(TEN)
    table.ask_all()
    table.cancel(9)
    found = kinds(generation(table, {trial: None if trial < 4 else trial / 10 for trial in range(9)}))
    assert found == {"on": [4, 5, 6, 7, 8], "stop": [], "copy of": [4, 4, 4, 4]}
    table.cancel(4)
    rest = generation(table, dict.fromkeys([5, 6, 7, 8, 10, 11, 12, 13], None))
    assert rest == []


@given(st.permutations(range(10)))
def test_the_order_of_results_does_not_matter(order: list[int]) -> None:
    def decisions(trials: Any) -> list[Any]:
        table = Table(TEN)
        table.ask_all()
        return generation(table, {trial: (3 * trial % 10) / 10 for trial in trials})

    assert decisions(order) == decisions(range(10))


def test_architectures_are_never_changed_and_never_copied_from_one_to_another() -> None:
    space = {"lr": {"loguniform": [1e-4, 1]}, "layers": [2, 3, 4], "width": {"randint": [8, 64]}}
    tuner = TEN | {"population_size": 20, "max_steps": 40, "fixed": ["layers"]}
    study = simulate(tuner, space=space)
    copies = [trial for trial in study.trials if "exploits" in trial.reason]
    assert len(copies) >= 5
    for trial in copies:
        replaced, copied = (study.trials[trial.reason[role]] for role in ("replaces", "exploits"))
        assert trial.hp["layers"] == copied.hp["layers"] == replaced.hp["layers"]
        assert "layers" not in trial.reason["explored"]


def simulate(tuner: dict[str, Any], **fields: Any) -> Study:
    study = spec(tuner, **fields)
    world = run_simulator(study, slots=4, measure=losses(2), seconds=stragglers(2))
    assert world.plan.studies[STUDY].state == "completed"
    return world.plan.studies[STUDY]


def test_a_copy_shares_all_that_was_trained_and_says_what_it_changed() -> None:
    study = spec(TEN | {"max_steps": 25})
    world = run_simulator(study, slots=4, measure=losses(3), seconds=stragglers(3))
    found = world.plan.studies[STUDY]
    assert found.executed == found.unique < found.requested
    copies = [trial for trial in found.trials if "exploits" in trial.reason]
    assert len(copies) == 2 * 4
    for trial in copies:
        step, model = 5 * trial.reason["rung"], found.trials[trial.reason["exploits"]]
        assert world.plan.node_of(trial, step) is world.plan.node_of(model, step)
        for name, change in trial.reason["explored"].items():
            new, old = parse(trial.hp[name]), parse(model.hp[name])
            assert new.take(step) == old.take(step)
            assert new.at(step) == parse(change["to"]).at(step) != old.at(step) == parse(change["from"]).at(step)
            assert change["by"] in ("perturb", "resample")
        assert {name for name in trial.hp if trial.hp[name] != model.hp[name]} == set(trial.reason["explored"])


def test_where_holds_for_what_is_explored() -> None:
    study = simulate(TEN | {"max_steps": 40}, space=SPACE, where="lr * bs < 16")
    for trial in study.trials:
        values = {name: parse(sequence).at(39) for name, sequence in trial.hp.items()}
        assert values["lr"] * values["bs"] < 16  # type: ignore[operator]


def test_it_begins_where_half_of_the_population_is_better_than_chance() -> None:
    table = Table(TEN | {"chance": 0.5}, seed=1)
    table.ask_all()
    drawn_again = generation(table, {trial: 0.5 if trial < 6 else 0.1 for trial in range(10)})
    assert kinds(drawn_again)["stop"] == [0, 1, 2, 3, 4, 5]
    assert sum(isinstance(action, NewTrial) for action in drawn_again) == 6
    begun = kinds(generation(table, {trial: None if trial == 10 else 0.1 for trial in range(10, 16)}))
    assert len(begun["on"]) == 8 and len(begun["copy of"]) == 2


def test_a_population_that_chance_does_not_like_begins_all_the_same() -> None:
    table = Table({**TEN, "population_size": 4, "chance": 0.0}, seed=1)
    table.ask_all()
    for _ in range(30):
        waiting = [trial for trial in range(table.started) if trial not in table.gone]
        if kinds(generation(table, dict.fromkeys(waiting, 0.5)))["on"]:
            break
    assert table.started == 4 * 10 + 1, "ten draws for each place, and the first copy"


@pytest.mark.parametrize("populations", [1, 3])
def test_another_population_begins_where_slots_would_be_idle(populations: int) -> None:
    tuner = {"kind": "pbt", "population_size": 4, "ready_steps": 3, "max_steps": 9, "populations": populations}
    world = run_simulator(spec(tuner), slots=6, measure=losses(5), seconds=stragglers(5))
    study = world.plan.studies[STUDY]
    drawn = [trial for trial in study.trials if "exploits" not in trial.reason]
    assert len(drawn) == 4 * populations
    for trial in study.trials:
        for role in {"exploits", "replaces"} & trial.reason.keys():
            other = study.trials[trial.reason[role]]
            assert other.reason.get("population", 0) == trial.reason.get("population", 0)
    last = [
        max(trial.steps for trial in study.trials if trial.reason.get("population", 0) == n) for n in range(populations)
    ]
    assert last == [9] * populations
    assert replay(numbered_events(world.events), STUDY).identical


def test_a_population_can_follow_when_the_study_is_over() -> None:
    world = run_simulator(spec(TEN), slots=4)
    world.give(c.ReopenStudy(study=STUDY, trials=2, at=0.0))
    world.run()
    study = world.plan.studies[STUDY]
    assert sum("exploits" not in trial.reason for trial in study.trials) == 20
    assert study.state == "completed" and replay(numbered_events(world.events), STUDY).identical


# ------------------------------------------------------------------------------------------------------------- explore


@pytest.mark.parametrize(
    ("event", "value", "possible"),
    [
        ({"uniform": [0, 1]}, 0.5, {0.6, 0.4}),
        ({"loguniform": [0.1, 0.55]}, 0.5, {0.55, 0.4}),  # kept inside
        ({"randint": [1, 100]}, 10, {12, 8}),
        ({"randint": [1, 4]}, 1, {2}),  # by one at least, away from the bound
        ({"randint": [1, 4]}, 2, {1, 3}),
        ({"randint": [1, 4]}, 4, {3}),
        ({"randint": [0, 4]}, 0, {1}),
        ({"randint": [3, 3]}, 3, {3}),
        ([32, 64, 128], 64, {32, 128}),  # a choice beside it
        ([32, 64, 128], 128, {64}),
        ([0.1], 0.1, {0.1}),
        ([{"uniform": [0, 1]}, "off"], 0.5, {"off"}),
        (0.1, 0.1, {0.1}),
        (["sgd", "adam"], "adam", {"sgd"}),
    ],
)
def test_a_value_nearby(event: Any, value: Any, possible: set[Any]) -> None:
    given_ = parse(value).to_json()
    found = {parse(perturb(read_entry(event), given_, Random(seed), [1.2, 0.8])).at(0) for seed in range(40)}
    assert found == possible


def test_an_option_is_the_one_that_the_value_can_come_from() -> None:
    """3.7 was taken for a whole number between 1 and 10, and its neighbour for its origin."""
    options = read_entry({"choice": [{"randint": [1, 10]}, {"uniform": [0.5, 9.5]}]})
    found = [perturb(options, 3.7, Random(seed), [1.2]) for seed in range(20)]
    assert all(isinstance(value, int) for value in found)


def test_what_is_drawn_inside_a_sequence_is_perturbed_there() -> None:
    event = {"family": "warmup", "steps": {"randint": [5, 20]}, "then": {"uniform": [0, 1]}, "start": 0}
    value = parse({"family": "warmup", "steps": 10, "then": 0.5}).to_json()
    found = perturb(read_entry(event), value, Random(0), [1.2])
    assert parse(found) == parse({"family": "warmup", "steps": 12, "then": 0.6})


@given(sequences(), sequences(), st.integers(1, 30), st.integers(1, 30))
def test_a_splice_is_one_until_the_step_and_the_other_after_it(one: Any, other: Any, step: int, more: int) -> None:
    first = splice(one.to_json(), step, other.to_json())
    assert parse(first).take(60) == [*one.take(step), *other.take(60, start=step)]
    second = splice(first, step + more, one.to_json())
    assert parse(second).take(80) == [*parse(first).take(step + more), *one.take(80, start=step + more)]
    assert len(second["parts"]) <= 3 + len(first["parts"])
