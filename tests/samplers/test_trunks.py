"""The `trunks` sampler: its prices equal trained steps, its model follows its papers, and it replays."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain import schedule
from app.domain.evolve import evolve, fold
from app.domain.pricing import TrainedTree, trained_tree
from app.domain.search_plan import Node, SearchPlan, TrialEvent
from app.domain.terms import StudyId, TrialEventKind, TrialState
from app.search.replay import replay
from app.search.samplers import SAMPLERS, gaussian, gp, step_model, trunks
from app.search.samplers.cube import Cube, near, spread
from app.search.tuners.base import context_of
from app.search.tuners.driver import TunerDriver
from app.simulation.simulator import Simulator
from stagetree.sequences import parse
from stagetree.space import Space
from stagetree.space.distributions import Range
from stagetree.spec import StudySpec
from stagetree.spec.tuners.base import DRAWN_FIRST
from tests.tuners.worlds import STUDY

WSD = {"family": "wsd", "peak": 0.1, "warmup": 2}
SPACE: dict[str, Any] = {
    "lr": {**WSD, "peak": {"loguniform": [0.01, 1]}, "decay": {"randint": [2, 12]}, "shape": ["linear", "sqrt"]},
    "wd": {"uniform": [0, 1]},
}
SPACE["lr"]["shape"] = {"choice": ["linear", "sqrt"]}
LISTED = {"name": "s", "trainer": "t", "metric": "loss", "mode": "min", "tuner": {"kind": "external"}}
EXTERNAL = StudySpec.from_dict(LISTED).to_json()


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not depend on the number of candidates."""
    monkeypatch.setattr(gp, "FRESH", 12)
    monkeypatch.setattr(gp, "NEIGHBOURS", 6)
    monkeypatch.setattr(trunks, "BRANCHES", 12)


def spec(**fields: Any) -> StudySpec:
    tuner = {"kind": "asha", "num_trials": 12, "min_steps": 20, "max_steps": 20, "sampler": "trunks"}
    tuner |= fields.pop("tuner", {})
    study = {"name": "s", "trainer": "t", "metric": "loss", "mode": "min", "space": SPACE, "tuner": tuner}
    return StudySpec.from_dict({**study, **fields})


def loss(node: Node, step: int) -> e.Metrics:
    """Least at a decay of 6, for any other values."""
    return {"loss": abs(node.hp["lr"]["decay"] - 6) / 10 + node.hp["wd"]["value"] / 1e3 + 1 / step}


def simulate(slots: int = 1, keep_every: int | None = 2, **fields: Any) -> Simulator:
    simulator = Simulator(slots=slots, measure=loss, keep_every=keep_every)
    simulator.submit(STUDY, spec(**fields).to_json())
    simulator.run()
    return simulator


decays = st.fixed_dictionaries({"decay": st.integers(1, 18), "shape": st.sampled_from(["linear", "sqrt"])})


@settings(max_examples=20)
@given(before=st.lists(decays, min_size=1, max_size=3), then=decays, keep=st.sampled_from([None, 1, 5]))
def test_the_price_of_a_trial_equals_its_trained_steps(before: list[Any], then: Any, keep: int | None) -> None:
    """Compared by the name of each node, with any checkpoints."""

    simulator = Simulator(slots=1, measure=lambda node, step: {"loss": 1.0}, keep_every=keep)
    simulator.submit(STUDY, EXTERNAL)
    for fields in (*before, then):
        lr = parse({**WSD, **fields, "stable_until": 20 - fields["decay"]})
        plan, known = simulator.plan, simulator.plan.studies[STUDY]
        price, executed = trained_tree(plan, known).price({"lr": lr}, 20), known.executed
        simulator.give(c.AddTrial(study=STUDY, hp={"lr": lr.to_json()}, steps=20))
        simulator.run()
        assert simulator.plan.studies[STUDY].executed - executed == price


def test_branches_cost_the_proposed_price() -> None:
    simulator = simulate()
    study = simulator.plan.studies[STUDY]
    priced = [trial for trial in study.trials if "price" in trial.reason]
    assert len(study.trials) == 12 and len(priced) == 12 - DRAWN_FIRST["trunks"]
    assert sum(trial.reason["price"] for trial in priced) + 20 * DRAWN_FIRST["trunks"] == study.executed
    assert any(trial.reason["price"] < 20 for trial in priced)
    assert study.executed < 12 * 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "fields"), [(1, {}), (3, {}), (1, {"max_total_steps": 112}), (3, {"max_total_steps": 148})]
)
def test_a_restarted_server_makes_the_same_proposals(slots: int, fields: dict[str, Any]) -> None:
    simulator = simulate(slots, **fields)
    events = simulator.events
    assert replay(enumerate(events), STUDY).identical
    for at in [at for at, event in enumerate(events) if isinstance(event, e.TrialAdded)]:
        plan = fold(events[:at])
        driver = TunerDriver(plan.studies[STUDY].spec.json)
        driver.observe(plan.studies[STUDY], context_of(plan, plan.studies[STUDY], 0.0, slots))
        [action] = driver.suggest(room=100)
        recorded = events[at]
        assert isinstance(recorded, e.TrialAdded) and isinstance(action, c.Start)
        assert (action.hp, {"by": "tuner", **action.reason}) == (recorded.hp, recorded.reason)


def test_trials_above_the_remaining_budget_are_passed_over() -> None:
    """A trial that the budget cuts off has no result. Once a trial of 20 steps began when 7 steps were left."""
    study = simulate(max_total_steps=134, tuner={"num_trials": 40}).plan.studies[STUDY]
    assert all(trial.state == TrialState.COMPLETED for trial in study.trials)
    assert study.executed == 134


@pytest.mark.parametrize("fields", [{"max_total_steps": 130}, {"max_total_steps": 130, "merge": False}])
def test_a_budget_that_pays_for_nothing_new_ends_the_study(fields: dict[str, Any]) -> None:
    """Configurations that may be sampled again are free, and would be proposed until `num_trials`."""
    study = simulate(**fields, tuner={"num_trials": 40}).plan.studies[STUDY]
    assert study.executed == 130 and study.ending["by"] == "max_total_steps" and len(study.trials) < 40


@settings(max_examples=10)
@given(slots=st.integers(1, 3), data=st.data())
def test_the_remaining_budget_excludes_trained_and_requested_steps(slots: int, data: st.DataObject) -> None:
    simulator = Simulator(slots=slots, measure=loss, keep_every=2)
    simulator.submit(STUDY, spec(max_total_steps=90, tuner={"sampler": "random"}).to_json())
    simulator.run()
    plan = fold(simulator.events[: data.draw(st.integers(2, len(simulator.events)))])
    study = plan.studies[STUDY]
    waiting = {
        (name, step)
        for trial in study.trials
        if trial.state == TrialState.ACTIVE
        for name, end in plan.path_ends(trial)
        for step in range(plan.nodes[name].reached, end)
    }
    assert trained_tree(plan, study).left == max(0, 90 - study.executed - len(waiting))


def test_a_study_that_does_not_merge_pays_for_every_step() -> None:
    study = simulate(merge=False).plan.studies[STUDY]
    assert {trial.reason["price"] for trial in study.trials if "price" in trial.reason} == {20}


@pytest.mark.slow
def test_a_model_of_all_rungs_proposes() -> None:
    """The first trials are random, and a third of the others."""
    study = simulate(slots=2, tuner={"min_steps": 5, "num_trials": 20, "eta": 2}).plan.studies[STUDY]
    by_model = ["price" in trial.reason for trial in study.trials]
    later = by_model[by_model.index(True) :]
    assert len(by_model) == 20 and len(later) > 10 and sum(later) > len(later) / 2


def test_an_exhausted_space_has_no_further_proposal() -> None:
    space = {"lr": {**WSD, "decay": {"choice": [2, 4, 6]}}, "wd": [0.1, 0.2]}
    study = simulate(space=space, tuner={"distinct": True}).plan.studies[STUDY]
    assert len(study.trials) == 6


def sampler_with_losses(*outcomes: float | None, step: int = 20) -> trunks.TrunkSampler:
    """A sampler with trials of these losses; None for a failed trial."""
    sampler = SAMPLERS["trunks"](spec())
    assert isinstance(sampler, trunks.TrunkSampler)
    for number, outcome in enumerate(outcomes):
        proposal = sampler.propose(number)
        assert proposal is not None
        sampler.observe(TrialEvent(TrialEventKind.START, number, 20, hp=proposal.hp, reason=proposal.reason))
        kind = TrialEventKind.FAIL if outcome is None else TrialEventKind.RESULT
        sampler.observe(TrialEvent(kind, number, step, metrics={} if outcome is None else {"loss": outcome}))
    return sampler


@settings(max_examples=10)
@given(tried=st.lists(decays, min_size=2, max_size=4), keep=st.sampled_from([None, 2]), lost=st.integers(1, 4))
def test_prices_change_only_with_the_version_of_progress_or_the_requests_of_the_study(
    tried: list[Any], keep: int | None, lost: int
) -> None:
    """So a sampler need not compare the nodes of a plan, which may be many, to see whether prices changed."""
    simulator = Simulator(slots=2, measure=lambda node, step: {"loss": 1.0}, keep_every=keep)
    for name in (STUDY, StudyId("other")):
        simulator.submit(name, EXTERNAL)
    probes = [{"lr": parse({**WSD, **fields, "stable_until": 20 - fields["decay"]})} for fields in tried]
    for number, probe in enumerate(probes):
        asker = (STUDY, StudyId("other"))[number % 2]
        simulator.give(c.AddTrial(study=asker, hp={"lr": probe["lr"].to_json()}, steps=20))
        simulator.run()
    plan, seen = SearchPlan(), dict[Any, list[int]]()
    for event in _losing_every(lost, [each.event for each in simulator.log()]):
        evolve(plan, event)
        if (asking := plan.studies.get(STUDY)) is not None:
            tree = trained_tree(plan, asking)
            prices = [tree.price(each, 20) for each in probes]
            assert prices == [tree.copy().price(each, 20) for each in probes]
            assert seen.setdefault((tree.version, str(asking.max_step_by_node)), prices) == prices


def test_an_evaluation_of_a_state_that_was_lost_changes_prices() -> None:
    """The state would have been trained again for it."""
    simulator = Simulator(slots=1, measure=lambda node, step: {"loss": 1.0}, keep_every=None)
    simulator.submit(STUDY, EXTERNAL)
    simulator.give(c.AddTrial(study=STUDY, hp={"lr": parse(0.1).to_json()}, steps=20))
    simulator.run()
    events = [each.event for each in simulator.log() if not isinstance(each.event, e.CheckpointKept)]
    [evaluated] = [each for each in events if isinstance(each, e.Evaluated)]
    plan = fold([each for each in events if each is not evaluated])
    before = trained_tree(plan, plan.studies[STUDY])
    assert before.price({"lr": parse(0.1)}, 20) == 20
    evolve(plan, evaluated)
    after = trained_tree(plan, plan.studies[STUDY])
    assert after.price({"lr": parse(0.1)}, 20) == 0 and after != before


def test_a_trial_that_makes_nodes_of_a_struck_study_shareable_changes_prices() -> None:
    simulator, gone, other = Simulator(slots=1, measure=lambda node, step: {"loss": 1.0}), StudyId("a"), StudyId("b")
    for name in (STUDY, gone, other):
        simulator.submit(name, EXTERNAL)
    for name in (gone, other):
        simulator.give(c.AddTrial(study=name, hp={"lr": parse(0.1).to_json()}, steps=20))
        simulator.run()
    plan, trees = SearchPlan(struck=frozenset({gone})), list[tuple[int, TrainedTree]]()
    for each in simulator.log():
        evolve(plan, each.event)
        if STUDY in plan.studies:
            tree = trained_tree(plan, plan.studies[STUDY])
            trees.append((tree.price({"lr": parse(0.1)}, 20), tree))
    assert {price for price, _ in trees} == {0, 20}
    assert all(tree != then for (price, tree), (later, then) in pairwise(trees) if price != later)


def _losing_every(n: int, events: list[e.Event]) -> Iterator[e.Event]:
    """The events, with each n-th checkpoint dropped at once."""
    kept = 0
    for event in events:
        yield event
        if isinstance(event, e.CheckpointKept):
            kept += 1
            if kept % n == 0:
                yield e.CheckpointDropped(node=event.node, step=event.step, key=event.key, reason="deleted")


def test_only_nodes_that_may_be_trained_are_named_for_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of candidates are priced for a proposal, and most share nothing."""
    named, name = [], schedule.node_id_of_parts
    monkeypatch.setattr(schedule, "node_id_of_parts", lambda *parts: named.append(parts) or name(*parts))
    assert TrainedTree({}, {}).price({"lr": parse({"family": "linear", "init": 1, "slope": -0.01})}, 20) == 20
    assert len(named) == 1


@pytest.mark.parametrize("outcomes", [[None] * 6, [1.0] * 6, [1e300, -1e300] * 3, [3.0, 2.0, 1.0, 4.0, None, None]])
def test_any_results_allow_a_next_proposal(outcomes: list[float | None]) -> None:
    sampler = sampler_with_losses(*outcomes)
    proposal = sampler.propose(len(outcomes))
    assert proposal is not None and proposal == sampler.propose(len(outcomes))


def test_a_proposal_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more, it took twice the time of the processor beside slots that use every core."""
    threads, fit = list[int](), step_model.fit_process
    with gp.blas().limit(limits=2):
        monkeypatch.setattr(step_model, "fit_process", lambda *given: threads.extend(_threads()) or fit(*given))
        assert sampler_with_losses(*[3.0, 2.0, 1.0, 4.0] * 2).propose(8) is not None
        assert threads and set(threads) == {1} and set(_threads()) == {2}


def _threads() -> list[int]:
    return [library["num_threads"] for library in gp.blas().info()]


def test_trials_part_where_their_values_differ() -> None:
    one, other = ({"lr": parse({**WSD, "stable_until": at, "decay": 20 - at})} for at in (12, 16))
    assert trunks.parting(one, other, 20) == 13  # the first step of a decay is at the peak
    assert trunks.parting(one, one, 20) == 20
    assert trunks.parting({"lr": parse(0.1)}, {"lr": parse(0.2)}, 20) == 0
    assert trunks.parting({"lr": parse(0.1)}, {"lr": parse({**WSD, "stable_until": 9, "decay": 3})}, 20) == 0


def test_the_model_knows_which_part_of_a_trial_a_value_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice is compared with another option, not with itself. Values that differ after a rung do not affect it."""
    told_of = list[Any]()

    def fit_and_record(*arguments: Any) -> gaussian.GaussianProcess:
        told_of.append(arguments[3])
        return gaussian.fit_process(*arguments)

    monkeypatch.setattr(step_model, "fit_process", fit_and_record)
    space = {"lr": SPACE["lr"], "wd": {"choice": [0.1, 0.2]}}
    simulate(space=space)
    places = Space(space, steps=20).parameters()
    for changed in told_of:
        by_place = dict(zip(places, changed, strict=True))
        assert by_place["lr.peak"] >= 0.95 and by_place["wd"] == 1
        assert 0.05 <= by_place["lr.shape"] < 0.7 and by_place["lr.decay"] < 0.7
    told_of.clear()
    simulate(space=space, tuner={"min_steps": 5, "eta": 5, "num_trials": 5, "max_steps": 20})
    assert any(changed[list(places).index("lr.shape")] == 0.05 for changed in told_of)


def test_the_benchmarks_studies_equal_submitted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its studies once sampled configurations again."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # it would set it for all tests
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    search = importlib.import_module("search")
    run = search.Run("schedules", "tpe", 0, "whole", 1, 0.0, 480, None)
    study = search.study_of(run, search.task_of("schedules", 0, None))
    assert study.tuner.distinct and study.tuner.per_rung is None


# The model

points = st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=4, max_size=8)


@settings(max_examples=20)
@given(points)
def test_the_process_interpolates_its_data_with_a_variance(rows: list[list[float]]) -> None:
    seen = np.unique(np.round(np.array(rows), 2), axis=0)
    losses = np.sin(3 * seen[:, 0]) + seen[:, 1]
    process = gaussian.fit_process(seen, losses, np.array([0, 1, 2]))
    mean, deviation = process.predict(seen)
    assert np.allclose(mean, process.losses, atol=0.5) and (deviation < 0.9).all()
    far = process.assume_means(seen[:1] + 5)
    assert far.predict(seen[:1] + 5)[1][0] < process.predict(seen[:1] + 5)[1][0]


def test_length_scales_separate_relevant_parameters() -> None:
    seen = np.random.default_rng(0).random((30, 2))
    process = gaussian.fit_process(seen, np.sin(6 * seen[:, 0]), np.array([0, 1]))
    assert process.lengths[0] < process.lengths[1] / 3


def test_an_effect_is_attributed_to_the_value_that_changes_more() -> None:
    """They changed together in the results, so only the part of a trial that each changes separates them."""
    seen = np.repeat(np.random.default_rng(0).random((6, 1)), 2, axis=1)
    process = gaussian.fit_process(seen, np.sin(6 * seen[:, 0]), np.array([0, 1]), np.array([1.0, 0.2]))
    assert process.lengths[0] < process.lengths[1] / 2


def test_a_loss_far_above_the_others_changes_the_model_no_more_than_one_at_the_fence() -> None:
    seen = np.random.default_rng(3).random((12, 2))
    losses = seen.sum(axis=1)
    losses[0] = 1e9
    far = gaussian.fit_process(seen, losses, np.array([0, 1]))
    losses[0] = 1e30
    farther = gaussian.fit_process(seen, losses, np.array([0, 1]))
    assert np.allclose(far.losses, farther.losses) and np.allclose(far.lengths, farther.lengths)
    assert np.std(far.losses[1:]) > 0.1


def test_a_sum_is_learnt_from_few_points() -> None:
    """Each of four parameters has an effect of its own; a process of joint distances could not extrapolate."""
    chance = np.random.default_rng(0)
    seen, other = chance.random((24, 4)), chance.random((60, 4))
    process = gaussian.fit_process(seen, np.sin(6 * seen).sum(axis=1), np.arange(4))
    assert process.share > 0.5
    assert np.corrcoef(process.predict(other)[0], np.sin(6 * other).sum(axis=1))[0, 1] > 0.9


def test_the_unit_of_losses_makes_no_difference() -> None:
    seen = np.random.default_rng(2).random((9, 2))
    losses = np.sin(4 * seen[:, 0]) + seen[:, 1] ** 2
    best = gaussian.fit_process(seen, losses, np.array([0, 1]))
    again = gaussian.fit_process(seen, losses * 7 + 3, np.array([0, 1]))
    assert np.allclose(best.lengths, again.lengths, rtol=0.05) and best.share == pytest.approx(again.share, abs=0.05)


def test_numeric_choices_are_ordered_and_words_are_not() -> None:
    choices = {"wd": {"choice": [0.01, 0.1, 0.05]}, "kind": {"choice": ["a", "b"]}}
    cube = Cube(Space({**choices, "lr": {"loguniform": [0.01, 1]}}).parameters())
    assert list(cube.groups) == [0, 1, 1, 2] and cube.width == 4
    rows = [(0, 1, 0.1), (1, 0, 1.0), (2, 0, 0.01)]
    points = cube.points([{"wd": wd, "kind": kind, "lr": lr} for wd, kind, lr in rows])
    assert np.allclose(points[:, 0], [0, 1, 0.5]) and np.allclose(points[:, 3], [0.5, 1, 0])
    assert np.linalg.norm(points[0, 1:3] - points[1, 1:3]) == pytest.approx(0.99, abs=0.01)


@given(st.integers(0, 50))
@settings(max_examples=10)
def test_the_first_trials_lie_apart(seed: int) -> None:
    """Each quarter of a range has one of four trials."""
    space = Space({"lr": {"uniform": [0, 1]}, "wd": {"uniform": [0, 1]}})
    made = [space.compose(spread(f"{seed}", number, 4)) for number in range(4)]
    for name in ("lr", "wd"):
        assert sorted(int(each[name].at(0) * 4) for each in made) == [0, 1, 2, 3]


@given(
    st.sampled_from([{"uniform": [-2, 3]}, {"loguniform": [0.001, 10]}]), st.floats(0.0001, 0.9999), st.integers(0, 99)
)
def test_neighbours_are_inside_the_range_and_none_is_drawn_to_its_ends(free: Any, share: float, seed: int) -> None:
    """Neighbours beyond an end were once clipped to it: a third to a half of the proposals of `gp`, in each of eight
    parameters.
    """
    parameter = Space({"x": free}).parameters()["x"]
    assert isinstance(parameter, Range)
    value = parameter.at(share)
    moved = near(Random(seed), {"x": value})("x", parameter)
    assert parameter.low < moved < parameter.high


@pytest.mark.parametrize("steps", [[20], [5, 20]])
def test_nothing_is_proposed_on_the_end_of_a_range(steps: list[int]) -> None:
    """Where trials are stopped, a search of eight parameters had most of them there, trial after trial."""
    sampler = SAMPLERS["gp"](spec(space={"x": {"uniform": [0, 1]}}))
    values = list[float]()
    for number in range(16):
        proposal = sampler.propose(number)
        assert proposal is not None
        values.append(proposal.hp["x"]["value"])
        sampler.observe(TrialEvent(TrialEventKind.START, number, 20, hp=proposal.hp, reason=proposal.reason))
        for step in steps:
            sampler.observe(TrialEvent(TrialEventKind.RESULT, number, step, metrics={"loss": values[-1]}))
    assert 0 < min(values) < 0.1


def test_a_neighbour_of_an_end_leaves_it() -> None:
    parameter = Space({"x": {"uniform": [0, 1]}}).parameters()["x"]
    chance = Random(0)
    moved = [near(chance, {"x": 1.0})("x", parameter) for _ in range(200)]
    assert 0.3 < fmean(x < 1 for x in moved) < 0.7 and min(moved) > 0.3


def test_the_expected_improvement_equals_a_monte_carlo_mean() -> None:
    seen = np.random.default_rng(0).random((6, 2))
    process = gaussian.fit_process(seen, seen.sum(axis=1), np.array([0, 1]))
    at = np.random.default_rng(1).random((4, 2)) / 4
    mean, deviation = process.predict(at)
    drawn = mean + deviation * np.random.default_rng(2).standard_normal((200_000, 1))
    assert np.allclose(
        np.exp(process.log_improvement(at, -0.9)), np.maximum(0, -0.9 - drawn).mean(axis=0), rtol=0.05, atol=1e-4
    )
    assert np.isfinite(process.log_improvement(np.array([[1e3, 1e3], [1.0, 1.0]]), -0.9)).all()
