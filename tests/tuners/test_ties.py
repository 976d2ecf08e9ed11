"""Equal results at rungs: a seeded draw in new studies, by number in those on record."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.leaderboard import BY_NUMBER, TieOrder, build_leaderboard, display_state, state_text, trial_of
from app.domain.objectives import ResultScore
from app.domain.search_plan import Node
from app.domain.terms import TrialEventKind
from app.search.replay import replay
from app.search.tuners.rungs import RungFronts, RungScores
from app.service.views import documents
from stagetree.spec import StudySpec
from tests.plans import max_examples
from tests.tuners.worlds import (
    STUDY,
    Table,
    losses,
    numbered_events,
    promotions,
    run_simulator,
    spec,
    stragglers,
)

HALVING: dict[str, dict[str, Any]] = {
    "sha": {"kind": "sha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3},
    "asha": {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 9, "reduction_factor": 3},
    "stopping": {"kind": "asha", "type": "stopping", "num_trials": 12, "min_steps": 1, "max_steps": 8, "eta": 2},
    "brackets": {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 9, "eta": 3, "brackets": 2},
    "hyperband": {"kind": "hyperband", "max_steps": 9, "reduction_factor": 3},
    "async_hyperband": {"kind": "async_hyperband", "num_trials": 14, "max_steps": 16},
}
SEEDS = 900


def seeded_ties(tuner: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    return tuner | {"ties": "seed", "sampling_seed": seed}


# ------------------------------------------------------------------------------------------------------------ the draw


def test_the_draw_of_a_seed_never_changes() -> None:
    """Studies on record depend on it."""
    for rung, order in ((0, [1, 6, 2, 7, 5, 3, 4, 0, 8]), (1, [3, 0, 7, 1, 8, 6, 4, 5, 2])):
        assert sorted(range(9), key=lambda trial: TieOrder(7).tie_break(rung, trial)) == order
    assert sorted(range(9), key=lambda trial: BY_NUMBER.tie_break(1, trial)) == [*range(9)]


@given(st.none() | st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_a_tie_break_is_the_trials_own(seed: int | None, rung: int, trial: int) -> None:
    assert trial_of(TieOrder(seed).tie_break(rung, trial)) == trial


def first(results: list[tuple[float, int]], cut: int, ties: TieOrder, kind: type[RungScores] = RungScores) -> list[int]:
    """The trials that a rung promotes, in order, if these results arrived in this order."""
    rung, found = kind(0, ties), list[int]()
    for loss, trial in results:
        rung.add(loss if kind is RungScores else ResultScore(0.0, (loss, -loss)), trial)
    while (up := rung.next_up(cut)) is not None:
        found.append(up.trial)
        rung.promote(up.trial)
    return found


@max_examples(5)
@given(st.permutations(range(16)), st.integers(4, 12), st.integers(0, 3))
def test_equal_trials_have_equal_chances_whatever_their_numbers(numbers: list[int], equal: int, better: int) -> None:
    """Also any two of them together, since neighbours in a grid have adjacent numbers."""
    results = [(0.0 if place < better else 1.0, number) for place, number in enumerate(numbers[: better + equal])]
    free = equal // 3
    promoted = [set(first(results, better + free, TieOrder(seed))) for seed in range(SEEDS)]
    tied = numbers[better : better + equal]
    assert all({*numbers[:better]} <= each for each in promoted)
    singles = Counter(trial for each in promoted for trial in each)
    assert all(is_close(singles[trial], free / equal) for trial in tied)
    pairs = Counter(pair for each in promoted for pair in combinations(sorted(each.intersection(tied)), 2))
    chance = free * (free - 1) / (equal * (equal - 1))
    assert all(is_close(pairs[pair], chance) for pair in combinations(sorted(tied), 2))


def is_close(count: int, chance: float) -> bool:
    """Whether a count among all seeds is within five standard deviations of its mean."""
    return abs(count - SEEDS * chance) <= 5 * (SEEDS * chance * (1 - chance)) ** 0.5


def test_a_trial_has_another_chance_at_each_rung() -> None:
    orders = {rung: sorted(range(9), key=lambda trial: TieOrder(3).tie_break(rung, trial)) for rung in range(4)}
    assert len({tuple(order) for order in orders.values()}) == 4


@given(
    st.lists(st.integers(0, 2).map(float), min_size=1, max_size=14),
    st.integers(0, 14),
    st.integers(0, 99),
    st.sampled_from([RungScores, RungFronts]),
    st.randoms(use_true_random=False),
)
def test_the_order_of_arrival_counts_for_nothing(
    values: list[float], cut: int, seed: int, kind: type[RungScores], rng: Random
) -> None:
    results = [(value, trial) for trial, value in enumerate(values)]
    arrived = rng.sample(results, len(results))
    assert first(arrived, cut, TieOrder(seed), kind) == first(results, cut, TieOrder(seed), kind)


@given(st.lists(st.integers(0, 3).map(float), min_size=1, max_size=14), st.integers(0, 99))
def test_both_kinds_of_rungs_count_equal_results_alike(values: list[float], seed: int) -> None:
    plain, several = RungScores(0, TieOrder(seed)), RungFronts(0, TieOrder(seed))
    for trial, value in enumerate(values):
        plain.add(value, trial)
        several.add(ResultScore(0.0, (value,)), trial)
    for trial, value in enumerate(values):
        one, other = plain.rank(value, trial), several.rank(ResultScore(0.0, (value,)), trial)
        told = [rung.reason(each, 3) for rung, each in ((plain, one), (several, other))]
        assert told[0].get("drawn_among", 1) == told[1].get("drawn_among", 1) == values.count(value)
        assert told[0]["rank"] == told[1]["rank"]


# ------------------------------------------------------------------------------------------------------------ decisions


@pytest.mark.parametrize("kind", HALVING)
@max_examples(15)
@given(st.permutations(range(60)), st.integers(0, 99), st.randoms(use_true_random=False))
def test_without_ties_decisions_are_the_same(kind: str, values: list[int], seed: int, rng: Random) -> None:
    """With their reasons, after each result."""
    by_number, by_seed = Table(HALVING[kind] | {"ties": "number"}), Table(seeded_ties(HALVING[kind], seed))
    waiting = list[int]()
    for loss in values:
        asked = by_number.ask_all()
        assert asked == by_seed.ask_all()
        waiting += [trial for decision, trial, _ in by_number.log[-len(asked) :] if asked and decision != "stop"]
        if waiting:
            trial = waiting.pop(rng.randrange(len(waiting)))
            by_number.result(trial, loss)
            by_seed.result(trial, loss)
    assert not waiting and any(decision == "promote" for decision, *_ in by_number.log)


@pytest.mark.parametrize("kind", HALVING)
@max_examples(3)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_decisions_with_drawn_ties_are_derived_again(kind: str, seed: int, slots: int) -> None:
    made_up = {"measure": losses(seed, digits=0), "seconds": stragglers(seed)}
    world = run_simulator(spec(seeded_ties(HALVING[kind], seed)), slots=slots, **made_up)
    study = world.plan.studies[STUDY]
    assert study.state == "completed" and replay(numbered_events(world.events), STUDY).identical
    assert any("drawn_among" in event.reason for event in study.history)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asha", "sha"])
def test_the_far_corner_of_a_grid_is_reached_where_first_results_are_equal(kind: str) -> None:
    """All trials are equal at the first two rungs. The trials of one corner, which have the highest numbers, are better
    at the next.
    """

    def measure(node: Node, step: int) -> dict[str, float | None]:
        hp = node.segment.values(node.start)
        return {"loss": 0.0 if step >= 9 and all(int(str(hp[name])) >= 5 for name in ("x", "y")) else 1.0}

    def finds_it(ties: str, seed: int) -> bool:
        tuner = HALVING[kind] | {"num_trials": 81, "sampler": "grid", "ties": ties, "sampling_seed": seed}
        world = run_simulator(spec(tuner, space={"x": [*range(9)], "y": [*range(9)]}), measure=measure)
        return any(event.metrics.get("loss") == 0.0 for event in world.plan.studies[STUDY].history)

    assert not finds_it("number", 0)
    assert sum(finds_it("seed", seed) for seed in range(8)) > 5


def test_a_study_on_record_without_the_field_breaks_ties_by_number() -> None:
    study = spec(HALVING["sha"])
    assert "ties" not in study.to_json()["tuner"]
    world = run_simulator(study, measure=lambda node, step: {"loss": 1.0})
    assert promotions(world.plan.studies[STUDY]) == [(0, 3), (1, 3), (2, 3), (0, 9)]
    assert not any("drawn_among" in event.reason for event in world.plan.studies[STUDY].history)


def test_what_was_drawn_is_recorded_shown_and_ranked_as_it_was_drawn() -> None:
    world = run_simulator(spec(seeded_ties(HALVING["sha"], 7)), measure=lambda node, step: {"loss": 1.0})
    study = world.plan.studies[STUDY]
    promoted = [event for event in study.history if event.kind == TrialEventKind.PROMOTE]
    assert [event.trial for event in promoted] == [1, 6, 2, 1]
    assert promoted[1].reason == {"rung": 1, "rank": 2, "cut": 3, "of": 9, "drawn_among": 9, "loss": 1.0}
    board = build_leaderboard(study)
    assert board.rungs[0, 0].best_first(1)[:4] == [1, 6, 2, 7]
    trial = study.trials[7]
    text = state_text(study, trial, display_state(study, trial, board), board)
    assert text == "pruned at rung 0: rank 4 of 9, drawn among 9 equal results, 3 promoted"


@pytest.mark.parametrize("kind", ["sha", "hyperband"])
@pytest.mark.parametrize("fields", [{}, {"constraints": ["loss <= 1.5"]}])
@max_examples(5)
@given(st.integers(0, 10**6))
def test_the_leaderboard_has_the_order_of_the_tuner(kind: str, fields: dict[str, Any], seed: int) -> None:
    """The promoted trials of a whole rung are the first ones there."""
    world = run_simulator(spec(seeded_ties(HALVING[kind], seed), **fields), slots=2, measure=losses(seed, digits=0))
    for rung in build_leaderboard(world.plan.studies[STUDY]).ladder():
        assert set(rung.best_first(1)[: len(rung.promoted)]) == rung.promoted


@pytest.mark.parametrize(("good", "tied"), [(0, 9), (2, 7), (3, 0), (9, 9)])
def test_results_are_tied_where_only_some_of_equal_ones_were_promoted(good: int, tied: int) -> None:
    """Three of nine are promoted: with three good ones, no chance is involved."""
    table = spec(seeded_ties(HALVING["sha"]) | {"sampler": "grid"}, space={"lr": [*range(9)]})
    world = run_simulator(table, measure=lambda node, step: {"loss": float(node.segment.values(0)["lr"] >= good)})
    assert build_leaderboard(world.plan.studies[STUDY]).rungs[0, 0].count_tied() == tied
    assert documents.study(world.plan, STUDY, now=0.0).progress.rungs[0].tied == tied


# ---------------------------------------------------------------------------------------------------------- submission


@pytest.mark.parametrize("kind", HALVING)
def test_a_new_study_draws_unless_it_says_otherwise(kind: str) -> None:
    written = spec(HALVING[kind])
    by_number = spec(HALVING[kind] | {"ties": "number", "sampling_seed": 4, "sampler": "random"})
    submitted = written.fill_in(sampling_seed=3)
    assert (submitted.tuner.ties, submitted.tuner.sampling_seed) == ("seed", 3)
    assert by_number.fill_in(sampling_seed=3) == by_number
    assert StudySpec.from_dict(submitted.to_json()) == submitted


def test_a_tuner_without_rungs_has_no_ties() -> None:
    random = spec({"kind": "random", "num_trials": 3, "max_steps": 2})
    assert random.fill_in(sampling_seed=3).to_json()["tuner"] == random.to_json()["tuner"] | {"sampling_seed": 3}
    listed = spec({"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 2}]})
    assert listed.fill_in(sampling_seed=3) == listed


def test_a_study_is_recognised_by_its_users_file() -> None:
    """A recorded study of 0.1.0 as well as one with its values filled in."""
    written = spec(HALVING["asha"])
    for recorded in (written, written.fill_in(sampling_seed=3)):
        assert written.is_written_as(recorded.to_json())
    by_number = spec(HALVING["asha"] | {"ties": "number"})
    assert not by_number.is_written_as(written.fill_in(sampling_seed=3).to_json())
