"""Evaluations that `eval_every` requests at steps that were trained before the study was submitted."""

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


def submit_late_study(story: Story, **fields: object) -> StudyId:
    return story.submit(({"h": 1}, 10), eval_every=2, **fields)


def test_late_evaluations_use_kept_states_without_training(story: Story, node: Node) -> None:
    study = submit_late_study(story)
    assert [(stage.start, stage.end, stage.ready) for stage in build_stage_tree(story.plan)] == [
        (2, 2, True),
        (4, 4, True),
    ]
    assert story.trial(study).state == "active", "it has its result, but not its curve"
    assert [line.kind for line in story.plan.studies[study].history] == ["start", "result"]
    story.drain(Frontier(story.plan))
    assert [step for step, _ in story.plan.curve(story.trial(study))] == [2, 4, 10]
    assert story.trial(study).state == "completed"
    assert (story.plan.studies[study].active, story.plan.studies[study].executed) == (0, 0)
    assert [line.kind for line in story.plan.studies[study].history] == ["start", "result"]


def test_a_failed_late_evaluation_keeps_the_trials_result(story: Story, node: Node) -> None:
    study = submit_late_study(story)
    story.evaluate(node.id, 2, None)
    assert story.trial(study).unevaluated == {4}
    chain = story.assign((node, 4, 4), study=study)
    story.happen(e.StageFailed(chain=chain.id, index=0, step=3, kind="exception", error="Boom", seconds=0.0))
    assert story.trial(study).state == "completed"
    assert build_stage_tree(story.plan) == []


def test_no_step_is_trained_for_an_evaluation_only(story: Story, node: Node) -> None:
    study = submit_late_study(story)
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


def test_a_lost_state_of_a_result_is_trained_anew(story: Story) -> None:
    """The state at the step of a result was lost before its evaluation."""
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
    cancelled, over = submit_late_study(story), submit_late_study(story)
    story.give(c.CancelTrial(study=cancelled, trial=0))
    story.give(c.CancelStudy(study=over, at=1.0))
    assert story.trial(over).state == "completed", "it has its result"
    assert not node.waiting


def test_an_extended_trial_is_evaluated_beyond_its_earlier_end(story: Story, node: Node) -> None:
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
    submit_late_study(story)
    frontier.refresh()
    assert frontier.extra_eval_steps(chain) == [2, 4, 6, 8]
