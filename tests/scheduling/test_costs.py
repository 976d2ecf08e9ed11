"""The cost of a step: measured, or estimated from measurements elsewhere."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain.schedule import ScheduleSegment
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import ChainId, NodeId
from app.scheduling.costs import Costs, TimedStage, hindsight_errors
from app.scheduling.frontier import Frontier, Span
from app.scheduling.gangs import fitting_spans
from tests.plans import Story, max_examples


def record_cost(story: Story, bs: float, seconds_per_step: float, lr: float = 0.1) -> None:
    """A trial of this batch size has run for ten steps."""
    study = story.submit(({"bs": bs, "lr": lr, "opt": "sgd"}, 10))
    (node,) = story.path(study)
    chain = story.assign((node, 0, 10), study=study)
    story.happen(e.StageCompleted(chain=chain.id, index=0, seconds=10 * seconds_per_step))


def test_steps_cost_their_measured_time_on_the_same_kind_of_device() -> None:
    """Two kinds, one twice as fast: neither is reckoned with the mean of both."""
    story, costs = Story(), Costs()
    study = story.submit(({"bs": 64}, 40), devices=["A100", "H100"])
    (node,) = story.path(study)
    for number, (kind, seconds) in enumerate((("NVIDIA A100", 20.0), ("NVIDIA H100", 10.0))):
        stage = e.Stage(node=node.id, start=10 * number, end=10 * number + 10, study=study)
        chain = ChainId(f"on {kind}")
        story.happen(e.ChainAssigned(chain=chain, slot="gpu0", stages=(stage,), at=0.0, kind=kind))
        assert costs.seconds_per_step(node) == (2.0 if number else 1.0)  # no measurement of this kind yet
        story.happen(e.StageCompleted(chain=chain, index=0, seconds=seconds))
        story.keep(node.id, stage.end)
        assert costs.seconds_per_step(node) == seconds / 10
    assert costs.seconds_per_step(node, "NVIDIA A100") == 2.0
    assert costs.seconds_in_gang(story.plan, node, "NVIDIA A100, a share of 2", 1) == 2.0
    assert costs.seconds_per_step(node, "NVIDIA L4") == 1.5  # over all measurements
    frontier, rest = Frontier(story.plan, costs), [Span(node.id, 20, 40, study)]
    assert fitting_spans(frontier, rest, 30.0, "NVIDIA H100") == rest, (
        "held slots take what ends in time on their own kind"
    )
    assert fitting_spans(frontier, rest, 30.0, "NVIDIA A100") == []


def test_the_cost_of_a_gang_is_its_measured_one() -> None:
    story, costs, kind = Story(), Costs(), "NVIDIA H100"
    study = story.submit(({"bs": 64}, 40))
    (node,) = story.path(study)
    story.happen(e.RanksProfiled(kind=kind, step_seconds={"1": 1.0, "2": 0.6, "4": 0.4}, batch={}))
    for number, (members, seconds) in enumerate((((), 20.0), (("gpu1",), 12.0))):
        stage = e.Stage(node=node.id, start=10 * number, end=10 * number + 10, study=study)
        chain = ChainId(f"by {1 + len(members)}")
        at: Any = {"slot": "gpu0", "members": members, "kind": kind, "at": 0.0}
        story.happen(e.ChainAssigned(chain=chain, stages=(stage,), **at))
        story.happen(e.StageCompleted(chain=chain, index=0, seconds=seconds))
        story.keep(node.id, stage.end)
    seconds_by_ranks = [costs.seconds_in_gang(story.plan, node, kind, ranks) for ranks in (1, 2, 4)]
    assert seconds_by_ranks == pytest.approx([2.0, 1.2, 0.8])


def test_steps_of_an_untrained_node_are_estimated_by_kind() -> None:
    """One kind is twice as fast as the other, at any batch size."""
    story, costs = Story(), Costs()
    for kind, seconds in (("NVIDIA A100", 2.0), ("NVIDIA H100", 1.0)):
        for bs in (16, 32, 64):
            study = story.submit(({"bs": bs, "lr": seconds / bs}, 10))
            (node,) = story.path(study)
            stage = e.Stage(node=node.id, start=0, end=10, study=study)
            chain = ChainId(f"{bs} on {kind}")
            story.happen(e.ChainAssigned(chain=chain, slot="gpu0", stages=(stage,), at=0.0, kind=kind))
            story.happen(e.StageCompleted(chain=chain, index=0, seconds=10 * seconds * (bs + 1)))
    assert costs.refit(story.plan)
    (node,) = story.path(story.submit(({"bs": 128, "lr": 0.01}, 10)))
    slow, fast, other = (costs.seconds_per_step(node, f"NVIDIA {gpu}") for gpu in ("A100", "H100", "L4"))
    assert slow == pytest.approx(2 * fast, rel=0.1)
    assert fast < other < slow and costs.seconds_per_step(node) == other


def estimate(story: Story, costs: Costs, bs: float, lr: float = 0.1) -> float:
    (node,) = story.path(story.submit(({"bs": bs, "lr": lr, "opt": "sgd"}, 10)))
    return costs.seconds_per_step(node)


@max_examples(50)
@given(st.floats(0.001, 1), st.floats(-1, 2))
def test_a_law_of_powers_is_recovered(unit: float, power: float) -> None:
    story, costs = Story(), Costs()
    for bs in (16, 32, 64, 256):
        record_cost(story, bs, unit * (bs + 1) ** power)
    assert costs.refit(story.plan)
    for bs in (8, 128, 1024):
        assert estimate(story, costs, bs, lr=0.03) == pytest.approx(unit * (bs + 1) ** power, rel=0.02)
    assert estimate(story, costs, 64) == pytest.approx(unit * 65**power), "a measured cost is not estimated"


@max_examples(100)
@given(
    st.lists(st.tuples(st.floats(-1e12, 1e12), st.floats(0, 1e9)), min_size=1, max_size=8, unique_by=lambda row: row[0])
)
def test_an_estimate_is_always_a_time(rows: list[tuple[float, float]]) -> None:
    story, costs = Story(), Costs()
    for bs, seconds in rows:
        record_cost(story, bs, seconds)
    costs.refit(story.plan)
    for bs in (0, 1, 1e6, 1e300):
        assert 0 < estimate(story, costs, bs, lr=-bs) < math.inf


SECONDS = st.tuples(st.integers(1, 512), st.sampled_from([0.1, 0.01]), st.floats(0.01, 10))


@max_examples(50)
@given(st.lists(SECONDS, min_size=4, max_size=8, unique_by=lambda row: row[:2]))
def test_the_error_of_estimates_is_that_of_each_setting_by_the_others(rows: list[tuple[int, float, float]]) -> None:
    whole, costs = Story(), Costs()
    for bs, lr, seconds in rows:
        record_cost(whole, bs, seconds, lr)
    costs.refit(whole.plan)
    off = list[float]()
    for bs, lr, seconds in rows:
        others, of_others = Story(), Costs()
        for row in rows:
            if row != (bs, lr, seconds):
                record_cost(others, row[0], row[2], row[1])
        of_others.refit(others.plan)
        off.append(math.expm1(min(20.0, abs(math.log(estimate(others, of_others, bs, lr) / seconds)))))
    assert costs.error is not None and costs.error.settings == len(rows)
    assume(statistics.median(off) < 100)  # estimates have bounds of their own
    assert costs.error.median == pytest.approx(statistics.median(off), rel=1e-3, abs=1e-6)


def test_no_error_is_given_for_few_settings() -> None:
    story, costs = Story(), Costs()
    for bs in (16, 32, 64):
        record_cost(story, bs, 1.0)
    costs.refit(story.plan)
    assert costs.error is None


def timed_stages(story: Story, rows: list[tuple[int, float, int, int]]) -> list[TimedStage]:
    """Stages of ten steps. rows: batch size, seconds a step, event of the beginning, and events until the end."""
    stages = list[TimedStage]()
    for bs, seconds, begun, events in rows:
        (node,) = story.path(story.submit(({"bs": bs}, 10)))
        stages.append(TimedStage(f"gpu{bs % 2}", node.id, "", 10, 10 * seconds, begun, begun + events))
    return stages


def test_each_stage_is_compared_with_its_estimate_at_the_start() -> None:
    story = Story()
    rows = [(16, 1.0, 1, 3), (17, 1.0, 2, 4), (18, 1.0, 4, 6), (19, 3.0, 6, 9), (16, 0.5, 9, 9)]
    off = hindsight_errors(story.plan, timed_stages(story, rows))
    assert off.keys() == {"gpu0", "gpu1"}, "two of the stages began before the first measurement"
    assert off["gpu1"] == pytest.approx([2.0], rel=0.01), "it took three times as long as all before"
    assert off["gpu0"] == pytest.approx([0.0, 1.0], abs=0.01), "one as long; one half as long as the first time"


STAGES = st.lists(st.tuples(st.integers(1, 8), st.floats(0.01, 10), st.integers(0, 20), st.integers(1, 9)), max_size=9)


@max_examples(50)
@given(STAGES)
def test_later_stages_change_no_earlier_error(rows: list[tuple[int, float, int, int]]) -> None:
    story = Story()
    stages = sorted(timed_stages(story, rows), key=lambda stage: stage.ended)
    off, before = hindsight_errors(story.plan, stages), hindsight_errors(story.plan, stages[:-1])
    assert all(off[slot][: len(parts)] == parts for slot, parts in before.items())


def test_until_something_is_measured_every_step_costs_a_second() -> None:
    story, costs = Story(), Costs()
    assert not costs.refit(story.plan)
    assert estimate(story, costs, 64) == 1.0


def test_costs_are_refitted_at_each_doubling() -> None:
    story, costs = Story(), Costs()
    fitted = []
    for run in range(1, 20):
        record_cost(story, run, 1.0)
        if costs.refit(story.plan):
            fitted.append(run)
    assert fitted == [1, 2, 4, 8, 16]


def test_an_estimate_that_was_given_is_given_up_when_more_is_known() -> None:
    story, costs = Story(), Costs()
    before = estimate(story, costs, 64)
    record_cost(story, 32, 5.0)
    costs.refit(story.plan)
    assert before == 1.0
    assert estimate(story, costs, 64) == pytest.approx(5.0, rel=0.01)


class At:
    """A form whose value is as given, or is computed and is too large."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def at(self, step: int) -> Any:
        return self.value() if callable(self.value) else self.value


HUGE = {"integer": 10**400, "infinite": math.inf, "no number": math.nan, "computed": lambda: 1e300**2.0}


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_numbers_beyond_floats_are_estimated(value: Any) -> None:
    """Logs of older versions hold such values; a sequence may come to one."""
    costs, plan = Costs(), SearchPlan()
    for number, decay in enumerate((value, 0.1, 0.2)):
        segment = ScheduleSegment(0, {"wd": At(decay)})  # type: ignore[dict-item]
        node = Node(NodeId(f"n{number}"), None, 0, {}, steps_run=10, seconds=10.0, _segment=segment)
        plan.nodes[node.id] = node
        plan.measured.append(node.id)
    plan.stages_run = 3
    costs.refit(plan)
    like_it = Node(NodeId("n"), None, 0, {}, _segment=plan.nodes[NodeId("n0")].segment)
    assert math.isfinite(costs.seconds_per_step(like_it))


def test_an_estimate_that_hardly_moves_stays_and_nothing_follows_from_it() -> None:
    story, costs = Story(), Costs()
    record_cost(story, 64, 1.0)
    assert costs.refit(story.plan)
    (node,) = story.path(story.submit(({"bs": 66, "lr": 0.1, "opt": "sgd"}, 10)))
    assert costs.revise(node)
    before = costs.seconds_per_step(node)
    record_cost(story, 65, 1.01)
    assert costs.refit(story.plan)
    assert not costs.revise(node)
    assert costs.seconds_per_step(node) == before
    for bs in (62, 63):
        record_cost(story, bs, 3.0)
    assert costs.refit(story.plan)
    assert costs.revise(node)
    assert costs.seconds_per_step(node) != before
