"""States are kept in passing where known trials would branch off, before they are requested for longer."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.stage_tree import MOST_CHANGES, UpcomingBranches
from app.domain.terms import NodeId, StudyId
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from app.scheduling.placement import assign, stages_of
from app.scheduling.retention import deletion_order
from app.simulation.simulator import Simulator
from tests.plans import METRIC, OPENED, Story
from tests.tuners.test_every_tuner import KINDS
from tests.tuners.worlds import SHARING, simulator, spec

STUDY = StudyId("s")


def decay(*at: int) -> dict[str, Any]:
    return {"family": "multistep", "init": 0.1, "milestones": list(at), "gamma": 0.1}


class Trunk:
    """A study whose user asks for trials on virtual slots."""

    def __init__(self, **options: Any) -> None:
        self.simulator = Simulator(slots=1, measure=lambda node, step: {METRIC: 0.5}, **options)
        body = {"metric": METRIC, "mode": "max", "tuner": {"kind": "external"}, "trainer": "x", "name": "n"}
        self.simulator.give(c.SubmitStudy(plan=OPENED, study=STUDY, spec=body, at=0.0))

    def add(self, lr: Any, steps: int) -> None:
        self.simulator.give(c.AskForTrials(study=STUDY, actions=(c.Start(hp={"lr": lr}, steps=steps),)))

    def extend(self, trial: int, steps: int) -> None:
        self.simulator.give(c.AskForTrials(study=STUDY, actions=(c.Extend(trial=trial, steps=steps),)))

    def kept_steps(self) -> list[int]:
        kept = (event for event in self.simulator.events if isinstance(event, e.CheckpointKept))
        return [event.step for event in kept if event.intermediate]


def test_a_trunk_keeps_the_state_at_which_a_waiting_trial_will_part() -> None:
    trunk = Trunk(keeps_branches=True)
    trunk.add(decay(50), 2)
    trunk.simulator.run()
    trunk.add(0.1, 100)
    trunk.simulator.run()
    assert trunk.kept_steps() == [50]
    trunk.extend(0, 60)
    trunk.simulator.run()
    study = trunk.simulator.plan.studies[STUDY]
    assert study.executed == study.unique == 110


def test_a_running_trunk_learns_of_a_new_trial() -> None:
    trunk = Trunk(keeps_branches=True)
    trunk.add(0.1, 100)
    trunk.simulator.run_until(20)
    trunk.add(decay(50), 2)
    trunk.add(decay(10), 2)
    trunk.simulator.run_until(99)
    assert trunk.kept_steps() == [50], "it has passed 10"
    trunk.simulator.run()
    trunk.extend(1, 60)
    trunk.simulator.run()
    assigned = [each for each in trunk.simulator.events if isinstance(each, e.ChainAssigned)][-1]
    assert [(stage.start, stage.end) for stage in assigned.stages] == [(50, 60)]


def test_a_trial_that_comes_after_many_others_is_known_soon() -> None:
    """The first look reads a part of the many trials; the trunk hears of the others while it runs."""
    trunk = Trunk(keeps_branches=True, turn_seconds=10.0)
    trunk.add(0.1, 400)
    for number in range(250):
        trunk.add(decay(130 + number // 9, 399), 2)
    trunk.add(decay(300), 2)
    upcoming = UpcomingBranches(trunk.simulator.plan)
    looks = 0
    while upcoming.is_behind:
        upcoming.begin_tick()
        upcoming.read_new_events()
        looks += 1
    assert looks == 1 + 252 // MOST_CHANGES
    trunk.simulator.run()
    assert trunk.kept_steps() == [*range(130, 158), 300]


def test_no_branch_state_is_kept_without_room() -> None:
    trunk = Trunk()
    trunk.add(decay(50), 2)
    trunk.add(0.1, 100)
    trunk.simulator.run()
    assert trunk.kept_steps() == []


def test_a_later_part_of_a_waiting_trial_is_foreseen_in_the_node_that_it_will_pass() -> None:
    trunk = Trunk(keeps_branches=True)
    trunk.add(decay(50, 70), 2)
    trunk.add(decay(50), 100)
    trunk.simulator.run()
    assert trunk.kept_steps() == [70]


@pytest.mark.parametrize("end", [c.CancelTrial(study=STUDY, trial=0), c.CancelStudy(study=STUDY, at=0.0)])
def test_a_trial_that_is_over_parts_nowhere(end: c.Command) -> None:
    trunk = Trunk()
    trunk.add(decay(50), 2)
    trunk.add(0.1, 100)
    upcoming, [node] = UpcomingBranches(trunk.simulator.plan), list(trunk.simulator.plan.nodes)
    assert upcoming.read_new_events() == {node: {50}}
    assert upcoming.branch_steps(node, 0, 100) == (50,)
    assert upcoming.branch_steps(node, 0, 50) == upcoming.branch_steps(node, 50, 100) == ()
    trunk.simulator.give(end)
    assert upcoming.read_new_events() == {}
    assert upcoming.branch_steps(node, 0, 100) == ()


def test_a_trial_that_is_promoted_parts_where_it_is_to_part_next() -> None:
    trunk = Trunk()
    trunk.add(decay(50, 70), 2)
    trunk.add(0.1, 100)
    upcoming, [node] = UpcomingBranches(trunk.simulator.plan), list(trunk.simulator.plan.nodes)
    assert upcoming.read_new_events()[node] == {50}
    assert upcoming.branch_steps(node, 0, 100) == (50,)
    trunk.extend(0, 60)
    [below] = trunk.simulator.plan.nodes[node].children
    assert upcoming.read_new_events() == {}, "where it parts next was foreseen"
    assert upcoming.branch_steps(node, 0, 100) == ()
    assert upcoming.branch_steps(NodeId(below), 50, 100) == (70,)


def test_a_chain_gets_only_branch_points_inside_its_stages() -> None:
    story = Story()
    story.submit(({"lr": decay(50)}, 2), ({"lr": 0.1}, 100))
    frontier = Frontier(story.plan)
    frontier.refresh()
    head = frontier.most_urgent_head()
    assert head is not None
    spans = frontier.path(head)
    work = assign(frontier, spans, stages_of(story.plan, spans), 0)
    assert [(stage.start, stage.end) for stage in work.stages] == [(0, 2), (2, 100)]
    assert work.branches_inside == ((), (50,))
    assert type(work).from_json(work.to_json()) == work


def test_a_state_at_which_a_waiting_trial_resumes_counts_for_it() -> None:
    """Of two states of a trunk with the same cost, the one that no trial would resume from goes first."""
    trunk = Trunk(keep_every=10)
    trunk.add(decay(52), 2)
    trunk.add(0.1, 100)
    trunk.simulator.run()
    order = [kept.step for kept in deletion_order(trunk.simulator.plan, Costs())]
    assert order.index(52) > max(order.index(step) for step in trunk.kept_steps() if step != 52)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asha", "hyperband", "async_hyperband"])
def test_less_is_trained_twice(kind: str) -> None:
    """On one slot; the rest are trials that were unknown when others passed the place where they part."""
    assert 2 * twice(kind, keeps_branches=True) <= twice(kind, keeps_branches=False)


def twice(kind: str, *, keeps_branches: bool) -> int:
    """The steps that were trained more than once, in a few studies."""
    found = 0
    for seed in range(6):
        study = spec(KINDS[kind] | {"sampling_seed": seed}, space=SHARING)
        world = simulator(study, slots=1, name=STUDY, keeps_branches=keeps_branches)
        world.run()
        end = world.plan.studies[STUDY]
        found += end.executed - end.unique
    return found
