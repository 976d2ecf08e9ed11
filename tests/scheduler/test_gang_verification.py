"""What several slots train is proven by as many: tried first, its hand-overs compared, audited when all are idle."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import OPENED, Scene, rates, scene, trials
from toy_worker import ToyWorkers

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId, Verdict, VerificationKind
from app.exactness import judge
from app.scheduling.gangs import verification_kinds
from app.search.replay import replay

DDP = e.PlanOpened(trainer="toy", trainer_version="1", trainer_args={}, seed=0, parallel="ddp:2")


def decay(at: int) -> dict[str, Any]:
    return {"family": "multistep", "init": 1.0, "milestones": [at], "gamma": 0.5}


LADDER = rates(decay(4), decay(8), steps=12)
LONG = rates(0.2, steps=500)


def submit_for_two(at: Scene, **fields: Any) -> None:
    at.submit(LADDER, opened=DDP, parallel="ddp", ranks=2, **fields)


def chains(at: Scene, plan: str = "plan") -> list[tuple[str | None, tuple[str, ...]]]:
    """What each chain proves, and its slots, the leader first."""
    return [(event.proof, (event.slot, *event.members)) for event in at.events(e.ChainAssigned, plan=plan)]


def test_torchs_own_sums_are_tried_compared_and_audited_by_as_many_slots_as_train_them() -> None:
    at = scene({"a": 3}, proofs=True)
    submit_for_two(at)
    workers = ToyWorkers(at)
    workers.run()
    at.give(c.RequestAudit(study=StudyId("study"), at=at.at))
    workers.run()
    made = chains(at)
    assert {len(slots) for _, slots in made} == {2}
    kinds = [kind for kind, _ in made]
    assert kinds[0] == VerificationKind.CHECK and kinds.count(VerificationKind.CHECK) == 1, (
        "once for a kind, not for each GPU"
    )
    assert {VerificationKind.HANDOVER, VerificationKind.WHOLE} <= set(kinds)
    assert judge(at.plan(), at.study()).verdict == Verdict.VERIFIED
    ended = [each for each in at.events(e.ChainEnded) if each.seconds]
    trained = sum(each.seconds for each in at.events(e.StageCompleted))
    assert at.study().gpu_seconds == 2 * (trained + sum(each.seconds for each in ended)), "each second of both"
    log = [(each.version, each.event) for each in at.records.log.read("plan")]
    assert replay(log, StudyId("study")).identical


def test_a_trainer_inexact_on_several_devices_is_detected() -> None:
    at = scene({"a": 2}, proofs=True)
    submit_for_two(at, inexact="allow")
    ToyWorkers(at, late=5, forgets=True, sees_stray=False).run()
    assert judge(at.plan(), at.study()).verdict == Verdict.INEXACT


def test_slots_of_several_machines_make_a_proof_where_none_has_enough() -> None:
    at = scene({"a": 1, "b": 1}, reached=True, proofs=True)
    submit_for_two(at)
    at.scheduler.tick()
    assert chains(at) == [(VerificationKind.CHECK, ("a-gpu0", "b-gpu0"))]
    assert [slot for *_, slot in at.messages] == ["a-gpu0"] and [slot for _, slot in at.invited] == ["b-gpu0"]
    assert at.assignment(at.messages[0][0]).meeting is not None


def test_slots_are_held_for_a_trial_of_the_trainer() -> None:
    """Else trials of one slot each would take each that becomes free, for ever."""
    at = scene({"a": 2}, proofs=True)
    at.submit(LONG, name="first", plan="other", opened=OPENED, check=False)
    at.scheduler.tick()
    submit_for_two(at)
    at.scheduler.tick()
    assert chains(at) == []
    at.submit(LONG, name="later", plan="third", opened=OPENED, check=False)
    at.scheduler.tick()
    assert chains(at, "third") == [], "the free slot is held"
    at.train()
    at.scheduler.tick()
    assert chains(at) == [(VerificationKind.CHECK, ("a-gpu0", "a-gpu1"))]
    assert chains(at, "third") == []


def test_an_impossible_check_of_the_trainer_is_reported() -> None:
    at = scene({"a": 1}, proofs=True)
    submit_for_two(at)
    at.scheduler.tick()
    assert chains(at) == []
    (problem,) = at.scheduler.problems().values()
    assert "it says ranks: 2, and no machine has this many healthy slots" in problem


def test_no_study_waits_for_proofs_on_a_kind_of_which_too_few_slots_are_left() -> None:
    at = scene({"a": 2}, proofs=True)
    submit_for_two(at)
    with at.records.read() as rows:
        slots = list(rows.slots.all())
    assert verification_kinds(at.plan(), 2, slots) == ["H200"]
    assert verification_kinds(at.plan(), 2, slots[:1]) == []
    assert verification_kinds(at.plan(), 1, slots[:1]) == ["H200"]


@pytest.mark.parametrize("is_held", [True, False])
def test_unneeded_verifications_make_room_for_a_gang(is_held: bool) -> None:
    """Though a slot is free: it is held until the other one is."""
    at = scene({"a": 2}, proofs=True)
    at.submit(LADDER)
    workers = ToyWorkers(at)
    workers.run()
    at.give(c.RequestAudit(study=StudyId("study"), at=at.at))
    at.scheduler.tick()
    proofs = [chain.id for chain in at.plan().chains.values() if chain.proof == VerificationKind.WHOLE]
    assert len(proofs) == 1
    if is_held:
        at.submit(trials(10), name="two", plan="second", opened=DDP, parallel="ddp", ranks=2, check=False)
    at.scheduler.tick()
    with at.records.read() as rows:
        stopped = [row for row in map(rows.chains.get, proofs) if row is not None and row.stop]
    assert len(stopped) == is_held
