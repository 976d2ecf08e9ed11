"""Whether it is the slot or what it was given: others get on only if another slot has completed something since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from app.domain import events as e
from app.domain.ids import ChainId
from app.events.memory import MemoryRecords
from app.workers.slot import quarantine
from app.workers.slot.claim import Claim
from app.workers.slot.health import MOST_ACCIDENTS, MOST_NODES, Health
from app.workers.slot.notes import Notes
from app.workers.slot.parts import Parts

HERE = {"device": "cpu", "host": "here", "pid": 1}


def parts(records: MemoryRecords, health: Health) -> Parts:
    """Those that a judgement is made of."""
    me = SimpleNamespace(slot="gpu0", owner="bea")
    return cast(Parts, SimpleNamespace(me=me, records=records, health=health, notes=Notes()))


@pytest.mark.parametrize(("completed_on", "is_the_slots_fault"), [("gpu1", True), ("gpu0", False), (None, False)])
def test_only_what_another_slot_has_completed_since_speaks_against_a_slot(
    completed_on: str | None, is_the_slots_fault: bool
) -> None:
    """Its own last success may go on record after its first failure; of a chain long over nothing is known any more."""
    records, health = MemoryRecords(), Health()
    for number in range(MOST_NODES):
        health.failed(f"node{number}", "plan", 0)
    if completed_on is not None:
        with records.write() as rows:
            rows.slots.take(completed_on, "anna", instead_of=None, **HERE)
            rows.chains.assign("chain", "plan", completed_on, {}, 60.0)
    records.log.append("plan", [e.StageCompleted(chain=ChainId("chain"), index=0, seconds=1.0)], expected=None, at=0.0)
    sentence = quarantine.after_failure(parts(records, health), Claim("other", "plan", 1))
    assert (sentence is not None) == is_the_slots_fault


def test_accidents_are_the_slots_fault_when_they_come_again_and_again() -> None:
    health, sentences = Health(), list[bool]()
    for _ in range(MOST_ACCIDENTS):
        health.had_accident()
        sentence = quarantine.after_accident(parts(MemoryRecords(), health), "no room", is_hopeless=False)
        sentences.append(sentence is not None)
    assert sentences == [False] * (MOST_ACCIDENTS - 1) + [True]


def test_what_no_slot_in_its_state_could_do_is_not_waited_for() -> None:
    health = Health()
    health.had_accident()
    sentence = quarantine.after_accident(parts(MemoryRecords(), health), "no torch", is_hopeless=True)
    assert sentence is not None and "chains cannot be trained here: no torch" in sentence.reason


def test_who_is_not_in_quarantine_is_not_tested() -> None:
    """The parts have no process that could be; what it was in quarantine for before is over."""
    quarantine.serve(parts(MemoryRecords(), Health(quarantines=1)), None)
