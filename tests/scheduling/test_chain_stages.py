"""From spans to a chain: where it evaluates, who pays, whose values it trains with."""

from __future__ import annotations

from collections import Counter

import pytest

from app.domain import commands as c
from app.domain.events import Stage
from app.domain.outstanding_requests import evaluations
from app.domain.search_plan import Node
from app.scheduling.demands import Need
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import branch_points, lead_trial, stages_of
from tests.plans import Story, steps

EARLY = steps(1, 2, milestones=[4])


def test_a_chain_evaluates_at_requests_and_eval_every(story: Story) -> None:
    study = story.submit(({"h": 1}, 7), ({"h": 1}, 20), eval_every=5)
    (node,) = story.path(study)
    assert evaluations(story.plan, node, 0, 20) == [5, 7, 10, 15, 20]
    assert evaluations(story.plan, node, 5, 10) == [7, 10], "the step before the first is not among those trained"
    assert evaluations(story.plan, node, 20, 20) == [20]


def test_every_study_that_passes_has_its_own_interval_as_far_as_it_goes(story: Story) -> None:
    short = story.submit(({"h": 1}, 9), eval_every=4)
    story.submit(({"h": 1}, 20), eval_every=6)
    (node,) = story.path(short)
    assert evaluations(story.plan, node, 0, 20) == [4, 6, 8, 9, 12, 18, 20]
    story.give(c.PauseStudy(study=short))
    assert [step for step in evaluations(story.plan, node, 0, 20) if step != 9] == [6, 12, 18, 20]


def test_nothing_is_evaluated_twice(story: Story) -> None:
    study = story.submit(({"h": 1}, 20), eval_every=5)
    (node,) = story.path(study)
    chain = story.assign((node, 0, 20))
    for step in (5, 10):
        story.evaluate(node.id, step)
    story.end(chain, "lost", steps=12)
    assert evaluations(story.plan, node, 0, 20) == [15, 20]


def test_a_step_belongs_to_the_node_that_trains_it(story: Story) -> None:
    study = story.submit(({"h": EARLY}, 8), eval_every=4)
    trunk, branch = story.path(study)
    assert evaluations(story.plan, trunk, 0, 4) == [4]
    assert evaluations(story.plan, branch, 4, 8) == [8]


def test_a_chain_trains_for_the_first_trial_of_the_most_important_study(story: Story) -> None:
    story.submit(({"h": EARLY}, 8), ({"h": 1}, 8))
    urgent = story.submit(({"h": 3}, 8), ({"h": 1}, 9), ({"h": 1}, 8), priority=2)
    (node,) = story.path(urgent, 1)
    assert lead_trial(story.plan, Span(node.id, 0, 8)) == (urgent, 2)
    assert lead_trial(story.plan, Span(node.id, 0, 4)) == (urgent, 1)
    story.give(c.PauseStudy(study=urgent))
    assert lead_trial(story.plan, Span(node.id, 0, 8)) == ("study-0", 1)


def test_a_lead_is_found_below_a_branch_however_deep(story: Story) -> None:
    deep = {"family": "cyclic", "init": 0.0, "max": 1.0, "up": 1, "down": 1}
    study = story.submit(({"h": deep}, 3000))
    node = story.path(study)[0]
    assert lead_trial(story.plan, Span(node.id, 0, 1)) == (study, 0)


def test_a_chain_goes_down_the_longest_path_and_evaluates_on_its_way(story: Story) -> None:
    study = story.submit(({"h": EARLY}, 8), ({"h": 1}, 6), eval_every=3)
    trunk, branch = story.path(study)
    frontier = Frontier(story.plan)
    frontier.refresh()
    assert frontier.most_urgent_head() == (trunk.id, 0)
    assert stages_of(story.plan, frontier.path((trunk.id, 0))) == (
        Stage(node=trunk.id, start=0, end=4, study=study, evaluate=(3,)),
        Stage(node=branch.id, start=4, end=8, study=study, evaluate=(6, 8)),
    )


def test_a_chain_under_way_learns_of_new_places(story: Story) -> None:
    study = story.submit(({"h": 1}, 20))
    (node,) = story.path(study)
    frontier = Frontier(story.plan)
    frontier.refresh()
    chain = story.take(frontier)
    assert chain is not None
    assert frontier.extra_eval_steps(chain) == []
    story.give(c.AddTrial(study=study, hp={"h": EARLY}, steps=8))
    story.give(c.AddTrial(study=study, hp={"h": 1}, steps=12))
    frontier.refresh()
    assert frontier.extra_eval_steps(chain) == [4, 12]
    story.keep(node.id, 4)
    story.evaluate(node.id, 12)
    frontier.refresh()
    assert frontier.extra_eval_steps(chain) == []


def test_a_node_is_read_once_for_all_its_branch_points(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at each of a thousand for each of a thousand stages took seconds, in which the scheduler did nothing."""
    trunk, *_ = story.path(story.submit(*(({"h": steps(1, 2, milestones=[at])}, 60) for at in range(1, 50))))
    frontier, looks = Frontier(story.plan), Counter[str]()
    frontier.refresh()
    needs = frontier.demands.needs

    def count_needs(node: Node) -> list[Need]:
        looks[node.id] += 1
        return needs(node)

    spans = frontier.path((trunk.id, 0))
    monkeypatch.setattr(frontier.demands, "needs", count_needs)
    assert branch_points(frontier, spans) == tuple(range(48)), "after the last step there is no branch"
    assert set(looks.values()) == {1}
