"""Algorithm 1 by example. The tests of the frontier check it after any history."""

from __future__ import annotations

from app.domain import commands as c
from app.domain.stage_tree import TreeStage, build_stage_tree, critical_path_steps
from tests.plans import Story, steps

LONG = steps(1, 2, milestones=[10])
SHORT = steps(1, 3, milestones=[4])


def test_the_example_of_the_paper(story: Story) -> None:
    """TreeML figures 4.2 and 4.3: four nodes, checkpoints of A at 100 and 200 and of E at 250."""
    study = story.submit(
        ({"h": "A"}, 150),
        ({"h": steps("A", "B", "C", milestones=[100, 200])}, 300),
        ({"h": steps("A", "E", milestones=[200])}, 250),
        ({"h": steps("A", "E", milestones=[200])}, 300),
    )
    a, b, c_ = story.path(study, 1)
    _, e_ = story.path(study, 3)
    story.keep(a.id, 100)
    story.keep(a.id, 200)
    story.keep(e_.id, 250)
    story.evaluate(e_.id, 250)
    assert build_stage_tree(story.plan) == [
        TreeStage(a.id, 100, 150, parent=None, ready=True),
        TreeStage(b.id, 100, 200, parent=None, ready=True),
        TreeStage(c_.id, 200, 300, parent=(b.id, 200), ready=False),
        TreeStage(e_.id, 250, 300, parent=None, ready=True),
    ]
    assert critical_path_steps(build_stage_tree(story.plan)) == 200


def test_a_shared_stage_is_cut_at_branches_and_requests(story: Story) -> None:
    study = story.submit(({"h": LONG}, 20), ({"h": SHORT}, 20), ({"h": 1}, 7))
    trunk, long = story.path(study, 0)
    _, short = story.path(study, 1)
    assert set(build_stage_tree(story.plan)) == {
        TreeStage(trunk.id, 0, 4, parent=None, ready=True),
        TreeStage(trunk.id, 4, 7, parent=(trunk.id, 4), ready=False),
        TreeStage(trunk.id, 7, 10, parent=(trunk.id, 7), ready=False),
        TreeStage(long.id, 10, 20, parent=(trunk.id, 10), ready=False),
        TreeStage(short.id, 4, 20, parent=(trunk.id, 4), ready=False),
    }
    assert critical_path_steps(build_stage_tree(story.plan)) == 20


def test_running_and_saving_steps_are_waited_for(story: Story) -> None:
    study = story.submit(({"h": LONG}, 20))
    trunk, long = story.path(study)
    chain = story.assign((trunk, 0, 10))
    waiting = [TreeStage(long.id, 10, 20, parent=None, ready=False)]
    assert build_stage_tree(story.plan) == waiting
    story.train(chain)
    assert build_stage_tree(story.plan) == waiting
    story.keep(trunk.id, 10)
    assert build_stage_tree(story.plan) == [TreeStage(long.id, 10, 20, parent=None, ready=True)]


def test_a_lost_chain_resumes_at_its_last_intermediate_checkpoint(story: Story) -> None:
    study = story.submit(({"h": LONG}, 20))
    trunk, long = story.path(study)
    chain = story.assign((trunk, 0, 10), (long, 10, 20))
    story.keep(trunk.id, 6, intermediate=True)
    story.end(chain, "lost", steps=8)
    assert build_stage_tree(story.plan) == [
        TreeStage(trunk.id, 6, 10, parent=None, ready=True),
        TreeStage(long.id, 10, 20, parent=(trunk.id, 10), ready=False),
    ]


def test_a_trained_step_is_only_evaluated_and_by_one_slot(story: Story) -> None:
    study = story.submit(({"h": 1}, 10))
    (node,) = story.path(study)
    story.keep(node.id, 5)
    story.give(c.AddTrial(study=study, hp={"h": 1}, steps=5))
    assert build_stage_tree(story.plan) == [
        TreeStage(node.id, 5, 5, parent=None, ready=True),
        TreeStage(node.id, 5, 10, parent=None, ready=True),
    ]
    story.assign((node, 5, 5))
    assert build_stage_tree(story.plan) == [TreeStage(node.id, 5, 10, parent=None, ready=True)]


def test_a_study_that_does_not_run_has_no_stages(story: Story) -> None:
    one, two = story.submit(({"h": 1}, 10)), story.submit(({"h": 1}, 5))
    (node,) = story.path(one)
    story.give(c.PauseStudy(study=one))
    assert build_stage_tree(story.plan) == [TreeStage(node.id, 0, 5, parent=None, ready=True)]
    story.give(c.PauseStudy(study=two))
    assert build_stage_tree(story.plan) == []
    story.give(c.ResumeStudy(study=one))
    story.give(c.CancelStudy(study=two, at=1.0))
    assert build_stage_tree(story.plan) == [TreeStage(node.id, 0, 10, parent=None, ready=True)]


def test_a_promotion_resumes_at_the_trials_last_step(story: Story) -> None:
    study = story.submit(({"h": 1}, 10))
    (node,) = story.path(study)
    story.finish(story.assign((node, 0, 10)))
    assert story.trial(study).state == "completed"
    story.give(c.ApplyTunerActions(study=study, actions=(c.Extend(trial=0, steps=30),)))
    assert story.trial(study).state == "active"
    assert build_stage_tree(story.plan) == [TreeStage(node.id, 10, 30, parent=None, ready=True)]
