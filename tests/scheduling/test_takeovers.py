"""Which chain leaves its slot for another study, by hand."""

from __future__ import annotations

from dataclasses import replace

from app.domain import events as e
from app.scheduling.fair_share import FairSharing, fair_share, share_requests, slots_used
from app.scheduling.frontier import Frontier
from app.scheduling.preemption import LEAST_SECONDS, Takeover, can_be_preempted, takeovers
from tests.plans import Story

LATER = 1000.0
TURN = 60.0


def fill_slots(story: Story, slots: int) -> tuple[Frontier, FairSharing]:
    frontier, balancing = Frontier(story.plan), FairSharing(TURN)
    frontier.refresh()
    for _ in range(slots):
        choice = fair_share([frontier])
        if choice is not None:
            story.assign_spans(choice[1])
        frontier.refresh()
    return frontier, balancing


def next_takeovers(frontier: Frontier, balancing: FairSharing, slots: int, *, now: float = LATER) -> list[Takeover]:
    frontier.refresh()
    balance = balancing.update(share_requests([frontier], slots), slots, now)
    return list(takeovers([frontier], balance, now, (), lambda takeover: True))


def test_half_a_slot_is_taken_after_a_turn_and_no_sooner() -> None:
    story = Story()
    large = story.submit(*(({"h": number}, 1000) for number in range(4)))
    frontier, balancing = fill_slots(story, 1)
    small = story.submit(({"h": "small"}, 10))
    assert next_takeovers(frontier, balancing, 1) == []
    balancing.record_use(slots_used([frontier]))
    assert next_takeovers(frontier, balancing, 1, now=LATER + TURN - 1) == []
    balancing.record_use(slots_used([frontier]))
    (found,) = next_takeovers(frontier, balancing, 1, now=LATER + TURN)
    assert (found.study, found.chain.stages[0].study) == (small, large)


def test_as_many_are_asked_as_are_due_and_those_that_were_asked_count() -> None:
    story = Story()
    story.submit(*(({"h": number}, 1000) for number in range(40)))
    frontier, balancing = fill_slots(story, 4)
    story.submit(*(({"h": f"small {number}"}, 10) for number in range(3)))
    found = next_takeovers(frontier, balancing, 4)
    assert len(found) == 2
    stopping = {each.chain.id for each in found}
    balance = balancing.update(share_requests([frontier], 4), 4, LATER)
    assert list(takeovers([frontier], balance, LATER, stopping, lambda takeover: True)) == []
    assert slots_used([frontier]).total() == 4


def test_no_chain_is_asked_whose_slot_is_of_no_use() -> None:
    story = Story()
    story.submit(*(({"h": number}, 1000) for number in range(40)))
    frontier, balancing = fill_slots(story, 2)
    story.submit(({"h": "small"}, 10), ({"h": "too"}, 10))
    frontier.refresh()
    balance = balancing.update(share_requests([frontier], 2), 2, LATER)
    assert list(takeovers([frontier], balance, LATER, (), lambda takeover: False)) == []


def test_a_chain_that_the_waiting_study_needs_continues() -> None:
    """All that the large study trains is the trunk of the other one, too."""
    story = Story()
    story.submit(({"h": 1}, 1000))
    story.submit(({"h": 2}, 1000))
    frontier, balancing = fill_slots(story, 2)
    story.submit(({"h": 1}, 500), ({"h": 2}, 500), ({"h": 3}, 10), priority=2)
    assert next_takeovers(frontier, balancing, 2) == []


def test_a_chain_with_a_large_state_is_left_alone_for_longer() -> None:
    story = Story()
    study = story.submit(({"h": 1}, 1000))
    chain = story.assign((story.path(study)[0], 0, 1000))
    assert can_be_preempted(story.plan, chain, LEAST_SECONDS)
    assert not can_be_preempted(story.plan, chain, LEAST_SECONDS / 2)
    node = story.path(study)[0].id
    story.happen(e.CheckpointKept(node=node, step=10, key="k", sha256="", size=10**9, intermediate=True))
    assert not can_be_preempted(story.plan, chain, 199.0), "ten seconds to keep and ten to load are a tenth of 200"
    assert can_be_preempted(story.plan, chain, 200.0)


def test_an_evaluation_keeps_its_slot_however_long_it_takes() -> None:
    """It has no step to resume from: under load, three studies stopped each other's averages every turn, for ever."""
    story = Story()
    story.submit(({"h": 1}, 100))
    _frontier, _ = fill_slots(story, 1)
    chain = next(iter(story.plan.chains.values()))
    training, stage = chain.stages[0], replace(chain.stages[0], start=100, end=100)
    assert can_be_preempted(story.plan, chain, LATER)
    chain.stages = (stage,)
    assert not can_be_preempted(story.plan, chain, LATER)
    chain.stages = (stage, training)
    assert not can_be_preempted(story.plan, chain, LATER)
