"""Several metrics and constraints: the order of results, what goes up from rungs, and which studies may have them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain import results
from app.domain.leaderboard import build_leaderboard
from app.domain.objectives import FAILED, ResultScore, Scored
from app.domain.pareto_fronts import ParetoRanking, best_first, dominates, fronts
from app.domain.search_plan import Node
from app.domain.terms import TrialEventKind
from app.search.replay import replay
from app.service.views import documents
from stagetree.sequences import SequenceError
from stagetree.space.constraints import read_constraint
from stagetree.spec import SpecError, StudySpec
from tests.tuners.worlds import SPACE, STUDY, numbered_events, run_simulator, spec

RUNGS: dict[str, dict[str, Any]] = {
    "sha": {"kind": "sha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3},
    "asha": {"kind": "asha", "num_trials": 14, "min_steps": 1, "max_steps": 9, "reduction_factor": 2},
    "brackets": {"kind": "asha", "num_trials": 14, "min_steps": 1, "max_steps": 9, "eta": 3, "brackets": 2},
    "hyperband": {"kind": "hyperband", "max_steps": 9, "reduction_factor": 3},
    "async_hyperband": {"kind": "async_hyperband", "num_trials": 14, "max_steps": 16},
}
TWO = [{"name": "loss", "mode": "min"}, {"name": "speed", "mode": "max"}]


def scores(sizes: st.SearchStrategy[int], top: int = 4, most: int = 12) -> st.SearchStrategy[list[Scored]]:
    """Results of one study, with many ties, some of which break a constraint."""

    def results_of_size(size: int) -> st.SearchStrategy[list[Scored]]:
        losses = st.tuples(*[st.integers(0, top).map(float)] * size)
        found = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0]), losses), max_size=most)
        return found.map(lambda many: [(ResultScore(*each), trial) for trial, each in enumerate(many)])

    return sizes.flatmap(results_of_size)


def measure(node: Node, step: int) -> e.Metrics:
    """A loss, and a speed that is good where the loss is bad, but for some luck; memory that half of them keep to."""
    rng = Random(f"{node.id}/{step}")
    loss, memory = rng.random() + 1 / math.sqrt(step), Random(node.id).choice([10.0, 90.0])
    return {"loss": round(loss, 3), "speed": round(loss + rng.random(), 3), "memory_gb": memory}


# --------------------------------------------------------------------------------------------------------- the order


@given(scores(st.integers(1, 4)))
def test_the_rank_is_that_of_taking_away_front_after_front(scored: list[Scored]) -> None:
    left, expected = [each for each in scored if each[0].is_feasible], []
    while left:
        front = [each for each in left if not any(dominates(other[0].losses, each[0].losses) for other in left)]
        expected.append(sorted(front))
        left = [each for each in left if each not in front]
    assert fronts(each for each in scored if each[0].is_feasible) == expected


def naive_order(scored: list[Scored]) -> list[Scored]:
    """The order by taking each comparison, as it was done first: a front is gone through once for each of it."""
    order = list[Scored]()
    for front in fronts(each for each in scored if each[0].is_feasible):
        columns = list(zip(*(score.losses for score, _ in front), strict=True))
        extents = [(max(column) - min(column)) or 1.0 for column in columns]
        left = [(each, [x / size for x, size in zip(each[0].losses, extents, strict=True)]) for each in front]
        distances = [math.inf] * len(left)
        while left:
            furthest = distances.index(max(distances))
            del distances[furthest]
            each, point = left.pop(furthest)
            order.append(each)
            distances = [min(far, math.dist(point, other)) for far, (_, other) in zip(distances, left, strict=True)]
    return order + sorted(each for each in scored if not each[0].is_feasible)


@given(scores(st.integers(1, 4)) | scores(st.integers(1, 3), top=40, most=40))
def test_the_quick_order_is_that_of_all_comparisons(scored: list[Scored]) -> None:
    """However the results came: at once, or one by one with looks at the first of them in between."""
    ranking = ParetoRanking()
    for count, each in enumerate(scored):
        ranking.add(each)
        assert [*islice(ranking.best_first(), 3)] == naive_order(scored[: count + 1])[:3]
    assert [*ranking.best_first()] == [*best_first(scored)] == naive_order(scored)


@given(scores(st.integers(2, 5), top=40, most=40))
def test_blocks_and_cells_change_no_order(scored: list[Scored]) -> None:
    """They begin where there are many results; here, where there are a few."""
    by_comparisons = naive_order(scored)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BLOCK": 4, "CELL_DISTANCE": 9.0, "CELL_POINTS": 2}.items():
            patch.setattr(f"app.domain.pareto_fronts.{name}", value)
        assert [*best_first(scored)] == by_comparisons


@pytest.mark.parametrize("size", [2, 3])
def test_a_long_front_is_cheap(size: int) -> None:
    """None of its results dominates another. Comparing all pairs takes 16 times as many calls for 4 times as many."""
    assert calls_for(2000, size) < 8 * calls_for(500, size)


def calls_for(count: int, size: int) -> int:
    """The number of function calls that put a Pareto front in order."""
    rng = Random(1)
    losses = [tuple(rng.random() for _ in range(size - 1)) for _ in range(count)]
    scored = [(ResultScore(0.0, (*each, -sum(each))), number) for number, each in enumerate(losses)]
    called = Counter[str]()
    sys.setprofile(lambda _, event, __: called.update([event]))
    try:
        ordered = [*best_first(scored)]
    finally:
        sys.setprofile(None)
    assert len(ordered) == count
    return called["call"] + called["c_call"]


@given(scores(st.just(1)))
def test_one_metric_is_in_the_order_of_the_best(scored: list[Scored]) -> None:
    assert [*best_first([*scored, (FAILED, 99)])] == sorted([*scored, (FAILED, 99)])


# ------------------------------------------------------------------------------------------------------- promotions


def history(tuner: dict[str, Any], **fields: Any) -> list[tuple[Any, ...]]:
    """Starts, promotions and evaluations, in the order of the log."""
    world = run_simulator(spec(tuner, **fields), measure=measure)
    return [(line.kind, line.trial, line.steps) for line in world.plan.studies[STUDY].history]


@pytest.mark.parametrize("kind", RUNGS)
def test_a_constraint_that_all_keep_to_changes_no_promotion(kind: str) -> None:
    plain = history(RUNGS[kind])
    assert any(line[0] == TrialEventKind.PROMOTE for line in plain)
    assert history(RUNGS[kind], constraints=["memory_gb <= 100"]) == plain
    assert history(RUNGS[kind], constraints=["loss < 1e9"]) == plain


@pytest.mark.parametrize("kind", RUNGS)
def test_decisions_on_several_metrics_and_constraints_can_be_derived_again(kind: str) -> None:
    tuner = RUNGS[kind] | {"finish_best": 2}
    world = run_simulator(spec(tuner, metrics=TWO, constraints=["memory_gb <= 70"]), measure=measure)
    study = world.plan.studies[STUDY]
    assert study.state == "completed"
    assert replay(numbered_events(world.events), STUDY).identical
    for line in study.history:
        if line.kind == TrialEventKind.PROMOTE and "rung" in line.reason:
            assert len(line.reason["losses"]) == 2
            assert line.reason["rank"] <= line.reason["cut"]
    found = results.pareto_front(world.plan, study)
    assert found
    assert all(results.score(world.plan, study, trial).is_feasible for trial, _ in found)
    assert results.best(world.plan, study) == found[0]


def test_of_a_rung_the_front_goes_up_spread_and_what_breaks_a_constraint_last() -> None:
    """Nine trials, three are promoted: both ends of the front, and the trial furthest from them."""
    tuner = {"kind": "sha", "num_trials": 9, "min_steps": 1, "max_steps": 3, "reduction_factor": 3}
    rows = [(0.9, 0.1), (0.5, 0.5), (0.52, 0.48), (0.1, 0.9), (0.95, 0.95), (0.0, 0.0)]
    rows += [(0.6, 0.6), (0.7, 0.7), (0.8, 0.8)]

    def table(node: Node, step: int) -> e.Metrics:
        loss, time = rows[round(node.segment.values(0)["lr"])]
        return {"loss": loss, "time": time, "memory_gb": 71.0 if loss == 0 else 1.0}

    study = spec(
        tuner | {"sampler": "grid"},
        space={"lr": list(range(9))},
        metrics=[{"name": "loss", "mode": "min"}, {"name": "time", "mode": "min"}],
        constraints=["memory_gb <= 70"],
    )
    world = run_simulator(study, measure=table)
    promoted = [line.trial for line in world.plan.studies[STUDY].history if line.kind == TrialEventKind.PROMOTE]
    assert promoted == [3, 0, 1]
    board = build_leaderboard(world.plan.studies[STUDY])
    assert [board.rungs[0, 0].best_first(1)[place] for place in (0, 1, 2, 8)] == [3, 0, 1, 5]


def test_a_trial_that_does_not_report_what_a_constraint_needs_fails_and_says_so() -> None:
    study = spec({"kind": "grid", "max_steps": 1}, space={"lr": [0.1]}, constraints=["gigabytes <= 70"])
    world = run_simulator(study, measure=measure)
    assert "gigabytes" in world.plan.studies[STUDY].trials[0].error["error"]


def test_a_result_that_breaks_a_constraint_reaches_no_target() -> None:
    tuner = {"kind": "grid", "max_steps": 1}
    fields: dict[str, Any] = {"space": {"lr": [0.1, 0.2, 0.3]}, "target": 100.0}
    ended = {}
    for bound in (0, 100):
        world = run_simulator(spec(tuner, constraints=[f"memory_gb <= {bound}"], **fields), measure=measure, slots=1)
        ended[bound] = world.plan.studies[STUDY].ending.get("by")
    assert ended == {0: None, 100: "target"}


# ------------------------------------------------------------------------------------------- what may be written down


@pytest.mark.parametrize(
    ("text", "metrics", "violation"),
    [
        ("a <= 70", {"a": 70.0}, 0.0),
        ("a <= 70", {"a": 84.0}, 0.2),
        ("70 >= a", {"a": 84.0}, 0.2),
        ("a >= -2", {"a": -3.0}, 0.5),
        ("a <= 0", {"a": 3.0}, 3.0),
        ("a < 1", {"a": 1.0}, math.ulp(0.0)),
        ("1 <= a <= 2", {"a": 4.0}, 1.0),
        ("a + b <= 2 * 5", {"a": 10.0, "b": 5.0}, 0.5),
        ("metrics['val/loss'] <= 1", {"val/loss": 1.5}, 0.5),
    ],
)
def test_a_violation_is_the_excess_in_parts_of_the_bound(
    text: str, metrics: dict[str, float], violation: float
) -> None:
    assert read_constraint(text).violation(metrics) == violation
    assert set(read_constraint(text).names) == set(metrics)


@pytest.mark.parametrize(
    "text", ["", "a", "a == 1", "a.b <= 1", "f(a) <= 1", "a <= 1 and b <= 1", "1 <= 2", "a <= 1/0"]
)
def test_invalid_constraints_are_refused(text: str) -> None:
    with pytest.raises(SequenceError):
        read_constraint(text)


def test_a_constraint_without_a_value_says_so() -> None:
    with pytest.raises(SequenceError):
        read_constraint("a / b <= 1").violation({"a": 1.0, "b": 0.0})


BASE = {"name": "s", "trainer": "t", "space": SPACE, "tuner": RUNGS["asha"]}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"metrics": [TWO[0], TWO[0]]}, "metrics"),
        ({"metrics": TWO, "metric": "speed", "mode": "max"}, "metrics[0]"),
        ({"metrics": [TWO[0], {"name": "x", "mode": "up"}]}, "metrics[1].mode"),
        ({"metrics": TWO, "target": 1.0}, "target"),
        ({"metrics": TWO, "patience": 1}, "patience"),
        ({"metrics": TWO, "value": "best"}, "value"),
        ({"metrics": TWO, "stop_hopeless": {}}, "stop_hopeless"),
        ({"metrics": TWO, "tuner": RUNGS["asha"] | {"sampler": "tpe"}}, "tuner.sampler"),
        ({"metrics": TWO, "tuner": RUNGS["asha"] | {"type": "stopping"}}, "tuner.type"),
        ({"metrics": TWO, "tuner": RUNGS["asha"] | {"promote_by": "predicted"}}, "tuner.promote_by"),
        ({"metrics": TWO, "tuner": {"kind": "median", "num_trials": 4, "max_steps": 4, "interval": 1}}, "tuner.kind"),
        ({"metrics": TWO[:1], "constraints": ["loss == 1"]}, "constraints[0]"),
    ],
)
def test_a_study_that_cannot_have_them_is_refused_in_one_sentence(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(SpecError) as refused:
        StudySpec.from_dict(BASE | fields)
    assert [problem.field for problem in refused.value.problems] == [where]


def test_a_study_of_one_metric_is_the_same_however_it_is_written() -> None:
    one = StudySpec.from_dict(BASE | {"metrics": TWO[:1]})
    assert one.to_json() == StudySpec.from_dict(BASE | {"metric": "loss", "mode": "min"}).to_json()
    several = StudySpec.from_dict(BASE | {"metrics": TWO}).to_json()
    assert (several["metric"], several["mode"]) == ("loss", "min")
    assert StudySpec.from_dict(several).to_json() == several


def test_the_front_is_in_the_answers() -> None:
    world = run_simulator(spec(RUNGS["asha"], metrics=TWO, constraints=["memory_gb <= 70"]), measure=measure)
    answer = documents.study(world.plan, STUDY, now=0.0)
    front = [best.trial for best in answer.front]
    assert sorted(front) == [trial.trial for trial in answer.trials if trial.front]
    assert answer.best == answer.front[0]
    marks = {trial.trial: trial.exactness for trial in answer.trials}
    assert any(marks.values()) and all(best.exactness == marks[best.trial] for best in answer.front)
    assert all(best.violation == 0 and set(best.metrics) == {"loss", "speed", "memory_gb"} for best in answer.front)
    assert any(trial.violation for trial in answer.trials)
    plain = run_simulator(spec(RUNGS["asha"]), measure=measure)
    assert "front" not in documents.study(plain.plan, STUDY, now=0.0).to_json()
