"""The way to a state: nodes before hold what belongs to other trials, beyond the step at which the way leaves them."""

from __future__ import annotations

from plans import METRIC, Story, steps

from app.domain.evolve import evolve
from app.scheduling.proofs import handover
from app.simulation.what_if import RecordedResults


def test_a_proof_begins_on_the_way_to_what_it_compares() -> None:
    story = Story()
    study = story.submit(({"lr": steps(1.0, 2.0, 3.0, milestones=[4, 9])}, 12), ({"lr": 1.0}, 12))
    trunk, branch, leaf = story.path(study)
    story.finish(story.assign((trunk, 0, 4), (trunk, 4, 9), (trunk, 9, 12)))
    story.finish(story.assign((branch, 4, 9), (leaf, 9, 12)))
    first = handover(story.plan, "cpu", is_idle=True)
    assert first is not None and first.resume is not None
    assert (first.stages[0].node, first.resume.node) == (leaf.id, branch.id)
    story.drop(branch.id, 9)
    then = handover(story.plan, "cpu", is_idle=True)
    assert then is not None and then.resume is not None
    assert then.stages[0].node == then.resume.node == trunk.id


def test_a_result_that_was_not_measured_is_the_last_one_on_the_way() -> None:
    story = Story()
    study = story.submit(({"lr": steps(1.0, 2.0, milestones=[4])}, 8), ({"lr": 1.0}, 8))
    trunk, branch = story.path(study)
    story.evaluate(trunk.id, 3, 0.3)
    story.evaluate(trunk.id, 7, 0.7)
    recorded = RecordedResults(story.plan, story.plan.studies[study])
    for event in story.events:
        evolve(recorded.world, event)
    assert recorded(branch, 8) == {METRIC: 0.3}
    assert recorded(trunk, 8) == {METRIC: 0.7}
