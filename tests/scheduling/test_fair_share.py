"""Shares by hand and by random worlds: the due share of each study, and its slots."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from fractions import Fraction
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.scheduling.demands import Need
from app.scheduling.fair_share import ShareRequest, critical_path, fair_share, share_requests, shares, slots_used
from app.scheduling.frontier import Frontier
from app.simulation.pace import even_packs
from app.simulation.simulator import Simulator
from tests.plans import METRIC, OPENED, Story, max_examples, study_of

A, B, C = (StudyId(name) for name in "abc")


@pytest.mark.parametrize(
    ("slots", "wanted", "expected"),
    [
        (8, {A: ShareRequest(9), B: ShareRequest(9)}, {A: 4, B: 4}),
        (8, {A: ShareRequest(1), B: ShareRequest(9), C: ShareRequest(9)}, {A: 1, B: 3.5, C: 3.5}),
        (9, {A: ShareRequest(9, weight=2), B: ShareRequest(9)}, {A: 6, B: 3}),
        (9, {A: ShareRequest(9, weight=2, cap=3), B: ShareRequest(9)}, {A: 3, B: 6}),
        (9, {A: ShareRequest(2), B: ShareRequest(3)}, {A: 2, B: 3}),
        (4, {A: ShareRequest(3, priority=2), B: ShareRequest(9), C: ShareRequest(9)}, {A: 3, B: 0.5, C: 0.5}),
        (4, {A: ShareRequest(9, priority=2), B: ShareRequest(9)}, {A: 4, B: 0}),
        (4, {}, {}),
    ],
)
def test_water_filling(slots: int, wanted: dict[StudyId, ShareRequest], expected: dict[StudyId, float]) -> None:
    assert shares(slots, wanted) == pytest.approx(expected)


CLAIMS = st.builds(
    ShareRequest,
    demand=st.integers(0, 80),
    weight=st.floats(0.1, 10) | st.sampled_from([5e-324, 1e-17, 1e16, 1e308]),
    cap=st.one_of(st.just(inf), st.integers(1, 40)),
    priority=st.sampled_from([1.0, 1.0, 2.0]),
)


@max_examples(200)
@given(slots=st.integers(1, 64), found=st.lists(CLAIMS, min_size=1, max_size=8))
def test_no_study_could_have_more_without_one_that_has_less_for_its_weight(
    slots: int, found: list[ShareRequest]
) -> None:
    wanted = {StudyId(str(number)): claim for number, claim in enumerate(found)}
    due = shares(slots, wanted)
    assert sum(due.values()) == pytest.approx(min(slots, sum(min(each.demand, each.cap) for each in found)))
    for study, claim in wanted.items():
        assert due[study] <= min(claim.demand, claim.cap) + 1e-9
        if due[study] < min(claim.demand, claim.cap) - 1e-6:
            for other, theirs in wanted.items():
                assert theirs.priority >= claim.priority or due[other] == pytest.approx(0, abs=1e-6)
                if theirs.priority == claim.priority:
                    ratio = Fraction(claim.weight) / Fraction(theirs.weight)
                    assert Fraction(max(0.0, due[other] - 1e-6)) * ratio <= due[study] + 1e-6


# --------------------------------------------------------------------------------------------------------- the policy


class Slots:
    """Studies on one plan, and slots that take what the policy says and end in any order."""

    def __init__(self, seed: int, slots: int, studies: list[dict[str, Any]]) -> None:
        self.rng, self.slots = Random(seed), slots
        self.story = Story()
        for number, fields in enumerate(studies):
            trials = [({"h": f"{number}/{trial}"}, self.rng.randint(1, 30)) for trial in range(fields.pop("trials"))]
            self.story.submit(*trials, name=f"study-{number}", **fields)
        self.frontier = Frontier(self.story.plan)
        self.frontier.refresh()
        self.now, self.ends = 0.0, dict[str, float]()
        self.held: deque[tuple[float, Counter[StudyId], dict[StudyId, float]]] = deque()

    def fill(self) -> None:
        while len(self.story.plan.chains) < self.slots and (choice := fair_share([self.frontier])):
            chain = self.story.assign_spans(choice[1])
            self.ends[chain.id] = self.now + self.rng.uniform(0.2, 9) * chain.stages[-1].end
            self.frontier.refresh()

    def finish_one(self) -> None:
        """The next chain ends; each study's slots until then, and its due share, are noted."""
        due = shares(self.slots, share_requests([self.frontier], self.slots))
        first = min(self.ends, key=lambda chain: self.ends[chain])
        end = self.ends.pop(first)
        self.held.append((end - self.now, slots_used([self.frontier]), due))
        self.now = end
        self.story.finish(self.story.plan.chains[first])  # type: ignore[index]
        self.frontier.refresh()

    def check_window(self) -> None:
        """Over the last 20 stages no study had 5 % of the slots more or less than was due."""
        if len(self.held) > 20:
            self.held.popleft()
        time = sum(each[0] for each in self.held)
        for study in self.story.plan.studies:
            had = sum(took * used[study] for took, used, _ in self.held) / time
            due = sum(took * share.get(study, 0.0) for took, _, share in self.held) / time
            assert abs(had - due) <= 0.05 * self.slots


STUDIES = st.lists(
    st.fixed_dictionaries(
        {
            "trials": st.sampled_from([3, 20, 60, 100]),
            "weight": st.sampled_from([1.0, 1.0, 2.0, 5.0]),
            "priority": st.sampled_from([1.0, 1.0, 1.0, 2.0]),
        },
        optional={"max_slots": st.sampled_from([2, 10])},
    ),
    min_size=8,
    max_size=8,
)


@pytest.mark.slow
@max_examples(8)
@given(seed=st.integers(0, 10**6), studies=STUDIES)
def test_shares_are_within_five_percent_over_any_twenty_stages(seed: int, studies: list[dict[str, Any]]) -> None:
    """Eight studies on 64 slots, with stages of any length that end in any order."""
    world = Slots(seed, 64, [dict(fields) for fields in studies])
    world.fill()
    while world.ends:
        world.finish_one()
        world.fill()
        if len(world.held) >= 20:
            world.check_window()


def test_with_one_study_it_is_the_critical_path() -> None:
    story = Story()
    early = {"family": "values", "values": [1, 2], "milestones": [4]}
    story.submit(({"h": 1}, 10), ({"h": early}, 30), ({"h": 3}, 20))
    frontier = Frontier(story.plan)
    frontier.refresh()
    one, other = fair_share([frontier]), critical_path([frontier])
    assert one and other and one[1] == other[1]


def test_a_shared_stage_is_charged_to_the_study_it_was_chosen_for() -> None:
    """The only work of the small study begins with a trunk of the large one: it does not starve behind it."""
    story = Story()
    early = {"family": "values", "values": [1, 2], "milestones": [4]}
    large = story.submit(({"h": 1}, 500), *(({"h": number}, 1000) for number in range(2, 9)))
    small = story.submit(({"h": early}, 8))
    frontier = Frontier(story.plan)
    frontier.refresh()
    chosen = fair_share([frontier])
    assert chosen is not None
    story.assign_spans(chosen[1])
    frontier.refresh()
    again = fair_share([frontier])
    assert again is not None
    payers = {chain.stages[0].study for chain in story.plan.chains.values()}
    assert payers | {again[1][0].study} == {large, small}


def test_a_slot_that_trains_several_trials_at_once_is_one_of_those_a_study_may_have() -> None:
    """Eight trials in two packs of four, though there are four slots."""
    world = Simulator(slots=4, measure=lambda node, step: {METRIC: 0.5}, policy=fair_share, profile=even_packs(1.0))
    spec = study_of([({"lr": 0.1 * number}, 10) for number in range(1, 9)]).to_json() | {"max_slots": 2}
    world.give(c.SubmitStudy(plan=replace(OPENED, packing=4), study=A, spec=spec, at=0.0))
    assert world.run() == 10
    given = [event.slot for event in world.events if isinstance(event, e.ChainAssigned)]
    assert sorted(Counter(given).values()) == [4, 4]


def test_a_small_study_is_not_kept_waiting_by_a_large_one() -> None:
    """Without preemption it waits for one stage to end, and no longer."""
    world = Simulator(slots=2, measure=lambda node, step: {METRIC: 0.5}, policy=fair_share)
    spec: dict[str, Any] = {"metric": METRIC, "mode": "max", "tuner": {"kind": "external"}, "trainer": "x", "name": "n"}
    for name, trials in ((A, 400), (B, 1)):
        world.give(c.SubmitStudy(plan=OPENED, study=name, spec=spec, at=0.0))
        for number in range(trials):
            world.give(c.AddTrial(study=name, hp={"h": f"{name}/{number}"}, steps=10))
    while world.plan.studies[B].active:
        world.advance()
    assert world.now <= 20


def test_choosing_looks_at_no_more_for_more_trials(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of nodes that are looked at for a decision does not grow with the study."""

    def looks(trials: int) -> int:
        story = Story()
        for number in range(8):
            story.submit(*(({"h": f"{number}/{trial}"}, 10) for trial in range(trials)))
        frontier, seen = Frontier(story.plan), list[str]()
        frontier.refresh()
        needs = frontier.demands.needs

        def look(node: Node) -> list[Need]:
            seen.append(node.id)
            return needs(node)

        monkeypatch.setattr(frontier.demands, "needs", look)
        for _ in range(5):
            choice = fair_share([frontier])
            assert choice is not None
            story.assign_spans(choice[1])
            frontier.refresh()
        return len(seen)

    assert looks(200) == looks(10)


def test_the_facts_of_a_chain_name_the_study_it_was_chosen_for(story: Story) -> None:
    story.submit(({"h": 1}, 10))
    second = story.submit(({"h": 1}, 10))
    frontier = Frontier(story.plan)
    frontier.refresh()
    head = frontier.most_urgent_head(study=second)
    assert head is not None
    chain = story.assign_spans(frontier.path(head, second))
    assert chain.stages[0].study == second
    assert isinstance(story.events[-1], e.ChainAssigned)
