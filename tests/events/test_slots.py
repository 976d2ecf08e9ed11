"""Slots: one owner each, who proves it; on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from assignments import WORK
from transactions import TTL, Clock, Transactions, count_winners

from app.events.rows import LONGEST_QUARANTINE, Lease, SlotLost, SlotTaken

HERE = {"device": "cpu", "host": "here", "pid": 9}


def test_slots_are_taken_over_and_seen(rows: Transactions, clock: Clock) -> None:
    clock.at = 1100.0
    rows.slots.take("gpu0", "carla", instead_of="anna", device="cuda:7", host="other", pid=3)
    clock.at = 1200.0
    rows.slots.touch("gpu1", "berta")
    assert [(r.name, r.owner, r.device, r.host, r.pid, r.seen_at) for r in rows.slots.all()] == [
        ("gpu0", "carla", "cuda:7", "other", 3, 1100.0),
        ("gpu1", "berta", "cuda:1", "host", 2, 1200.0),
    ]
    assert rows.free_slots(50.0) == ["gpu1"]
    assert [row.name for row in rows.slots.alive(50.0)] == ["gpu1"]
    assert [row.name for row in rows.slots.alive(100.0)] == ["gpu0", "gpu1"]


def test_a_slot_is_not_taken_from_an_unnamed_owner(rows: Transactions) -> None:
    before = rows.slots.get("gpu0")
    for instead_of in (None, "berta"):
        with pytest.raises(SlotTaken):
            rows.slots.take("gpu0", "carla", instead_of=instead_of, **HERE)
    with pytest.raises(SlotTaken):
        rows.slots.take("gpu2", "carla", instead_of="unknown", **HERE)
    assert rows.slots.get("gpu0") == before
    assert rows.slots.get("gpu2") is None


@pytest.mark.parametrize("before", [None, "anna"])
def test_of_two_claims_of_a_slot_at_once_one_succeeds(rows: Transactions, before: str | None) -> None:
    name = "gpu0" if before else "gpu2"
    assert count_winners(lambda n: rows.slots.take(name, f"owner{n}", instead_of=before, **HERE), SlotTaken) == 1


LOST: dict[str, Callable[[Transactions, str], None]] = {
    "touch": lambda rows, owner: rows.slots.touch("gpu0", owner),
    "describe": lambda rows, owner: rows.slots.describe("gpu0", owner, trainers={"t": "1"}, note="waits"),
    "empty": lambda rows, owner: rows.slots.empty("gpu0", owner, "c"),
    "quarantine": lambda rows, owner: rows.slots.quarantine("gpu0", owner, seconds=60.0, reason="sick"),
}


def test_the_old_owner_is_refused(rows: Transactions) -> None:
    rows.slots.take("gpu0", "carla", instead_of="anna", **HERE)
    for change in LOST.values():
        before = rows.slots.get("gpu0")
        with pytest.raises(SlotLost):
            change(rows, "anna")
        assert rows.slots.get("gpu0") == before
        change(rows, "carla")


OWN = {**LOST, "retire": lambda rows, owner: rows.slots.retire("gpu0", owner)}


def test_another_slot_of_the_same_owner_is_unchanged(rows: Transactions, clock: Clock) -> None:
    rows.slots.take("gpu2", "anna", instead_of=None, **HERE)
    for name, change in OWN.items():
        before, at_first = rows.slots.get("gpu2"), rows.slots.get("gpu0")
        clock.at += 1
        change(rows, "anna")
        assert rows.slots.get("gpu2") == before, name
        assert rows.slots.get("gpu0") != at_first, name


def test_a_slot_shows_its_workers_trainers_and_note(rows: Transactions) -> None:
    rows.slots.describe("gpu0", "anna", trainers={"digits": "1"}, note="waits for the store")
    slot = rows.slots.get("gpu0")
    assert (slot.trainers, slot.note) == ({"digits": "1"}, "waits for the store")


def test_a_slot_in_quarantine_gets_nothing_until_it_is_over(rows: Transactions, clock: Clock) -> None:
    rows.slots.quarantine("gpu0", "anna", seconds=30.0, reason="three failures in a row")
    assert rows.free_slots() == ["gpu1"]
    assert [row.name for row in rows.slots.alive(TTL)] == ["gpu0", "gpu1"]
    clock.at += 30
    assert rows.free_slots() == ["gpu0", "gpu1"]
    rows.slots.quarantine("gpu0", "anna", seconds=30.0, reason="again")
    rows.slots.quarantine("gpu0", "anna", seconds=None, reason=None)
    assert rows.free_slots() == ["gpu0", "gpu1"]
    assert rows.slots.get("gpu0").note is None


def test_a_quarantine_does_not_outlast_the_longest_where_the_clock_goes_back(rows: Transactions, clock: Clock) -> None:
    rows.slots.quarantine("gpu0", "anna", seconds=LONGEST_QUARANTINE, reason="nothing arrives")
    assert rows.free_slots() == ["gpu1"]
    clock.at -= 360
    for slot, owner in (("gpu0", "anna"), ("gpu1", "berta")):
        rows.slots.touch(slot, owner)
    assert rows.free_slots() == ["gpu0", "gpu1"]


def test_a_worker_that_starts_again_holds_no_model(rows: Transactions, lease: Lease) -> None:
    rows.chains.release("c", lease.fence, {"plan": "p", "node": "n", "step": 5})
    assert rows.slots.get("gpu0").resident_model == {"plan": "p", "node": "n", "step": 5}
    rows.slots.take("gpu0", "carla", instead_of="anna", **HERE)
    assert rows.slots.get("gpu0").resident_model is None


def test_the_chain_of_a_dead_worker_expires_at_once(rows: Transactions, lease: Lease) -> None:
    rows.chains.assign("d", "plan", "gpu1", WORK, TTL)
    rows.slots.take("gpu0", "carla", instead_of="anna", **HERE)
    assert rows.expired_chains() == ["c"]


def test_taking_a_slot_leaves_its_ended_chains(rows: Transactions, lease: Lease) -> None:
    rows.chains.finish("c", lease.fence)
    before = rows.chains.get("c")
    rows.slots.take("gpu0", "carla", instead_of="anna", **HERE)
    assert rows.chains.get("c") == before


def test_a_retired_slot_stops_its_chain_and_gets_no_other(rows: Transactions, lease: Lease) -> None:
    rows.slots.retire("gpu0", "anna")
    assert rows.chains.flags("c", lease.fence).stop and rows.expired_chains() == [], "it has the time to stop"
    assert rows.slots.get("gpu0") is None
    with pytest.raises(SlotTaken):
        rows.chains.assign("d", "plan", "gpu0", WORK, TTL)


def test_a_retired_slot_does_not_begin_its_assigned_chain(rows: Transactions) -> None:
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    rows.slots.retire("gpu0", "anna")
    assert rows.expired_chains() == ["c"]
    assert not rows.chains.get("c").stop  # the flag is for workers that have begun


def test_a_retired_slot_lets_a_trained_chain_be_saved(rows: Transactions, lease: Lease) -> None:
    rows.chains.release("c", lease.fence, None)
    before = rows.chains.get("c")
    rows.slots.retire("gpu0", "anna")
    assert rows.chains.get("c") == before


@pytest.mark.parametrize("begun", [True, False])
def test_a_retired_slot_leaves_the_chains_of_others_alone(rows: Transactions, lease: Lease, begun: bool) -> None:
    rows.chains.assign("d", "plan", "gpu1", WORK, TTL)
    if begun:
        rows.chains.claim("d", "berta", TTL)
    before = rows.chains.get("d")
    rows.slots.retire("gpu0", "anna")
    assert rows.chains.get("d") == before


def test_a_slot_is_retired_by_its_owner_only(rows: Transactions, lease: Lease) -> None:
    rows.slots.take("gpu0", "carla", instead_of="anna", **HERE)
    rows.slots.retire("gpu0", "anna")
    assert rows.slots.get("gpu0").owner == "carla"
    assert not rows.chains.get("c").stop


def test_forgotten_slots_leave_their_chains_to_the_tick(rows: Transactions, lease: Lease) -> None:
    rows.chains.assign("d", "plan", "gpu1", WORK, TTL)
    rows.chains.end("d")
    before = rows.chains.get("d")
    rows.slots.forget_all()
    assert rows.slots.all() == []
    assert rows.expired_chains() == [lease.chain]
    assert rows.chains.get("d") == before  # ended chains stay as they were
