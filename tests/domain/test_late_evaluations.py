"""Evaluations that a study's `eval_every` asks for on steps that were trained before it came."""

from __future__ import annotations

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.stage_tree import build_stage_tree
from app.domain.terms import StudyId
from app.scheduling.frontier import Frontier
from tests.plans import Story, steps

EARLY = steps(1, 2, milestones=[4])


@pytest.fixture
def node(story: Story) -> Node:
    """Trained to step 10 for another study, with its state kept at 2, 4, 7 and 10."""
    before = story.submit(({"h": 1}, 10))
    (node,) = story.path(before)
    chain = story.assign((node, 0, 10))
    for step in (2, 4, 7):
        story.keep(node.id, step, intermediate=True)
    story.finish(chain)
    return node


def late(story: Story, **fields: object) -> StudyId:
    return story.submit(({"h": 1}, 10), eval_every=2, **fields)


def test_it_is_evaluated_where_the_state_is_kept_and_nothing_is_trained(story: Story, node: Node) -> None:
    study = late(story)
    assert [(stage.start, stage.end, stage.ready) for stage in build_stage_tree(story.plan)] == [
        (2, 2, True),
        (4, 4, True),
    ]
    assert story.trial(study).state == "active", "it has its result, and not yet its curve"
    assert [line.kind for line in story.plan.studies[study].history] == ["start", "result"]
    story.drain(Frontier(story.plan))
    assert [step for step, _ in story.plan.curve(story.trial(study))] == [2, 4, 10]
    assert story.trial(study).state == "completed"
    assert (story.plan.studies[study].active, story.plan.studies[study].executed) == (0, 0)
    assert [line.kind for line in story.plan.studies[study].history] == ["start", "result"]


def test_what_goes_wrong_there_costs_no_trial_its_result(story: Story, node: Node) -> None:
    study = late(story)
    story.evaluate(node.id, 2, None)
    assert story.trial(study).unevaluated == {4}
    chain = story.assign((node, 4, 4), study=study)
    story.happen(e.StageFailed(chain=chain.id, index=0, step=3, kind="exception", error="Boom", seconds=0.0))
    assert story.trial(study).state == "completed"
    assert build_stage_tree(story.plan) == []


def test_nobody_trains_only_to_evaluate(story: Story, node: Node) -> None:
    study = late(story)
    story.drop(node.id, 2)
    assert story.trial(study).unevaluated == {4}
    story.drop(node.id, 4)
    assert story.trial(study).state == "completed"
    assert build_stage_tree(story.plan) == []


def test_a_checkpoint_under_way_counts_until_it_fails(story: Story) -> None:
    first = story.submit(({"h": EARLY}, 8))
    trunk, _ = story.path(first)
    chain = story.assign((trunk, 0, 4))
    story.happen(e.StageCompleted(chain=chain.id, index=0, seconds=1.0))
    study = story.submit(({"h": EARLY}, 8), eval_every=4)
    assert story.trial(study).unevaluated == {4}
    story.end(chain, "lost")
    assert story.trial(study).unevaluated == set()


def test_a_result_is_more_than_an_evaluation(story: Story) -> None:
    """A state that is kept at the step of a result, and lost before it was evaluated, is trained anew."""
    first = story.submit(({"h": 1}, 10))
    (node,) = story.path(first)
    chain = story.assign((node, 0, 10))
    study = story.submit(({"h": 1}, 4), eval_every=4)
    story.keep(node.id, 4)
    assert story.trial(study).unevaluated == set()
    story.drop(node.id, 4)
    story.end(chain, "lost")
    story.drain(Frontier(story.plan))
    assert [line.kind for line in story.plan.studies[study].history] == ["start", "result"]
    assert story.trial(study).state == "completed"


def test_an_end_of_the_trial_is_an_end_of_its_evaluations(story: Story, node: Node) -> None:
    cancelled, over = late(story), late(story)
    story.give(c.CancelTrial(study=cancelled, trial=0))
    story.give(c.CancelStudy(study=over, at=1.0))
    assert story.trial(over).state == "completed", "it has its result"
    assert not node.waiting


def test_a_trial_that_goes_on_is_evaluated_past_where_it_was(story: Story, node: Node) -> None:
    study = story.submit(({"h": 1}, 2), eval_every=4)
    assert story.trial(study).unevaluated == set()
    story.give(c.ApplyTunerActions(study=study, actions=(c.Extend(trial=0, steps=12),)))
    assert story.trial(study).unevaluated == {4}


def test_a_chain_under_way_learns_of_evaluations_ahead(story: Story) -> None:
    story.submit(({"h": 1}, 10))
    frontier = Frontier(story.plan)
    frontier.refresh()
    chain = story.take(frontier)
    assert chain is not None
    late(story)
    frontier.refresh()
    assert frontier.extra_eval_steps(chain) == [2, 4, 6, 8]
