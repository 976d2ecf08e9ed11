"""Which study gets whose slot, when, and at which cost, on virtual slots; `test_takeovers` has the same by hand."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Study
from app.domain.terms import ChainOutcome, StudyId
from app.scheduling.fair_share import ShareRequest, fair_share, shares
from app.scheduling.preemption import LEAST_SECONDS
from app.simulation.simulator import TICK_SECONDS, Simulator
from tests.plans import METRIC, OPENED, max_examples

A, B, C = (StudyId(name) for name in "abc")
TURN = 60.0


class World:
    """Studies of single trials on virtual slots."""

    def __init__(self, slots: int, seed: int | None = None, turn_seconds: float | None = TURN) -> None:
        def seconds(stage: e.Stage, number: int) -> float:
            pace = 1.0 if seed is None else Random(f"{seed}/{stage.node}").uniform(0.2, 9)
            return (stage.end - stage.start) * pace

        self.simulator = Simulator(
            slots=slots,
            measure=lambda node, step: {METRIC: 0.5},
            policy=fair_share,
            seconds=seconds,
            turn_seconds=turn_seconds,
        )

    @property
    def now(self) -> float:
        return self.simulator.now

    def submit(self, name: StudyId, trials: int, steps: int, **fields: Any) -> Study:
        spec = {"metric": METRIC, "mode": "max", "tuner": {"kind": "external"}, "trainer": "x", "name": "n", **fields}
        self.simulator.give(c.SubmitStudy(plan=OPENED, study=name, spec=spec, at=self.now))
        for number in range(trials):
            self.simulator.give(c.AddTrial(study=name, hp={"h": f"{name}/{number}"}, steps=steps))
        return self.simulator.plan.studies[name]

    def finish(self, study: Study) -> float:
        """How long it takes from here until all its trials are done."""
        begun_at = self.now
        while study.active:
            assert self.simulator.advance()
        return self.now - begun_at

    def busy_slots(self) -> Counter[StudyId]:
        chains = self.simulator.plan.chains.values()
        return Counter(chain.stages[chain.index].study for chain in chains if not chain.is_trained)

    def preemptions(self) -> int:
        ended = (event for event in self.simulator.events if isinstance(event, e.ChainEnded))
        return sum(event.outcome == ChainOutcome.STOPPED for event in ended)

    def nothing_was_lost(self) -> bool:
        studies = self.simulator.plan.studies.values()
        return sum(study.executed for study in studies) == sum(study.unique for study in studies)


# ------------------------------------------------------------------------------------------------- two or three studies


@pytest.mark.slow
@pytest.mark.parametrize("trials", [1, 2, 4, 9])
def test_a_small_study_ends_within_little_more_than_twice_its_time_alone(trials: int) -> None:
    """Two equal studies on two slots, the other one 400 times larger, whose chains would last for ever."""
    alone, world = World(2), World(2)
    time_alone = alone.finish(alone.submit(B, trials, 50))
    world.submit(A, trials, 50 * 400)
    world.simulator.run_until(100)
    small = world.submit(B, trials, 50)
    assert world.finish(small) <= 2.2 * time_alone
    world.simulator.run()
    assert world.nothing_was_lost()
    assert world.preemptions() == (trials > 1), "the slot goes back when the small study is done"


def test_shares_below_a_slot_take_turns() -> None:
    world = World(1)
    for name in (A, B, C):
        world.submit(name, 1, 10_000)
    world.simulator.run_until(18 * TURN)
    done = [study.executed for study in world.simulator.plan.studies.values()]
    assert sum(done) == pytest.approx(18 * TURN, abs=2.5 * TURN), "steps in progress are not counted yet"
    assert world.busy_slots().total() == 1
    begun = Counter(event.stages[0].study for event in world.simulator.events if isinstance(event, e.ChainAssigned))
    assert max(begun.values()) - min(begun.values()) <= 1
    assert 6 <= begun.total() <= 18, "turns last for about a minute"


def test_turns_go_by_weight() -> None:
    world = World(1)
    for name, weight in ((A, 3), (B, 1)):
        world.submit(name, 1, 20_000, weight=weight)
    world.simulator.run_until(100 * TURN)
    first, second = (study.executed for study in world.simulator.plan.studies.values())
    assert first / second == pytest.approx(3, rel=0.25)


def test_a_higher_class_takes_all_that_it_can_use_and_leaves_it_when_it_is_done() -> None:
    world = World(3)
    world.submit(A, 40, 1000)
    world.simulator.run_until(50)
    urgent = world.submit(B, 2, 30, priority=2)
    assert world.finish(urgent) <= 30 + 1, "from the next step on"
    world.simulator.run_until(world.now + 1)
    assert world.busy_slots() == {A: 3}
    assert world.preemptions() == 2


def test_with_one_study_nothing_is_different() -> None:
    worlds = World(3, seed=1), World(3, seed=1, turn_seconds=None)
    for world in worlds:
        world.submit(A, 20, 30)
        world.simulator.run()
    assert worlds[0].simulator.events == worlds[1].simulator.events


# ----------------------------------------------------------------------------------------------------- many of them

STUDIES = st.lists(
    st.fixed_dictionaries(
        {
            "trials": st.sampled_from([3, 20, 60, 100]),
            "steps": st.integers(5, 60),
            "weight": st.sampled_from([1.0, 1.0, 2.0, 5.0]),
            "priority": st.sampled_from([1.0, 1.0, 1.0, 2.0]),
        },
        optional={"max_slots": st.sampled_from([2, 10])},
    ),
    min_size=8,
    max_size=8,
)


def claims_of(world: World, slots: int) -> dict[StudyId, ShareRequest]:
    """Each trial is one slot's work."""
    found = {}
    for study in world.simulator.plan.studies.values():
        spec, demand = study.spec, min(slots, study.active)
        found[study.id] = ShareRequest(demand, spec.weight, spec.max_slots or slots, spec.priority)
    return found


@pytest.mark.slow
@max_examples(6)
@given(seed=st.integers(0, 10**6), studies=STUDIES)
def test_shares_are_within_five_percent_over_any_twenty_stages(seed: int, studies: list[dict[str, Any]]) -> None:
    """Eight studies on 64 slots, whose stages are of any length and end in any order."""
    world, slots = World(64, seed), 64
    for number, fields in enumerate(studies):
        world.submit(StudyId(f"study-{number}"), fields["trials"], **{k: v for k, v in fields.items() if k != "trials"})
    held = deque[tuple[float, Counter[StudyId], dict[StudyId, float]]]()
    assert world.simulator.advance()
    while world.busy_slots():
        before, used, due = world.now, world.busy_slots(), shares(slots, claims_of(world, slots))
        if not world.simulator.advance():
            break
        held.append((world.now - before, used, due))
        if len(held) >= 20:
            _check_window(held, slots, [*world.simulator.plan.studies])
            held.popleft()
    assert world.nothing_was_lost()


def _check_window(
    held: deque[tuple[float, Counter[StudyId], dict[StudyId, float]]], slots: int, studies: list[StudyId]
) -> None:
    time = sum(each[0] for each in held)
    for study in studies:
        had = sum(took * used[study] for took, used, _ in held)
        due = sum(took * share[study] for took, _, share in held)
        assert abs(had - due) <= 0.05 * slots * time + 1e-9


@pytest.mark.slow
@max_examples(15)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 6),
    arrivals=st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 8), st.integers(1, 200), st.sampled_from([1.0, 1.0, 1.0, 2.0])),
        min_size=2,
        max_size=5,
    ),
)
def test_slots_do_not_go_to_and_fro(seed: int, slots: int, arrivals: list[tuple[int, int, int, float]]) -> None:
    """Everything ends, nothing is trained twice, and a stopped chain had its slot for a while."""
    world = World(slots, seed)
    for number, (at, trials, steps, priority) in enumerate(sorted(arrivals)):
        world.simulator.run_until(at)
        world.submit(StudyId(f"study-{number}"), trials, steps, priority=priority)
    time = world.simulator.run()
    assert all(study.active == 0 for study in world.simulator.plan.studies.values())
    assert world.nothing_was_lost()
    assert world.preemptions() <= len(arrivals) * slots + time * slots / TURN
    ended = [event for event in world.simulator.events if isinstance(event, e.ChainEnded)]
    assert all(event.seconds >= LEAST_SECONDS for event in ended if event.outcome == ChainOutcome.STOPPED)


@max_examples(15)
@given(seed=st.integers(0, 10**6), slots=st.integers(2, 8), studies=st.integers(2, 4))
def test_no_study_waits_while_another_has_more_than_its_share(seed: int, slots: int, studies: int) -> None:
    """Where there is a slot for each study, a new one has it as soon as a chain may be stopped at all."""
    world = World(slots := max(slots, studies), seed)
    for number in range(studies):
        study = world.submit(StudyId(f"study-{number}"), 9, 10_000)
        world.simulator.run_until(world.now + LEAST_SECONDS + TICK_SECONDS + 9 + 1)
        assert world.busy_slots()[study.id] >= slots // (number + 1)
