"""Chains: assigned once, claimed once, ended once; on both databases."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from weakref import ref

import pytest
from assignments import WORK, stage, work
from transactions import TTL, Clock, Transactions, count_winners

from app.events.rows import ChainFlags, ChainNotClaimable, Fenced, Lease, LeaseFence, SlotTaken

FENCE = LeaseFence(1, "worker")


def test_a_slot_has_one_chain(rows: Transactions) -> None:
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    with pytest.raises(SlotTaken):
        rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    with pytest.raises(SlotTaken):
        rows.chains.assign("d", "plan", "nowhere", WORK, TTL)
    assert rows.chains.get("d") is None
    assert rows.free_slots() == ["gpu1"]


def test_a_slot_is_free_when_the_last_chain_of_its_pack_is(rows: Transactions) -> None:
    rows.chains.assign("b", "plan", "gpu0", WORK, TTL)
    for chain in "ac":
        rows.chains.assign(chain, "plan", "gpu0", WORK, TTL, "b")
    with pytest.raises(SlotTaken):
        rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    for ended, left in (("b", "a"), ("a", "c"), ("c", None)):
        assert rows.slots.get("gpu0").chain == ended
        rows.chains.claim(ended, "worker", TTL)
        rows.chains.release(ended, FENCE, {"step": 3})
        assert rows.slots.get("gpu0").chain == left


def test_a_chain_joins_only_the_one_that_its_slot_has(rows: Transactions) -> None:
    rows.chains.assign("b", "plan", "gpu0", WORK, TTL)
    with pytest.raises(SlotTaken):
        rows.chains.assign("a", "plan", "gpu1", WORK, TTL, "b")


def test_of_two_claims_of_a_slot_at_once_one_succeeds(rows: Transactions) -> None:
    assert count_winners(lambda n: rows.chains.assign(f"c{n}", "plan", "gpu0", WORK, TTL), SlotTaken) == 1
    assert len(rows.chains.live()) == 1


# From ready to done


def test_a_chain_from_assignment_to_its_end(rows: Transactions, clock: Clock) -> None:
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    row = rows.chains.get("c")
    assert (row.state, row.fence, row.owner, row.lease_until) == ("ready", 0, None, 1060.0)
    clock.at = 1010.0
    lease = rows.chains.claim("c", "worker", TTL)
    assert lease == Lease("c", "plan", "gpu0", FENCE, WORK, ChainFlags())
    clock.at = 1050.0
    assert rows.chains.heartbeat("c", FENCE, TTL, 7) == ChainFlags()
    rows.chains.advance("c", FENCE, 1)
    row = rows.chains.get("c")
    assert (row.state, row.owner, row.index, row.step) == ("running", "worker", 1, 7)
    assert row.lease_until == 1110.0
    rows.chains.finish("c", FENCE)
    assert (rows.chains.get("c").state, rows.slots.get("gpu0").chain, rows.slots.get("gpu0").resident_model) == (
        "done",
        None,
        None,
    )


def test_a_chain_is_claimed_once(rows: Transactions, lease: Lease, clock: Clock) -> None:
    with pytest.raises(ChainNotClaimable):
        rows.chains.claim("c", "other", TTL)
    clock.at += 2 * TTL
    with pytest.raises(ChainNotClaimable):  # even after the lease has expired: the tick ends such a chain
        rows.chains.claim("c", "other", TTL)
    with pytest.raises(ChainNotClaimable):
        rows.chains.claim("unknown", "other", TTL)
    assert rows.chains.get("c").owner == "worker"


def test_of_many_claims_of_a_chain_at_once_one_succeeds(rows: Transactions) -> None:
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    assert count_winners(lambda n: rows.chains.claim("c", f"w{n}", TTL), ChainNotClaimable) == 1
    assert rows.chains.get("c").fence == 1


def test_a_chain_that_is_over_is_not_claimed(rows: Transactions, lease: Lease) -> None:
    rows.chains.finish("c", lease.fence)
    rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    rows.chains.end("d")
    for chain in "cd":
        with pytest.raises(ChainNotClaimable):
            rows.chains.claim(chain, "other", TTL)


def test_marks_and_stop_reach_the_worker(rows: Transactions, lease: Lease) -> None:
    rows.chains.ask_evaluation("c", [30, 10])
    rows.chains.ask_evaluation("c", [20, 10])
    assert rows.chains.flags("c", lease.fence) == ChainFlags((10, 20, 30), False)
    rows.chains.ask_stop("c")
    assert rows.chains.heartbeat("c", lease.fence, TTL, 1) == ChainFlags((10, 20, 30), True)
    rows.chains.ask_evaluation("unknown", [1])


def test_each_chain_gets_its_own_flags(rows: Transactions, lease: Lease) -> None:
    rows.chains.assign("d", "plan", "gpu1", WORK, TTL)
    other = rows.chains.claim("d", "other", TTL)
    rows.chains.ask_evaluation("c", [5])
    rows.chains.ask_stop("d")
    assert rows.chains.flags("c", lease.fence) == ChainFlags((5,), False)
    assert rows.chains.flags("d", other.fence) == ChainFlags((), True)


def test_marks_from_before_the_claim_come_with_the_lease(rows: Transactions) -> None:
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    rows.chains.ask_evaluation("c", [5])
    assert rows.chains.claim("c", "worker", TTL).flags == ChainFlags((5,))


def test_marks_added_at_once_are_all_kept(rows: Transactions, lease: Lease) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: rows.chains.ask_evaluation("c", [n]), range(12)))
    assert rows.chains.flags("c", lease.fence).extra_eval_steps == tuple(range(12))


def test_a_slot_is_free_while_its_last_chain_is_being_saved(rows: Transactions, lease: Lease, clock: Clock) -> None:
    rows.chains.release("c", lease.fence, {"node": "n"})
    rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    rows.chains.heartbeat("c", lease.fence, TTL, 9)
    rows.chains.report("c", lease.fence)
    assert rows.chains.flags("c", lease.fence) == ChainFlags((), False)
    assert ([row.chain for row in rows.chains.live()], rows.slots.get("gpu0").resident_model) == (
        ["c", "d"],
        {"node": "n"},
    )
    with pytest.raises(ChainNotClaimable):
        rows.chains.claim("c", "other", TTL)
    rows.chains.finish("c", lease.fence)
    assert (rows.chains.get("c").state, rows.slots.get("gpu0").chain) == ("done", "d")
    assert rows.slots.get("gpu0").resident_model == {"node": "n"}


def test_a_chain_that_is_being_saved_may_be_lost(rows: Transactions, lease: Lease, clock: Clock) -> None:
    rows.chains.release("c", lease.fence, None)
    rows.chains.assign("d", "plan", "gpu0", WORK, 3 * TTL)
    clock.at += TTL + 1
    assert rows.expired_chains() == ["c"]
    rows.chains.end_expired("c")
    assert (rows.chains.get("c").state, rows.slots.get("gpu0").chain) == ("ended", "d")
    with pytest.raises(Fenced):
        rows.chains.report("c", lease.fence)


# Time runs out


def test_a_chain_without_a_heartbeat_expires(rows: Transactions, lease: Lease, clock: Clock) -> None:
    rows.chains.assign("d", "other", "gpu1", WORK, TTL)
    clock.at += TTL
    assert rows.expired_chains() == []
    rows.chains.heartbeat("c", lease.fence, TTL, 1)
    clock.at += 1
    assert rows.expired_chains() == ["d"]
    assert [row.chain for row in rows.chains.live()] == ["c", "d"]
    assert [row.chain for row in rows.chains.live("plan")] == ["c"]


def test_only_a_chain_whose_lease_ran_out_is_ended_for_that(rows: Transactions, lease: Lease, clock: Clock) -> None:
    clock.at += TTL + 1
    assert rows.expired_chains() == ["c"]
    rows.chains.heartbeat("c", lease.fence, TTL, 1)  # the worker was only slow
    with pytest.raises(Fenced):
        rows.chains.end_expired("c")
    clock.at += TTL + 1
    rows.chains.end_expired("c")
    assert (rows.chains.get("c").state, rows.slots.get("gpu0").chain, rows.expired_chains()) == ("ended", None, [])


@pytest.mark.parametrize("again", ["end", "end_expired"])
def test_a_chain_ends_once(rows: Transactions, lease: Lease, clock: Clock, again: str) -> None:
    clock.at += 2 * TTL
    rows.chains.end("c")
    rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    with pytest.raises(Fenced):
        getattr(rows.chains, again)("c")
    assert (rows.chains.get("c").fence, rows.slots.get("gpu0").chain) == (2, "d")


@pytest.mark.parametrize("end", ["end", "end_expired"])
def test_a_chain_that_is_done_is_not_ended(rows: Transactions, lease: Lease, clock: Clock, end: str) -> None:
    rows.chains.finish("c", lease.fence)
    clock.at += 2 * TTL
    with pytest.raises(Fenced):
        getattr(rows.chains, end)("c")
    assert rows.chains.get("c").state == "done"


def test_a_worker_ends_only_its_own_chain(rows: Transactions, lease: Lease) -> None:
    with pytest.raises(Fenced):
        rows.chains.end("c", replace(lease.fence, number=lease.fence.number - 1))
    assert rows.chains.get("c").state == "running"
    rows.chains.end("c", lease.fence)
    assert rows.chains.get("c").state == "ended"


def test_a_chain_records_its_last_dispatch(rows: Transactions, lease: Lease, clock: Clock) -> None:
    rows.chains.assign("d", "plan", "gpu1", WORK, TTL)
    sent = clock.at
    clock.at += 10
    assert rows.chains.get("d").dispatched_at == sent
    rows.chains.mark_dispatched("d")
    assert [row.dispatched_at for row in rows.chains.live()] == [sent, sent + 10]


def test_requests_for_passed_steps_are_removed(rows: Transactions, lease: Lease) -> None:
    rows.chains.ask_evaluation("c", [5, 7, 9, 10, 20])
    assert rows.chains.heartbeat("c", lease.fence, TTL, 10, kept={7}) == ChainFlags((7, 10, 20))
    assert rows.chains.flags("c", lease.fence) == ChainFlags((7, 10, 20))
    rows.chains.ask_evaluation("c", [30])
    assert rows.chains.flags("c", lease.fence) == ChainFlags((7, 10, 20, 30))


# In memory


def test_an_assignment_is_read_once_and_dropped_with_its_last_holder(rows: Transactions) -> None:
    """Once each process of a server kept the last 4,096 assignments."""
    rows.chains.assign("c", "plan", "gpu0", work(stage("only here")), TTL)
    held = rows.chains.get("c").assignment
    assert rows.chains.get("c").assignment is held
    last = ref(held)
    del held
    gc.collect()
    assert last() is None
