"""A request for a step that a running stage has passed is outstanding at once; one that it has not, it serves."""

from __future__ import annotations

import pytest

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.search_plan import Chain, ChainProgress, Node
from app.domain.terms import ChainId, StateConflict
from app.scheduling.frontier import Frontier
from tests.plans import Story, steps

DECAY = steps(1, 2, milestones=[40])


@pytest.fixture
def story() -> Story:
    """A trunk of 1,000 steps, under way, with nothing kept yet."""
    story = Story()
    story.submit(({"h": 1}, 1000))
    return story


@pytest.fixture
def frontier(story: Story) -> Frontier:
    frontier = Frontier(story.plan)
    frontier.refresh()
    return frontier


@pytest.fixture
def trunk(story: Story, frontier: Frontier) -> Chain:
    chain = story.take(frontier)
    assert chain is not None
    return chain


def node_of(story: Story, chain: Chain) -> Node:
    return story.plan.nodes[chain.stages[0].node]


def ask(story: Story, frontier: Frontier, *asked: int, hp: object = 1) -> None:
    story.submit(*(({"h": hp}, step) for step in asked))
    frontier.refresh()


def test_passed_steps_begin_at_once_and_later_ones_are_served_in_passing(
    story: Story, frontier: Frontier, trunk: Chain
) -> None:
    frontier.set_progress(trunk.id, ChainProgress(60))
    ask(story, frontier, 20, 80)
    assert frontier.extra_eval_steps(trunk) == [80]
    late = story.take(frontier)
    assert late is not None
    assert [(stage.start, stage.end) for stage in late.stages] == [(0, 20)]
    frontier.refresh()
    assert story.take(frontier) is None
    assert frontier.extra_eval_steps(late) == []


def test_without_a_heartbeat_it_is_believed_to_be_ahead(story: Story, frontier: Frontier, trunk: Chain) -> None:
    ask(story, frontier, 20)
    assert story.take(frontier) is None
    assert frontier.extra_eval_steps(trunk) == [20]
    frontier.set_progress(trunk.id, ChainProgress(19))
    frontier.refresh()
    assert story.take(frontier) is None
    frontier.set_progress(trunk.id, ChainProgress(20))
    frontier.refresh()
    assert story.take(frontier) is not None, "the chain passed the step before it had the request"


def test_results_and_states_made_in_passing_are_waited_for(story: Story, frontier: Frontier, trunk: Chain) -> None:
    ask(story, frontier, 20)
    frontier.set_progress(trunk.id, ChainProgress(25, frozenset({20})))
    frontier.refresh()
    assert story.take(frontier) is None
    node = node_of(story, trunk)
    story.evaluate(node.id, 20)
    story.keep(node.id, 20)
    frontier.refresh()
    assert story.take(frontier) is None, "it is answered"


def test_the_end_of_a_stage_is_never_passed(story: Story, frontier: Frontier, trunk: Chain) -> None:
    frontier.set_progress(trunk.id, ChainProgress(1000))
    ask(story, frontier, 1000)
    assert story.take(frontier) is None


def test_a_late_branch_begins_at_the_latest_checkpoint(story: Story, frontier: Frontier, trunk: Chain) -> None:
    node = node_of(story, trunk)
    story.keep(node.id, 30, intermediate=True)
    frontier.set_progress(trunk.id, ChainProgress(60))
    ask(story, frontier, 50, hp=DECAY)
    late = story.take(frontier)
    assert late is not None
    assert [(stage.node == node.id, stage.start, stage.end) for stage in late.stages] == [
        (True, 30, 40),
        (False, 40, 50),
    ]


def test_requests_behind_a_late_stage_are_served_by_it(story: Story, frontier: Frontier, trunk: Chain) -> None:
    frontier.set_progress(trunk.id, ChainProgress(60))
    ask(story, frontier, 50)
    late = story.take(frontier)
    assert late is not None
    frontier.refresh()
    ask(story, frontier, 10, 70)
    assert story.take(frontier) is None
    assert (frontier.extra_eval_steps(late), frontier.extra_eval_steps(trunk)) == ([10], [70])


def test_two_ticks_at_once_do_not_both_train_it(story: Story, frontier: Frontier, trunk: Chain) -> None:
    frontier.set_progress(trunk.id, ChainProgress(60))
    ask(story, frontier, 20)
    progress = dict(frontier.progress)
    late = story.take(frontier)
    assert late is not None
    again = c.AssignChain(chain=ChainId("again"), slot="gpu1", stages=late.stages, at=0.0, progress=progress)
    with pytest.raises(StateConflict, match="being trained already"):
        decide(story.plan, again)


def test_the_progress_of_an_ended_chain_is_forgotten(story: Story, frontier: Frontier, trunk: Chain) -> None:
    frontier.set_progress(trunk.id, ChainProgress(60))
    story.end(trunk, "lost", steps=60)
    frontier.refresh()
    assert frontier.progress == {}
    frontier.set_progress(trunk.id, ChainProgress(70))
    assert frontier.progress == {}
    again = story.take(frontier)
    assert again is not None and again.stages[0].start == 0


def test_all_work_completes_at_any_progress_of_the_trunk(story: Story, frontier: Frontier, trunk: Chain) -> None:
    frontier.set_progress(trunk.id, ChainProgress(500))
    ask(story, frontier, 20, 300, 700, hp=DECAY)
    story.drain(frontier)
    assert all(study.active == 0 for study in story.plan.studies.values())
