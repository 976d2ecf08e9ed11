"""An audit on demand has no blind spot: every state behind a hand-over is compared with training from step 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from scenes import ONE
from stacks import Json
from test_verification import ladder
from toy_worker import ToyWorkers, proving

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import NodeId, StudyId, StudyState, VerificationKind
from app.exactness import trial_marks
from app.exactness.suspicions import whole_trials
from tests.plans import max_examples, steps

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
PLACES = st.lists(st.integers(1, 17), min_size=1, max_size=5)
EVERY = st.sampled_from([None, 1, 3])
SLOTS = st.integers(1, 4)


def finish_study(tuner: Json, every: int | None, slots: int = 1, **workers: Any) -> ToyWorkers:
    """A finished study of which nothing was proven but its first hand-over."""
    found = proving(slots, sees_stray=False, **workers)
    space: Json = {"space": {"lr": {"uniform": [0.1, 1.0]}}} if tuner["kind"] == "asha" else {}
    found.scene.submit(tuner, audit=0, inexact="allow", eval_every=every, **space)
    found.run()
    assert found.scene.study().state == StudyState.COMPLETED
    return found


def audit(workers: ToyWorkers) -> None:
    workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
    workers.run()
    assert not workers.scene.study().is_audited


def forget(workers: ToyWorkers, share: float) -> None:
    """Delete some of the states that may be deleted."""
    kept = [
        each for each in checkpoint_needs.checkpoints(workers.scene.plan()) if hash((each.key, 7)) % 100 < 100 * share
    ]
    workers.scene.give(c.ReleaseCheckpoints(checkpoints=tuple(kept), reason="room"))


def wrong(workers: ToyWorkers) -> Iterator[tuple[int, int]]:
    """The trials and steps at which another value is on record than that of the trial alone."""
    plan = workers.scene.plan()
    for trial in workers.scene.study().trials:
        for step, metrics in plan.curve(trial):
            if metrics["loss"] != workers.alone(trial.hp, step):
                yield trial.number, step


def hand_overs(workers: ToyWorkers) -> set[tuple[NodeId, int]]:
    """The nodes that were continued from a loaded state, each with the step of that state."""
    chains = [each for each in workers.scene.events(e.ChainAssigned) if each.proof is None]
    return {(each.stages[0].node, each.stages[0].start) for each in chains if each.stages[0].start}


def compared_hand_overs(workers: ToyWorkers) -> set[tuple[NodeId, int]]:
    """The same of those inside a comparison that began at step 0 and had no break."""
    plan, whole = workers.scene.plan(), set[str]()
    for chain in workers.scene.events(e.ChainAssigned):
        if chain.proof == VerificationKind.WHOLE:
            assert chain.stages[0].start == 0 and plan.nodes[chain.stages[0].node].parent is None
            assert all(one.end == other.start for one, other in zip(chain.stages, chain.stages[1:], strict=False))
            whole.add(chain.chain)
    ends = [(test.node, test.step) for test in plan.tests if test.chain in whole]
    return {(each.id, at) for node, end in ends for each in plan.ancestry(node) for at in range(each.start, end)}


@example(ends=[6, 8], late=9, every=None, slots=1)
@max_examples(60)
@given(ends=PLACES, late=st.integers(1, 18), every=EVERY, slots=SLOTS)
def test_an_audit_finds_late_faults(ends: list[int], late: int, every: int | None, slots: int) -> None:
    """A comparison that began at a kept state broke where the other way had broken, and both were wrong alike."""
    workers = finish_study(ladder(*ends, steps=18), every, slots, forgets=True, late=late)
    audit(workers)
    is_wrong = any(wrong(workers))
    assert workers.scene.plan().first_difference is not None or not is_wrong


@max_examples(30)
@given(late=st.integers(1, 18), every=EVERY, slots=SLOTS, share=st.floats(0, 1))
def test_where_states_are_deleted_metrics_are_compared(late: int, every: int | None, slots: int, share: float) -> None:
    workers = finish_study(ASHA, every, slots, forgets=True, late=late)
    forget(workers, share)
    audit(workers)
    is_wrong = any(wrong(workers))
    assert workers.scene.plan().first_difference is not None or not is_wrong


@max_examples(30)
@given(ends=PLACES, late=st.integers(1, 18), every=EVERY, slots=SLOTS, share=st.floats(0, 1), asha=st.booleans())
def test_a_right_trainer_is_exact_in_every_trial(
    ends: list[int], late: int, every: int | None, slots: int, share: float, asha: bool
) -> None:
    workers = finish_study(ASHA if asha else ladder(*ends, steps=18), every, slots, late=late)
    forget(workers, share)
    audit(workers)
    plan, study = workers.scene.plan(), workers.scene.study()
    assert plan.first_difference is None
    if not share:
        assert [*map(trial_marks(plan, study), study.trials)] == [""] * len(study.trials)


@st.composite
def trials(draw: st.DrawFn) -> Json:
    """Few different values, so that many begin alike and part at many places."""
    milestones = st.lists(st.integers(1, 10), min_size=2, max_size=2, unique=True).map(sorted)
    values = st.lists(st.sampled_from([0.5, 1.0]), min_size=3, max_size=3)
    hp = st.builds(lambda values, at: {"lr": steps(*values, milestones=at)}, values, milestones)
    several = draw(st.lists(st.tuples(hp, st.integers(1, 12)), min_size=1, max_size=6))
    return {"kind": "trials", "trials": [{"hp": hp, "steps": asked} for hp, asked in several]}


@max_examples(60)
@given(tuner=st.one_of(trials(), st.just(ASHA)), every=EVERY, slots=SLOTS)
def test_each_hand_over_is_crossed_from_step_0_without_a_break(tuner: Json, every: int | None, slots: int) -> None:
    workers = finish_study(tuner, every, slots)
    audit(workers)
    assert hand_overs(workers) <= compared_hand_overs(workers)


def test_an_audit_repeats_no_comparison() -> None:
    workers = finish_study(ladder(4, 6, 8), None)
    audit(workers)
    before = workers.scene.study().proof_steps
    audit(workers)
    assert workers.scene.study().proof_steps == before


def test_a_trial_that_ends_on_the_way_of_another_costs_nothing() -> None:
    """One trained in one go needs no comparison, and a shorter one has it on the way of the longer one."""
    tuner = {"kind": "trials", "trials": [{"hp": {"lr": 1.0}, "steps": at} for at in (4, 8, 12)]}
    workers = finish_study(tuner, None)
    audit(workers)
    whole = [each for each in workers.scene.events(e.ChainAssigned) if each.proof == VerificationKind.WHOLE]
    assert len(whole) <= 1


def test_an_audit_is_not_over_while_another_kind_of_device_is_busy() -> None:
    """On the device that is free nothing can be compared, and on the other one all of it."""
    workers = finish_study(ladder(4, 6, 8), None)
    scene = workers.scene
    workers.cannot_compare = "tpu"
    scene.register("gpu0", trainers={"toy": "1", "only": "1"})
    scene.register("gpu1", device="tpu")
    only = e.PlanOpened(trainer="only", trainer_version="1", trainer_args={}, seed=0)
    scene.submit(ONE, "busy", "other", opened=only, trainer="only")
    scene.scheduler.tick()
    (busy,) = scene.messages
    scene.messages.clear()
    scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
    workers.run()
    assert {slot for chain, slot in wholes(workers)} == {"gpu1"} and scene.study().is_audited
    scene.messages.append(busy)
    workers.run()
    assert {slot for chain, slot in wholes(workers)} == {"gpu0", "gpu1"} and not scene.study().is_audited
    assert whole_trials(scene.plan())


def wholes(workers: ToyWorkers) -> list[tuple[str, str]]:
    """The chains that trained a trial alone to compare, and their slots."""
    assigned = workers.scene.events(e.ChainAssigned)
    return [(each.chain, each.slot) for each in assigned if each.proof == VerificationKind.WHOLE]
