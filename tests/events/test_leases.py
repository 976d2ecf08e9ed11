"""The contract of the leases on both databases. Time is the test's. Each fence has a test that fails without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.domain.events import StageCompleted
from app.events import leases
from app.events.database import Database
from app.events.leases import Beat, Fenced, Lease, Refused, SlotTaken
from app.events.log import SqlLog

TTL = 60.0


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(database_url: str, clock: Clock) -> Iterator[Database]:
    database = Database(database_url, clock=clock)
    yield database
    database.dispose()


@pytest.fixture
def run(timed: Database) -> Callable:
    """Each call is a transaction of its own."""

    def call(function: Callable, *args: object, **named: object) -> object:
        with timed.write() as session:
            return function(session, *args, **named)

    call(leases.register_slot, "gpu0", "cuda:0", "host", 1)
    call(leases.register_slot, "gpu1", "cuda:1", "host", 2)
    return call


@pytest.fixture
def lease(run: Callable) -> Lease:
    """Chain c is running on gpu0."""
    run(leases.assign, "c", "plan", "gpu0", {"stages": [1]}, TTL)
    return run(leases.claim, "c", "worker", TTL)


def slot(run: Callable, name: str) -> object:
    return next(row for row in run(leases.slots) if row.name == name)


# Slots


def test_slots_are_registered_again_and_seen(run: Callable, clock: Clock) -> None:
    clock.at = 1100.0
    run(leases.register_slot, "gpu0", "cuda:7", "other", 3)
    clock.at = 1200.0
    run(leases.touch_slot, "gpu1")
    assert [(r.name, r.device, r.host, r.pid, r.seen_at) for r in run(leases.slots)] == [
        ("gpu0", "cuda:7", "other", 3, 1100.0),
        ("gpu1", "cuda:1", "host", 2, 1200.0),
    ]
    assert [row.name for row in run(leases.free_slots, 50.0)] == ["gpu1"]


def test_a_worker_that_starts_again_holds_no_model(run: Callable, lease: Lease) -> None:
    run(leases.finish, "c", lease.fence, {"plan": "p", "node": "n", "step": 5})
    assert slot(run, "gpu0").warm == {"plan": "p", "node": "n", "step": 5}
    run(leases.register_slot, "gpu0", "cuda:0", "host", 9)
    assert slot(run, "gpu0").warm is None


def test_a_slot_has_one_chain(run: Callable) -> None:
    run(leases.assign, "c", "plan", "gpu0", {}, TTL)
    with pytest.raises(SlotTaken):
        run(leases.assign, "d", "plan", "gpu0", {}, TTL)
    with pytest.raises(SlotTaken):
        run(leases.assign, "d", "plan", "nowhere", {}, TTL)
    assert run(leases.get, "d") is None
    assert [row.name for row in run(leases.free_slots, TTL)] == ["gpu1"]


def test_of_two_that_take_a_slot_at_once_one_gets_it(run: Callable) -> None:
    def take(n: int) -> bool:
        try:
            run(leases.assign, f"c{n}", "plan", "gpu0", {}, TTL)
        except SlotTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 1
    assert len(run(leases.live)) == 1


# From ready to done


def test_a_chain_from_assignment_to_its_end(run: Callable, clock: Clock) -> None:
    run(leases.assign, "c", "plan", "gpu0", {"stages": [1]}, TTL)
    row = run(leases.get, "c")
    assert (row.state, row.fence, row.owner, row.lease_until, row.started_at) == ("ready", 0, None, 1060.0, None)
    clock.at = 1010.0
    lease = run(leases.claim, "c", "worker", TTL)
    assert lease == Lease("c", "plan", "gpu0", 1, {"stages": [1]}, ())
    clock.at = 1050.0
    assert run(leases.heartbeat, "c", 1, TTL, 0, 7) == Beat((), False)
    run(leases.advance, "c", 1, 1)
    row = run(leases.get, "c")
    assert (row.state, row.owner, row.index, row.step) == ("running", "worker", 1, 7)
    assert (row.lease_until, row.started_at, row.beat_at) == (1110.0, 1010.0, 1050.0)
    run(leases.finish, "c", 1, None)
    assert (run(leases.get, "c").state, slot(run, "gpu0").chain, slot(run, "gpu0").warm) == ("done", None, None)


def test_a_chain_is_claimed_once(run: Callable, lease: Lease, clock: Clock) -> None:
    with pytest.raises(Refused):
        run(leases.claim, "c", "other", TTL)
    clock.at += 2 * TTL
    with pytest.raises(Refused):  # even when the lease has run out: the tick ends such a chain
        run(leases.claim, "c", "other", TTL)
    with pytest.raises(Refused):
        run(leases.claim, "unknown", "other", TTL)
    assert run(leases.get, "c").owner == "worker"


def test_of_many_that_claim_at_once_one_gets_it(run: Callable) -> None:
    run(leases.assign, "c", "plan", "gpu0", {}, TTL)

    def take(n: int) -> bool:
        try:
            run(leases.claim, "c", f"w{n}", TTL)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 1
    assert run(leases.get, "c").fence == 1


def test_a_chain_that_is_over_is_not_claimed(run: Callable, lease: Lease) -> None:
    run(leases.finish, "c", lease.fence, None)
    run(leases.assign, "d", "plan", "gpu0", {}, TTL)
    run(leases.end, "d")
    for chain in "cd":
        with pytest.raises(Refused):
            run(leases.claim, chain, "other", TTL)


def test_marks_and_stop_reach_the_worker(run: Callable, lease: Lease) -> None:
    run(leases.add_marks, "c", [30, 10])
    run(leases.add_marks, "c", [20, 10])
    assert run(leases.peek, "c", lease.fence) == Beat((10, 20, 30), False)
    run(leases.request_stop, "c")
    assert run(leases.heartbeat, "c", lease.fence, TTL, 0, 1) == Beat((10, 20, 30), True)
    run(leases.add_marks, "unknown", [1])


def test_marks_from_before_the_claim_come_with_the_lease(run: Callable) -> None:
    run(leases.assign, "c", "plan", "gpu0", {}, TTL)
    run(leases.add_marks, "c", [5])
    assert run(leases.claim, "c", "worker", TTL).marks == (5,)


def test_marks_added_at_once_are_all_kept(run: Callable, lease: Lease) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: run(leases.add_marks, "c", [n]), range(12)))
    assert run(leases.peek, "c", lease.fence).marks == tuple(range(12))


def test_a_slot_is_free_while_its_last_chain_is_being_saved(run: Callable, lease: Lease, clock: Clock) -> None:
    run(leases.release, "c", lease.fence, {"node": "n"})
    run(leases.assign, "d", "plan", "gpu0", {}, TTL)
    run(leases.heartbeat, "c", lease.fence, TTL, 1, 9)
    run(leases.guard, "c", lease.fence)
    assert run(leases.peek, "c", lease.fence) == Beat((), False)
    assert ([row.chain for row in run(leases.live)], slot(run, "gpu0").warm) == (["c", "d"], {"node": "n"})
    with pytest.raises(Refused):
        run(leases.claim, "c", "other", TTL)
    run(leases.finish, "c", lease.fence)
    assert (run(leases.get, "c").state, slot(run, "gpu0").chain) == ("done", "d")
    assert slot(run, "gpu0").warm == {"node": "n"}


def test_a_chain_that_is_being_saved_may_be_lost(run: Callable, lease: Lease, clock: Clock) -> None:
    run(leases.release, "c", lease.fence, None)
    run(leases.assign, "d", "plan", "gpu0", {}, 3 * TTL)
    clock.at += TTL + 1
    assert [row.chain for row in run(leases.expired)] == ["c"]
    run(leases.end_expired, "c")
    assert (run(leases.get, "c").state, slot(run, "gpu0").chain) == ("ended", "d")
    with pytest.raises(Fenced):
        run(leases.guard, "c", lease.fence)


# Time runs out


def test_what_a_dead_process_left_on_its_slot_expires_at_once(run: Callable, lease: Lease) -> None:
    run(leases.assign, "d", "plan", "gpu1", {}, TTL)
    run(leases.expire_slot, "gpu0")
    assert [row.chain for row in run(leases.expired)] == ["c"]


def test_a_chain_expires_unless_it_is_heard_of(run: Callable, lease: Lease, clock: Clock) -> None:
    run(leases.assign, "d", "other", "gpu1", {}, TTL)
    clock.at += TTL
    assert run(leases.expired) == []
    run(leases.heartbeat, "c", lease.fence, TTL, 0, 1)
    clock.at += 1
    assert [row.chain for row in run(leases.expired)] == ["d"]
    assert [row.chain for row in run(leases.live)] == ["c", "d"]
    assert [row.chain for row in run(leases.live, "plan")] == ["c"]


def test_only_a_chain_whose_lease_ran_out_is_ended_for_that(run: Callable, lease: Lease, clock: Clock) -> None:
    clock.at += TTL + 1
    assert [row.chain for row in run(leases.expired)] == ["c"]
    run(leases.heartbeat, "c", lease.fence, TTL, 0, 1)  # it was only slow
    with pytest.raises(Fenced):
        run(leases.end_expired, "c")
    clock.at += TTL + 1
    run(leases.end_expired, "c")
    assert (run(leases.get, "c").state, slot(run, "gpu0").chain, run(leases.expired)) == ("ended", None, [])


@pytest.mark.parametrize("again", [leases.end, leases.end_expired])
def test_a_chain_ends_once(run: Callable, lease: Lease, clock: Clock, again: Callable) -> None:
    clock.at += 2 * TTL
    run(leases.end, "c")
    run(leases.assign, "d", "plan", "gpu0", {}, TTL)
    with pytest.raises(Fenced):
        run(again, "c")
    assert (run(leases.get, "c").fence, slot(run, "gpu0").chain) == (2, "d")


@pytest.mark.parametrize("end", [leases.end, leases.end_expired])
def test_a_chain_that_is_done_is_not_ended(run: Callable, lease: Lease, clock: Clock, end: Callable) -> None:
    run(leases.finish, "c", lease.fence, None)
    clock.at += 2 * TTL
    with pytest.raises(Fenced):
        run(end, "c")
    assert run(leases.get, "c").state == "done"


def test_a_worker_ends_only_its_own_chain(run: Callable, lease: Lease) -> None:
    with pytest.raises(Fenced):
        run(leases.end, "c", lease.fence - 1)
    assert run(leases.get, "c").state == "running"
    run(leases.end, "c", lease.fence)
    assert run(leases.get, "c").state == "ended"


def test_what_was_sent_long_ago_and_not_claimed_is_sent_again(run: Callable, lease: Lease, clock: Clock) -> None:
    run(leases.assign, "d", "plan", "gpu1", {}, TTL)
    clock.at += 10
    assert run(leases.stale, 10) == []
    clock.at += 1
    assert [row.chain for row in run(leases.stale, 10)] == ["d"]
    run(leases.mark_dispatched, "d")
    assert run(leases.stale, 10) == []


# Fences

WRITES = {
    "heartbeat": lambda s, fence: leases.heartbeat(s, "c", fence, TTL, 9, 99),
    "peek": lambda s, fence: leases.peek(s, "c", fence),
    "advance": lambda s, fence: leases.advance(s, "c", fence, 9),
    "release": lambda s, fence: leases.release(s, "c", fence, {"late": True}),
    "finish": lambda s, fence: leases.finish(s, "c", fence, {"late": True}),
    "guard": lambda s, fence: leases.guard(s, "c", fence),
    "end": lambda s, fence: leases.end(s, "c", fence),
}


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Callable:
    return WRITES[request.param]


def state(run: Callable) -> tuple[object, object]:
    return run(leases.get, "c").model_dump(), [row.model_dump() for row in run(leases.slots)]


@pytest.mark.parametrize("wrong", [-1, 1])
def test_another_fence_is_refused(run: Callable, lease: Lease, write: Callable, wrong: int) -> None:
    before = state(run)
    with pytest.raises(Fenced):
        run(write, lease.fence + wrong)
    assert state(run) == before


def test_a_zombie_is_refused(run: Callable, lease: Lease, write: Callable) -> None:
    run(leases.end, "c")
    run(leases.assign, "d", "plan", "gpu0", {}, TTL)
    before = state(run)
    with pytest.raises(Fenced):
        run(write, lease.fence)
    assert state(run) == before


def test_the_number_of_a_chain_that_ended_proves_nothing(run: Callable, lease: Lease, write: Callable) -> None:
    """The state is part of the proof: a number made up, or read from the row, is not enough."""
    run(leases.end, "c")
    with pytest.raises(Fenced):
        run(write, lease.fence + 1)


def test_nothing_is_written_for_a_chain_that_was_not_claimed(run: Callable, write: Callable) -> None:
    run(leases.assign, "c", "plan", "gpu0", {}, TTL)
    if write is not WRITES["end"]:  # which the tick may, claimed or not
        with pytest.raises(Fenced):
            run(write, 0)


def test_when_all_is_done_only_late_facts_are_let_through(run: Callable, lease: Lease, write: Callable) -> None:
    run(leases.finish, "c", lease.fence, None)
    run(leases.assign, "d", "plan", "gpu0", {}, TTL)
    if write is WRITES["guard"]:
        run(write, lease.fence)
        return
    with pytest.raises(Fenced):
        run(write, lease.fence)
    assert slot(run, "gpu0").chain == "d"


def test_a_retired_slot_stops_its_chain_and_gets_no_other(run: Callable, lease: Lease) -> None:
    run(leases.retire_slot, "gpu0")
    assert run(leases.peek, "c", lease.fence).stop
    assert "gpu0" not in [each.name for each in run(leases.slots)]
    with pytest.raises(SlotTaken):
        run(leases.assign, "d", "plan", "gpu0", {}, TTL)


def test_forgotten_slots_leave_their_chains_to_the_tick(run: Callable, lease: Lease) -> None:
    run(leases.forget_slots)
    assert run(leases.slots) == []
    assert [row.chain for row in run(leases.expired)] == [lease.chain]


def test_a_slow_finish_does_not_free_a_slot_of_others(run: Callable, lease: Lease, timed: Database) -> None:
    """Should chain and slot ever disagree, the slot goes by its own row."""
    with timed.write() as session:
        session.execute(text("UPDATE slots SET chain = 'x' WHERE name = 'gpu0'"))
    run(leases.finish, "c", lease.fence, None)
    assert slot(run, "gpu0").chain == "x"


def test_a_fact_of_a_zombie_is_not_recorded(run: Callable, lease: Lease, timed: Database) -> None:
    log, fact = SqlLog(timed), StageCompleted(chain="c", index=0, seconds=1.0)

    def complete(session: Session) -> None:
        leases.advance(session, "c", lease.fence, 1)

    log.append("plan", [fact], expected=None, at=0.0, alongside=complete)
    run(leases.end, "c")
    with pytest.raises(Fenced):
        log.append("plan", [fact], expected=None, at=0.0, alongside=complete)
    assert log.head() == 1


def test_nobody_ends_a_chain_between_guard_and_commit(postgres_url: str) -> None:
    """On SQLite there is one writer at a time; on PostgreSQL the row's lock makes the other wait."""
    database, order = Database(postgres_url), []
    with database.write() as session:
        leases.register_slot(session, "gpu0", "cuda:0", "host", 1)
        leases.assign(session, "c", "plan", "gpu0", {}, TTL)
        fence = leases.claim(session, "c", "worker", TTL).fence

    def end() -> None:
        with database.write() as session:
            leases.end(session, "c")
            order.append("ended")

    with ThreadPoolExecutor(1) as pool:
        with database.write() as session:
            leases.guard(session, "c", fence)
            ending = pool.submit(end)
            time.sleep(0.2)
            order.append("written")
        ending.result(10)
    assert order == ["written", "ended"]
    database.dispose()


def test_without_a_clock_time_is_that_of_the_database(database: Database) -> None:
    with database.read() as session:
        assert leases.now(session) == pytest.approx(time.time(), abs=5)
        first = leases.now(session)
        time.sleep(0.02)
        assert leases.now(session) > first  # also within one transaction
    with database.write() as session:
        leases.register_slot(session, "gpu0", "cpu", "host", 1)
        leases.assign(session, "c", "plan", "gpu0", {}, TTL)
        assert leases.claim(session, "c", "worker", TTL).fence == 1
        assert leases.get(session, "c").lease_until == pytest.approx(time.time() + TTL, abs=5)
