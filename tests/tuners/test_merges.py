"""Means of states as values at rungs: the weights, the tuner's decisions by hand, and whole studies."""

from __future__ import annotations

from itertools import pairwise
from math import cos, pi, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import checkpoint_needs, results
from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import cost
from app.domain.commands import AveragedState, Extend, Start
from app.domain.leaderboard import build_leaderboard, state_text
from app.domain.search_plan import Node, Study
from app.domain.terms import StudyId, VerificationKind
from app.search.replay import replay
from app.search.tuners.base import NewTrial
from app.simulation.preview import preview
from stagetree.advice import advice
from stagetree.sequences.merging import merge_weights, merged_states, merged_steps, window_steps
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.tuners import AshaTuner
from stagetree.spec.tuners.rung_values import MergeValue
from tests.tuners.worlds import STUDY, Table, faults, numbered_events, run_simulator, simulator, spec

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 10, "max_steps": 90, "reduction_factor": 3}
MERGED = ASHA | {"rung_value": {"merge": 3}}
SHA = MERGED | {"kind": "sha", "sampler": "grid"}
FLAT = {"lr": [0.1, 0.2, 0.3], "bs": [8, 16, 32]}
SHAPES = {"linear": lambda u: 1 - u, "cosine": lambda u: (1 + cos(pi * u)) / 2, "sqrt": lambda u: 1 - sqrt(u)}

# ------------------------------------------------------------------------------------------------------------ weights


@given(at=st.integers(2, 10_000), data=st.data())
def test_the_states_are_evenly_spaced_and_end_at_the_rung(at: int, data: Any) -> None:
    states = data.draw(st.integers(2, min(at, 40)))
    window = window_steps(data.draw(st.integers(1, at - 1) | st.floats(0.001, 0.999)), at, states)
    steps = merged_steps(at, states, window)
    gaps = [after - before for before, after in pairwise(steps)]
    assert (len(steps), steps[0], steps[-1]) == (states, at - window, at)
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


@given(
    gaps=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    shape=st.sampled_from(sorted(SHAPES)),
    first=st.integers(1),
)
def test_weights_of_a_decay_give_each_step_the_mean_factor_of_the_decay_there(
    gaps: list[int], shape: str, first: int
) -> None:
    """The steps between two states count as much as the decay lets them count on average: its integral, by sums."""
    first = first % 1000
    steps = [first + sum(gaps[:number]) for number in range(len(gaps) + 1)]
    weights = merge_weights(steps, {"decay": shape})
    assert sum(weights) == pytest.approx(1.0) and min(weights) > 0
    length, parts = steps[-1] - steps[0], 400
    for number, (begin, end) in enumerate(pairwise(steps)):
        places = [(begin - first + (end - begin) * (part + 0.5) / parts) / length for part in range(parts)]
        mean = sum(map(SHAPES[shape], places)) / parts
        assert sum(weights[number + 1 :]) == pytest.approx(mean, abs=1e-3)


def test_weights_by_hand() -> None:
    assert merge_weights([4, 8, 12], "uniform") == [1.0, 1.0, 1.0]
    assert merge_weights([4, 8, 12], "linear") == [1.0, 2.0, 3.0]
    assert merge_weights([4, 8, 12], {"decay": "linear"}) == [0.25, 0.5, 0.25]
    value = {"merge": 3, "window": 0.2, "weights": "uniform"}
    assert merged_states(value, 10) == [(8, 1.0), (9, 1.0), (10, 1.0)]
    assert [step for step, _ in merged_states(value, 90)] == [72, 81, 90]


# ------------------------------------------------------------------------------------------------------------ by hand


def test_a_trial_is_ranked_by_the_mean_of_its_states_and_resumes_from_its_own() -> None:
    table = Table(MERGED)
    for _ in range(3):
        assert isinstance(table.ask(), NewTrial)
    for trial, loss in enumerate((0.1, 0.5, 0.6)):  # by these, trial 0 would be promoted
        table.result(trial, loss)
    for trunk in range(3):
        action = table.ask()
        assert isinstance(action, Start) and (action.reason, action.steps) == ({"merge_of": trunk, "at": 10}, 10)
        assert action.average_of == tuple(AveragedState(trunk, step, 1.0) for step in (10, 9, 8))
    for trial, loss in ((3, 0.09), (5, 0.05), (4, 0.2)):
        table.result(trial, loss)
    assert table.ask() == Extend(trial=2, steps=30, reason={"rung": 1, "rank": 1, "cut": 1, "of": 3, "loss": 0.05})


# ------------------------------------------------------------------------------------------------------ whole studies


def smoothed_loss(node: Node, step: int) -> dict[str, float | None]:
    """A mean, which has no steps of its own, has the loss of its configuration; a state has one that misleads."""
    lr = float(node.hp["lr"]["value"])
    return {"loss": (lr if node.parent is None and node.start == step else 1 - lr + 1 / step) - step / 10_000}


def ran(tuner: dict[str, Any] = SHA, **fields: Any) -> Any:
    world = run_simulator(spec(tuner, space=FLAT, **fields), measure=smoothed_loss, slots=2)
    return world, world.plan.studies[STUDY]


def test_the_best_mean_wins_though_its_states_are_the_worst_and_it_is_kept() -> None:
    world, study = ran()
    winner, result = results.best(world.plan, study) or pytest.fail("there is none")
    assert (winner.steps, result.step, winner.hp["lr"]["value"]) == (90, 90, 0.1)
    states = checkpoint_needs.states_of(world.plan, winner)
    assert checkpoint_needs.required_keys(world.plan) == {states[90].key}, "other means and their states may go"


@pytest.mark.parametrize("kind", ["sha", "asha"])
@pytest.mark.parametrize("repeats", [1, 3, {"seeds": 3, "from": "branch"}])
def test_no_step_is_trained_for_them_and_each_decision_is_derived_again(kind: str, repeats: Any) -> None:
    world, study = ran(SHA | {"kind": kind}, repeats=repeats)
    plain = run_simulator(spec(ASHA | {"kind": kind, "sampler": "grid"}, space=FLAT, repeats=repeats))
    assert study.state == "completed" and study.executed == study.unique
    rungs = [trial.steps for trial in study.trials if trial.merge_of is None]
    assert study.executed == sum(rungs) * (1 if repeats == 1 else 3)
    assert kind == "asha" or study.executed == plain.plan.studies[STUDY].executed
    found = cost(world.plan, study)
    assert (found.run, found.repeated, found.unfinished) == (study.executed, 0, 0)
    assert replay(numbered_events(world.events), STUDY).identical and not study.unmerged


def test_each_repeat_has_a_mean_of_its_own() -> None:
    world, study = ran(repeats=3)
    merge = next(trial for trial in study.trials if trial.merge_of is not None)
    trunk = study.trials[merge.merge_of]
    assert len({run.path[0] for run in merge.runs}) == 3
    for run, original in zip(merge.runs, trunk.single_runs(), strict=True):
        shares = world.plan.means[run.path[0]]
        assert {(share.node, share.step) for share in shares} == {
            (world.plan.node_of(original, step).id, step) for step in (8, 9, 10)
        }


def test_equal_trials_of_two_studies_share_their_means() -> None:
    world = simulator(spec(SHA, space=FLAT), measure=smoothed_loss)
    world.submit(StudyId("second"), spec(SHA, space=FLAT).to_json())
    world.run()
    first, second = (world.plan.studies[name] for name in (STUDY, StudyId("second")))
    assert first.executed + second.executed == first.unique == second.unique
    assert {name for trial in second.trials for name in trial.passes} == {
        name for trial in first.trials for name in trial.passes
    }


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 3))
def test_states_stay_until_their_mean_is_computed_under_losses(seed: int, slots: int) -> None:
    """A state is not released before its mean is computed. A lost state is trained again, to the same value."""
    world = simulator(spec(MERGED), slots=slots, faults=faults(seed, lose=0.1, fail=0.05))
    study = world.plan.studies[STUDY]
    while world.advance():
        used = checkpoint_needs.required_keys(world.plan)
        for number, rung in study.unmerged.items():
            nodes = [(world.plan.node_of(study.trials[number], step), step) for step in study.spec.merged_steps(rung)]
            assert {node.checkpoints[step].key for node, step in nodes if step in node.checkpoints} <= used
    assert study.state == "completed"
    assert replay(numbered_events(world.events), STUDY).identical


def test_what_is_shown_of_it() -> None:
    _, study = ran()
    board = build_leaderboard(study)
    trunk = next(trial for trial in study.trials if trial.steps == 90 and trial.merge_of is None)
    merge = next(trial for trial in study.trials if trial.merge_of == trunk.number and trial.steps == 30)
    assert state_text(study, trunk, trunk.state, board) == "trained to step 90, ranked by the mean of its last states"
    text = f"the mean of 3 states of trial {trunk.number} from step 24 to 30"
    assert state_text(study, merge, merge.state, board) == text
    assert board.ladder()[0].values[trunk.number] == pytest.approx(0.099) and board.rung(merge.number) is None


def test_a_preview_says_that_they_cost_no_step() -> None:
    seen = preview(spec(SHA, space=FLAT), slots=2)
    plain = preview(spec(ASHA | {"kind": "sha", "sampler": "grid"}, space=FLAT), slots=2)
    assert seen["merges"] == {"trials": 13, "states": 39} and seen["unique"] == plain["unique"]


def test_an_inexact_trainer_fails_the_study_with_the_reason() -> None:
    world = simulator(spec(MERGED, space=FLAT))
    study = world.plan.studies[STUDY]
    while world.advance() and not study.trials:
        pass
    place: Any = {"chain": "chain-0", "device": "cpu", "node": study.trials[0].path[0]}
    world.take([e.ExactnessTested(**place, proof=VerificationKind.CHECK, begin=0, step=2, difference="w differs")])
    world.give(c.IsolateStudy(study=STUDY, at=1.0))
    assert study.state == "failed" and "of which tuner.rung_value.merge takes the mean" in str(study.error)


# ----------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("tuner", "fields", "text"),
    [
        ({"rung_value": 5}, {}, "tuner.rung_value: must be an object with cooldown or with merge, got 5"),
        ({"rung_value": {"merge": 1}}, {}, "tuner.rung_value.merge: must be a whole number from 2 to 1000"),
        ({"rung_value": {"merge": 2.5}}, {}, "tuner.rung_value.merge: must be a whole number from 2 to 1000"),
        ({"rung_value": {"merge": 3, "cooldown": 0.1}}, {}, "tuner.rung_value: must have cooldown or merge, and not"),
        ({"rung_value": {"merge": 3, "shape": "sqrt"}}, {}, "tuner.rung_value.shape: is not a field here"),
        ({"rung_value": {"merge": 3, "window": 1.0}}, {}, "tuner.rung_value.window: must be a number of steps, at"),
        ({"rung_value": {"merge": 3, "weights": "sqrt"}}, {}, "tuner.rung_value.weights: must be uniform, linear, or"),
        ({"rung_value": {"merge": 3, "weights": {"decay": "exp"}}}, {}, "tuner.rung_value.weights: must be uniform"),
        ({"rung_value": {"merge": 3, "weights": ["uniform"]}}, {}, "tuner.rung_value.weights: must be uniform"),
        (
            {"rung_value": {"merge": 12}},
            {},
            "tuner.rung_value.merge: must be at most 10, the states from step 1 to the rung of 10 steps, got 12",
        ),
        (
            {"rung_value": {"merge": 3, "window": 0.8}},
            {},
            "tuner.rung_value.window: must come to at most 20 steps at the rung of 30, since it begins at step 10 or "
            "later, got 0.8: 24 steps",
        ),
        ({"rung_value": {"merge": 3}, "promote_by": "predicted"}, {}, "tuner.rung_value: must be left out where"),
        ({"rung_value": {"merge": 3}}, {"stop_hopeless": {}}, "stop_hopeless: must be left out beside tuner.rung"),
    ],
)
def test_wrong_tokens_are_refused_in_a_sentence(tuner: dict[str, Any], fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec(ASHA | tuner, **({"space": FLAT} | fields))
    assert text in str(raised.value)


def test_it_is_written_with_its_defaults_and_may_be_an_object() -> None:
    written = spec(MERGED, space=FLAT).to_json()["tuner"]["rung_value"]
    assert written == {"merge": 3, "window": 0.2, "weights": "uniform"}
    assert StudySpec.from_dict(spec(MERGED).to_json()).to_json()["tuner"]["rung_value"] == written
    tuner = AshaTuner(num_trials=9, min_steps=10, max_steps=90, rung_value=MergeValue(merge=3))
    assert tuner.model_dump()["rung_value"] == written


def test_advice_where_a_schedule_has_fallen_by_itself() -> None:
    falls = {"lr": {"family": "cosine", "init": 0.3, "min": 0.0, "period": 90}}
    said = "lr has fallen by itself before step 90 in 64 of 64 trials, so a mean of states there hardly changes them"
    assert any(each.startswith(said) for each in advice(spec(MERGED, space=falls)))


def configurations(study: Study) -> list[Any]:
    return [trial.hp for trial in study.trials if trial.trunk is None]


def test_a_sampler_draws_no_configuration_for_a_mean() -> None:
    worlds = [simulator(spec(tuner | {"sampler": "sobol"}), slots=2) for tuner in (MERGED, ASHA)]
    for world in worlds:
        world.run()
    merged, plain = (configurations(world.plan.studies[STUDY]) for world in worlds)
    assert merged == plain
