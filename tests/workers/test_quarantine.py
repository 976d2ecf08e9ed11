"""Whether the slot or its work is to blame: another slot must have trained since what failed on this one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from assignments import FENCE, stage, work

from app.domain import events as e
from app.domain.terms import ChainId
from app.events.memory import MemoryRecords
from app.workers.slot.claim import Claim
from app.workers.slot.health import MAX_ACCIDENTS, MAX_FAILED_NODES, Health, Quarantine
from app.workers.slot.outbox import QuarantineSlot
from app.workers.slot.retry import RetryPolicy
from app.workers.slot.slot_status import SlotStatus

HERE = {"device": "cpu", "host": "here", "pid": 1}


def quarantine(records: MemoryRecords, health: Health) -> Quarantine:
    me = SimpleNamespace(slot="gpu0", owner="bea")
    return Quarantine(me, records, RetryPolicy(), SlotStatus(), health)  # type: ignore[arg-type]


STAGE = stage()


@pytest.mark.parametrize(
    ("completed_on", "failed", "after", "is_the_slots_fault"),
    [
        ("gpu1", STAGE.node, STAGE.end - 1, True),
        ("gpu1", STAGE.node, STAGE.end, False),
        ("gpu1", "which fails everywhere", 0, False),
        ("gpu0", STAGE.node, 0, False),
        (None, STAGE.node, 0, False),
    ],
)
def test_only_what_failed_here_and_another_slot_has_trained_since_speaks_against_a_slot(
    completed_on: str | None, failed: str, after: int, is_the_slots_fault: bool
) -> None:
    """Its own last success may be recorded after its first failure; the records of an old chain are deleted.

    In a search where most configurations raise, sound slots were once quarantined one after the other.
    """
    records, health = MemoryRecords(), Health()
    health.record_failure(failed, after, "plan", 0)
    for number in range(MAX_FAILED_NODES - 2):
        health.record_failure(f"node{number}", 0, "plan", 0)
    if completed_on is not None:
        with records.write() as rows:
            rows.slots.take(completed_on, "anna", instead_of=None, **HERE)
            rows.chains.assign("chain", "plan", completed_on, work(STAGE), 60.0)
    records.log.append("plan", [e.StageCompleted(chain=ChainId("chain"), index=0, seconds=1.0)], expected=None, at=0.0)
    sentence = quarantine(records, health).judge_failure(Claim("other", "plan", FENCE), "another node", 0, 0)
    assert (sentence is not None) == is_the_slots_fault


def test_accidents_are_the_slots_fault_when_they_come_again_and_again() -> None:
    health, sentences = Health(), list[bool]()
    for _ in range(MAX_ACCIDENTS):
        sentence = quarantine(MemoryRecords(), health).judge_accident("no room", is_hopeless=False)
        sentences.append(sentence is not None)
    assert sentences == [False] * (MAX_ACCIDENTS - 1) + [True]


def test_quarantined_slots_are_not_waited_for_when_all_are() -> None:
    sentence = quarantine(MemoryRecords(), Health()).judge_accident("no torch", is_hopeless=True)
    assert sentence is not None and "chains cannot be trained here: no torch" in sentence.reason


@pytest.mark.parametrize("quarantines", [0, 2])
def test_only_the_first_quarantine_is_ended_by_a_test(quarantines: int) -> None:
    health = Health(quarantines=quarantines)
    quarantine(MemoryRecords(), health).lift(lambda: pytest.fail("it is not tested"))


def slots_of(records: MemoryRecords, names: str, host: str = "here") -> None:
    with records.write() as rows:
        for name in names.split():
            rows.slots.take(name, f"worker of {name}", instead_of=None, device="cpu", host=host, pid=1)


def put_out(records: MemoryRecords, name: str) -> None:
    with records.write() as rows:
        QuarantineSlot(name, f"worker of {name}", 60.0, "it fails").apply(rows)


def out(records: MemoryRecords) -> list[str]:
    with records.read() as rows:
        return [row.name for row in rows.slots.all() if row.quarantined_until is not None]


def test_half_of_a_host_at_most_is_in_quarantine_at_once() -> None:
    """All slots but one were, for a search in which most trials fail."""
    records = MemoryRecords()
    slots_of(records, "gpu0 gpu1 gpu2 gpu3 gpu4")
    slots_of(records, "far-gpu0", host="far")
    for name in ("gpu0", "gpu1", "gpu2", "gpu3", "far-gpu0"):
        put_out(records, name)
    assert out(records) == ["far-gpu0", "gpu0", "gpu1"]
    put_out(records, "gpu1")  # once more
    assert out(records) == ["far-gpu0", "gpu0", "gpu1"]


def test_each_quarantine_ends_with_a_test() -> None:
    health = Health()
    here = quarantine(MemoryRecords(), health)
    assert not here.needs_test
    seconds = set()
    for _ in range(3):
        sentence = here.judge_accident("no torch", is_hopeless=True)
        assert sentence is not None and here.needs_test
        seconds.add(sentence.seconds)
    assert seconds == {60.0}, "it was an hour in the end"
    here.record_test_passed()
    assert not here.needs_test
