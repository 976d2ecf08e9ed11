"""Gangs on virtual slots: no deadlock, no slot that waits longer than a stage, and trunks that are trained faster."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import max_examples
from stacks import Json

from app.domain import events as e
from app.scheduling.fair_share import POLICIES
from app.simulation.pace import even_ranks
from app.simulation.preview import preview
from app.simulation.simulator import Simulator
from app.simulation.virtual_run import PreviewTooLong
from stagetree.spec import StudySpec

TRUNK, DECAY = 800, 100


def study(trials: list[Json], **fields: Any) -> Json:
    tuner = {"kind": "trials", "trials": trials}
    return {"name": "a", "trainer": "t", "metric": "m", "mode": "max", "tuner": tuner, **fields}


def leaves(number: int) -> list[Json]:
    wsd = {"family": "wsd", "peak": 0.1, "warmup": 10, "stable_until": TRUNK, "decay": DECAY}
    return [{"hp": {"lr": wsd | {"final": 0.001 * leaf}}, "steps": TRUNK + DECAY} for leaf in range(number)]


def simulator(slots: int, share: float = 0.9, policy: str = "fair_share") -> Simulator:
    return Simulator(
        slots=slots, measure=lambda node, step: {"m": 0.0}, policy=POLICIES[policy], ranks=even_ranks(share, 8)
    )


def test_a_trunk_is_trained_by_all_slots_and_its_leaves_by_one_each() -> None:
    world = simulator(8)
    world.submit("s", study(leaves(8), shards=8, ranks={"least": 1, "most": 8}))
    world.run()
    faster = 1.8**3
    assert world.now <= 1.15 * (TRUNK / faster + DECAY)
    given = [event for event in world.events if isinstance(event, e.ChainAssigned)]
    assert [len(event.members) for event in given] == [7, 7, *[0] * 8]  # the first is only measured
    assert len([event for event in world.events if isinstance(event, e.RanksProfiled)]) == 1
    picture = Path(__file__).parents[2] / "docs" / "pictures" / "trunk-on-eight.svg"
    assert f"A trunk on eight devices, its leaves on one each: {round(world.now)} steps of time" in picture.read_text()


def test_ranks_that_do_not_pay_are_not_taken() -> None:
    world = simulator(8, share=0.55)
    world.submit("s", study(leaves(8), shards=8, ranks={"least": 1, "most": 8}))
    world.run()
    assert world.now == TRUNK + DECAY
    assert {len(event.members) for event in world.events if isinstance(event, e.ChainAssigned)} == {7, 0}


def test_the_last_rungs_of_asha_have_the_slots_that_would_be_idle() -> None:
    tuner = {"kind": "asha", "num_trials": 27, "min_steps": 10, "max_steps": 270, "reduction_factor": 3}
    space = {"lr": {"uniform": [0.1, 1.0]}}
    world = simulator(8)
    world.submit("s", study([], shards=8, ranks={"least": 1, "most": 8}, space=space) | {"tuner": tuner})
    world.run()
    slots, times = defaultdict[int, list[int]](list), defaultdict[e.Stage, set[float]](set)
    for event in world.events:
        if isinstance(event, e.ChainAssigned):
            slots[event.stages[0].start].append(1 + len(event.members))
            times[event.stages[0]].add(event.at)
    assert slots[0] == [1] * 27
    assert slots[90] == [8, 8], "the first is only measured, after 2 and 4 were"
    assert {len(each) for each in times.values()} == {1}, "the measured stage does not wait"


def test_a_preview_of_gangs_equals_the_run() -> None:
    spec = study(leaves(8), shards=8, ranks={"least": 1, "most": 8})
    world = simulator(8)
    world.submit("s", spec)
    found = preview(StudySpec.from_dict(spec), slots=8)
    assert found["makespan_steps"] == round(world.run())
    assert found["ranks"] == {"times_faster": {"2": 1.8, "4": 3.24, "8": 5.83}, "kind": None, "assumed": [2, 4, 8]}
    alone = preview(StudySpec.from_dict(study(leaves(8), shards=8)), slots=8)
    assert (alone["makespan_steps"], "ranks" in alone) == (TRUNK + DECAY, False)


def test_a_preview_takes_its_slots_to_be_of_the_kinds_that_a_study_names() -> None:
    found = [preview(StudySpec.from_dict(study(leaves(2), **more)), slots=2) for more in ({}, {"devices": ["H100"]})]
    assert found[0]["makespan_steps"] == found[1]["makespan_steps"] == TRUNK + DECAY


# ------------------------------------------------------------------------------------------------ any plans

RANKS = st.sampled_from([1, 1, 2, 4, {"least": 1, "most": 4}, {"least": 2, "most": 4}, {"least": 1, "most": 2}])
TRIALS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.sampled_from([0.1, 0.5, 1.0])), min_size=1, max_size=5
)


SECONDS = st.lists(st.sampled_from([0.5, 0.55, 0.7, 0.9, 1.2]), min_size=1, max_size=3)


@pytest.mark.slow
@max_examples(50)
@given(
    slots=st.integers(1, 8),
    drawn=TRIALS,
    ranks=st.sampled_from([{"least": 1, "most": 8}, {"least": 1, "most": 2}, {"least": 2, "most": 4}, 2]),
    seconds=SECONDS,
)
def test_a_preview_by_measurements_equals_the_run(
    slots: int, drawn: list[tuple[int, int, float]], ranks: Any, seconds: list[float]
) -> None:
    """seconds: of each doubling of the ranks, how much of a step's time is left."""
    known = {str(2**n): math.prod(seconds[:n]) for n in range(len(seconds) + 1)}
    profile = e.RanksProfiled(kind="H200", step_seconds=known, batch={})
    spec = study(trials(drawn), shards=8, ranks=ranks)
    try:
        found = preview(StudySpec.from_dict(spec), slots=slots, measured=lambda batch, what: profile)  # type: ignore[arg-type,return-value]
    except PreviewTooLong as refusal:
        assert "slots or more, not on" in str(refusal)
        return
    world = Simulator(slots=slots, measure=lambda node, step: {"m": 0.0}, ranks=even_ranks(0.9, 8, known))
    world.submit("s", spec)
    assert found["makespan_steps"] == round(world.run())
    assert found["ranks"]["kind"] == "H200"
    most = max(map(int, found["ranks"]["times_faster"]))
    assert found["ranks"]["assumed"] == [each for each in (2, 4, 8) if each <= most and str(each) not in known]
    assert found["ranks"]["times_faster"]["2"] == round(1 / seconds[0], 2)


def trials(drawn: list[tuple[int, int, float]]) -> list[Json]:
    """Each changes its learning rate once: trials that do so at one step share what comes before."""
    return [
        {"hp": {"lr": {"family": "multistep", "init": 0.1, "milestones": [at], "gamma": gamma}}, "steps": at + more}
        for at, more, gamma in drawn
    ]


Spell = tuple[float, float, e.ChainAssigned]


def busy(world: Simulator) -> dict[str, list[Spell]]:
    """Of each slot, from when to when it had a chain or was lent to one, in order."""
    begun: dict[str, tuple[e.ChainAssigned, float]] = {}
    found = defaultdict[str, list[Spell]](list)
    for recorded in world.log():
        event = recorded.event
        if isinstance(event, e.ChainAssigned):
            begun[event.chain] = event, recorded.at
        elif isinstance(event, e.ChainEnded | e.StageFailed):
            chain, at = begun.pop(event.chain)
            for slot in (chain.slot, *chain.members):
                found[slot].append((at, recorded.at, chain))
    assert begun == {}
    return {slot: sorted(spells, key=lambda spell: spell[:2]) for slot, spells in found.items()}


@pytest.mark.slow
@max_examples(100)
@given(
    slots=st.integers(4, 8),
    studies=st.lists(st.tuples(TRIALS, RANKS, st.sampled_from([1.0, 2.0])), min_size=1, max_size=3),
    policy=st.sampled_from(sorted(POLICIES)),
    share=st.sampled_from([0.55, 0.7, 1.0]),
)
def test_any_studies_complete(slots: int, studies: list[tuple[Any, Any, float]], policy: str, share: float) -> None:
    world = simulator(slots, share, policy)
    for number, (drawn, ranks, weight) in enumerate(studies):
        world.submit(f"s{number}", study(trials(drawn), shards=8, ranks=ranks, weight=weight))
    world.run()
    plan = world.plan
    assert {each.state for each in plan.studies.values()} == {"completed"}
    assert plan.chains == {}
    given = [event for event in world.events if isinstance(event, e.ChainAssigned)]
    longest = max(stage.end - stage.start for event in given for stage in event.stages) + 1.0  # one step to leave
    for spells in busy(world).values():
        for (_, before, _), (after, _, chain) in pairwise(spells):
            assert before <= after + 1e-9, "a slot has two chains"
            if chain.members:
                waited = after - max(before, ready_at(world, chain))
                assert waited <= longest, "a slot is held for longer than a stage"


def ready_at(world: Simulator, chain: e.ChainAssigned) -> float:
    """When the chain could have begun: its state was there."""
    first = chain.stages[0]
    nodes = {first.node, world.plan.nodes[first.node].parent}
    kept = [each.at for each in world.log() if isinstance(each.event, e.CheckpointKept)
            and each.event.node in nodes and each.event.step == first.start]  # fmt: skip
    return min(kept, default=0.0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_small_work_does_not_delay_a_gang(policy: str) -> None:
    """A long row of trials of one slot each, and a gang of all slots that came later: it waits for one stage."""
    world = simulator(4, policy=policy)
    many = [{"hp": {"lr": 0.001 * number}, "steps": 20} for number in range(1, 60)]
    world.submit("small", study(many, shards=8))
    world.run_until(30.0)
    world.submit("gang", study([{"hp": {"lr": 0.7}, "steps": 40}], shards=8, ranks=4, priority=1))
    world.run()
    (gang,) = [each for each in world.events if isinstance(each, e.ChainAssigned) and each.members]
    assert gang.at <= 30.0 + 20 + 20 + 1


def many(rates: range, steps: int, **fields: Any) -> Json:
    return study([{"hp": {"lr": 0.001 * rate}, "steps": steps} for rate in rates], shards=8, **fields)


def study_chains(world: Simulator, study: str) -> list[e.ChainAssigned]:
    """Its chains, in order."""
    assigned = (each for each in world.events if isinstance(each, e.ChainAssigned))
    return [each for each in assigned if each.stages[0].study == study]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_held_slots_take_work_that_ends_in_time(policy: str) -> None:
    """A gang of all four waits for one stage of 100 steps: trials of 20 steps fill the others and delay nothing."""
    world = simulator(4, policy=policy)
    world.submit("first", many(range(1, 2), 20))
    world.run()
    world.submit("long", many(range(2, 3), 100))
    world.run_until(25.0)
    world.submit("gang", many(range(3, 4), 40, ranks=4, priority=1))
    world.run_until(26.0)
    world.submit("small", many(range(4, 40), 20))
    world.run()
    (gang,) = study_chains(world, "gang")
    before = [each.at for each in study_chains(world, "small") if each.at < gang.at]
    assert gang.at == 120.0
    assert len(before) == 12 and max(before) <= 100.0


def test_a_share_of_the_slots_counts_all_of_a_gang() -> None:
    world = simulator(4)
    world.submit("gangs", many(range(1, 40), 10, ranks=2))
    world.submit("alone", many(range(40, 80), 10))
    world.run_until(100.0)
    steps = {name: len(study_chains(world, name)) for name in ("gangs", "alone")}
    assert steps["gangs"] * 2 * 10 / 1.8 == pytest.approx(steps["alone"] * 10, rel=0.15)
