"""The heartbeat of a slot, by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle
from random import Random
from typing import Any, NoReturn

import pytest
from assignments import FENCE, WORK
from faulty import Clock
from hypothesis import given
from hypothesis import strategies as st
from stacks import wait_for

from app.events.memory import MemoryRecords
from app.events.rows import ChainFlags, RowsPort, SlotTaken
from app.outages import DatabaseUnavailable
from app.workers.slot import heartbeat as module
from app.workers.slot.claim import Claim
from app.workers.slot.heartbeat import Description, Heartbeat, Pulse
from app.workers.threads import THREADS, Executor
from tests.world.fibers import Fibers, Process, Time

LEASE = 60.0


class Anna:
    """Has gpu0, or takes it while it is free."""

    slot, owner = "gpu0", "anna"

    def __init__(self) -> None:
        self.may_take = True

    def take(self, rows: RowsPort, device: str) -> bool:
        if not self.may_take:
            return False
        before = rows.slots.get(self.slot)
        if before is not None:
            raise SlotTaken("slot gpu0 is another's")
        rows.slots.take(self.slot, self.owner, instead_of=None, device=device, host="here", pid=1)
        return True


class Beating:
    """A slot without anything but its heartbeat."""

    def __init__(self, executor: Executor = THREADS, clock: Any = None, every: float = 2.0) -> None:
        self.clock, self.anna = clock or Clock(), Anna()
        self.records = MemoryRecords(self.clock.now)
        self.pulses = list[Pulse]()
        self.looks, self.ends = list[int](), list[str]()
        self.is_retiring, self.said = False, Description()
        self.look: Callable[[], None] = lambda: None
        self.heartbeat = Heartbeat(
            self.anna,
            "cpu",
            self.records,
            pulses=lambda: self.pulses,
            describe=lambda: self.said,
            is_retiring=lambda: self.is_retiring,
            look=self._look,
            end=self.ends.append,
            clock=self.clock.now,
            lease_seconds=LEASE,
            heartbeat_seconds=every,
            executor=executor,
        )

    def _look(self) -> None:
        self.looks.append(1)
        self.look()

    def beat(self) -> None:
        self.clock.wait(2.0)
        self.heartbeat.round()

    def row(self) -> Any:
        with self.records.read() as rows:
            return rows.slots.get("gpu0")

    def begin(self, chain: str = "c") -> Claim:
        """A chain in training."""
        with self.records.write() as rows:
            rows.chains.assign(chain, "plan", "gpu0", WORK, LEASE)
            lease = rows.chains.claim(chain, "anna", LEASE)
        claim = Claim(chain, "plan", lease.fence)
        self.pulses.append(Pulse(claim, 0))
        return claim

    def end(self, chain: str = "c") -> None:
        with self.records.write() as rows:
            rows.chains.end(chain)


@pytest.fixture
def beating() -> Beating:
    made = Beating()
    made.heartbeat.round()
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLAG_SECONDS", 0.01)


def test_the_thread_continues_after_any_error(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    beating, failed = Beating(every=0.05), list[KeyError]()
    beating.heartbeat.start()

    def fail() -> None:
        failed.append(KeyError("strange"))
        raise failed[-1]

    beating.look = fail
    wait_for("some rounds", lambda: len(failed) > 4)
    beating.look, beating.is_retiring = lambda: None, True
    beating.heartbeat.close(60.0)
    assert beating.row() is None  # its last round was a good one
    assert "a round of the heartbeat of slot gpu0 failed" in caplog.text


class Virtual:
    """The clock of fibers, as `Clock`."""

    def __init__(self, time: Time) -> None:
        self.now, self.wait = time.clock, time.wait


def test_where_no_chain_is_it_wakes_only_to_beat_and_one_that_begins_wakes_it_at_once() -> None:
    time = Time(Random(0))
    fibers = Fibers(Process("worker", time))
    beating = Beating(fibers, Virtual(time))
    fibers.spawn("main", beating.heartbeat.start)
    time.run(20.5)
    assert len(beating.looks) == 11
    beating.begin()
    beating.heartbeat.wake()
    time.run(22.0)
    assert len(beating.looks) == 11 + 1 + 6


def send(beating: Beating, chain: str = "c") -> None:
    """The scheduler sends the chain, and the broker takes it."""
    with beating.records.write() as rows:
        row = rows.chains.get(chain)
        if row is None:
            rows.chains.assign(chain, "plan", "gpu0", WORK, LEASE)
        else:
            rows.chains.mark_dispatched(chain)
    for _ in range(7):
        beating.beat()


def test_a_worker_to_which_no_message_comes_ends(beating: Beating) -> None:
    """It looked alive for ever, and every study on it stood still. Its work before that is over."""
    beating.begin("before").end_flag.set()
    beating.end("before")
    send(beating)
    send(beating)
    assert not beating.ends
    send(beating)
    send(beating)
    assert beating.ends == ["slot gpu0 was sent chain c again and again, and nothing arrives here"]


def test_a_late_worker_continues(beating: Beating) -> None:
    for _ in range(2):
        send(beating)
    with beating.records.write() as rows:
        rows.chains.claim("c", "anna", LEASE)
        rows.chains.end("c")
    for _ in range(2):
        send(beating, "d")
    assert not beating.ends


def test_a_worker_whose_broker_takes_nothing_is_not_deaf(beating: Beating) -> None:
    """Nothing was sent again, so nothing could arrive."""
    send(beating)
    for _ in range(100):
        beating.beat()
    assert not beating.ends


def test_an_idle_slot_makes_no_query_between_heartbeats(beating: Beating) -> None:
    beating.beat()
    beating.records.read = lambda: pytest.fail("there is nothing to ask about")  # type: ignore[method-assign]
    beating.heartbeat.round()


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 3.0), min_size=1))
def test_it_looks_for_a_hundredth_of_its_time_and_goes_on_looking(answers: list[float]) -> None:
    """Each look takes as long as the database does for its answer; signs of life are another matter."""
    beating, looks = Beating(), list[float]()
    beating.heartbeat.round()
    beating.begin()
    read, seconds = beating.records.read, cycle(answers)

    def read_late() -> AbstractContextManager[Any]:
        looks.append(next(seconds))
        beating.clock.wait(looks[-1])
        return read()

    beating.records.read = read_late  # type: ignore[method-assign]
    begun_at = beating.clock.now()
    while len(looks) < 20:
        beating.clock.wait(module.FLAG_SECONDS)
        beating.heartbeat.round()
        passed = beating.clock.now() - begun_at
        assert sum(looks[:-1]) <= 0.01 * passed + 1e-6
        assert passed <= 101 * sum(looks) + len(looks) + 1  # the round in which one is due may be a sign of life


def test_an_unreachable_database_is_reported_once(beating: Beating, caplog: pytest.LogCaptureFixture) -> None:
    claim, taken = beating.begin(), beating.records.write

    def away() -> NoReturn:
        raise DatabaseUnavailable("no server")

    for _ in range(2):
        beating.records.write = away  # type: ignore[method-assign]
        for _ in range(3):
            beating.beat()
        beating.records.write = taken  # type: ignore[method-assign]
        beating.beat()
    assert [record.message for record in caplog.records] == 2 * ["slot gpu0 cannot be heard of: no server"]
    assert not claim.end_flag.is_set()


@pytest.mark.parametrize("is_beat", [True, False])
def test_a_chain_that_was_ended_is_given_up(beating: Beating, is_beat: bool) -> None:
    lost, other = beating.begin(), Claim("d", "plan", FENCE)
    with beating.records.write() as rows:
        rows.slots.take("gpu1", "anna", instead_of=None, device="cpu", host="here", pid=1)
        rows.chains.assign("d", "plan", "gpu1", WORK, LEASE)
        rows.chains.claim("d", "anna", LEASE)
        rows.chains.ask_stop("d")
    beating.pulses.append(Pulse(other, 3))
    beating.end()
    if is_beat:
        beating.beat()
    else:
        beating.heartbeat.round()
    assert lost.end_flag.is_set() and not other.end_flag.is_set()
    assert beating.heartbeat.flags == {"d": ChainFlags(stop=True)}


@pytest.mark.parametrize("is_beat", [True, False])
def test_nothing_is_asked_about_a_chain_that_is_over(beating: Beating, is_beat: bool) -> None:
    beating.begin().end_flag.set()
    if is_beat:
        beating.beat()
    else:
        beating.heartbeat.round()
    assert beating.heartbeat.flags == {}


def test_a_chain_is_not_given_up_as_long_as_its_next_message_may_come(
    beating: Beating, caplog: pytest.LogCaptureFixture
) -> None:
    claim = beating.begin()
    since = beating.clock.now()
    beating.pulses[:] = [Pulse(claim, 4, waits_since=since)]
    beating.clock.wait(LEASE - 2.0)
    beating.beat()
    assert not claim.end_flag.is_set()
    beating.beat()
    assert claim.end_flag.is_set() and not beating.heartbeat.flags  # its lease is not renewed
    beating.beat()
    assert caplog.text.count("waited in vain") == 1


def test_a_long_training_waits_for_no_heartbeat(beating: Beating) -> None:
    claim = beating.begin()
    for _ in range(3):
        beating.clock.wait(LEASE / 2)
        beating.beat()
    assert not claim.end_flag.is_set()


def test_whose_slot_was_taken_is_nothing_any_more(beating: Beating) -> None:
    claim = beating.begin()
    with beating.records.write() as rows:
        rows.slots.take("gpu0", "berta", instead_of="anna", device="cpu", host="there", pid=2)
    beating.beat()
    assert claim.end_flag.is_set() and beating.ends == ["slot gpu0 is another's"]
    with beating.records.write() as rows:
        rows.slots.retire("gpu0", "berta")
    beating.beat()
    assert beating.row() is None and len(beating.ends) == 1


def test_a_slot_that_another_may_still_have_is_looked_at_again(beating: Beating) -> None:
    with beating.records.write() as rows:
        rows.slots.forget_all()
    beating.anna.may_take = False
    beating.beat()
    assert beating.row() is None and not beating.heartbeat.is_taken
    beating.anna.may_take = True
    beating.beat()
    assert beating.row().owner == "anna"


def test_an_ending_worker_leaves_its_slot_once(beating: Beating) -> None:
    beating.is_retiring = True
    beating.heartbeat.round()
    assert beating.row() is None
    with beating.records.write() as rows:  # the next one comes in between two beats
        rows.slots.take("gpu0", "anna", instead_of=None, device="cpu", host="here", pid=2)
    beating.heartbeat.round()
    assert beating.row() is not None


def test_what_a_slot_has_is_said_again_only_when_it_is_not_on_record(beating: Beating) -> None:
    beating.said = Description({"toy": "1"}, "waits")
    beating.beat()
    assert (beating.row().trainers, beating.row().note) == ({"toy": "1"}, "waits")
    with beating.records.write() as rows:  # as a chain that is given back does
        rows.slots.quarantine("gpu0", "anna", seconds=60.0, reason="sick")
    beating.beat()
    assert beating.row().note == "sick"
    with beating.records.write() as rows:
        rows.slots.describe("gpu0", "anna", trainers={}, note="sick")
    beating.beat()
    assert (beating.row().trainers, beating.row().note) == ({"toy": "1"}, "waits")


def test_unrecorded_descriptions_are_sent_again(beating: Beating, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of a transaction that failed was not said until it changed."""
    write = beating.records.write

    @contextmanager
    def failing() -> Iterator[RowsPort]:
        try:
            with write() as rows:
                yield rows
                raise ZeroDivisionError  # so that nothing of it stays
        except ZeroDivisionError:
            raise DatabaseUnavailable("the commit failed") from None

    beating.said = Description({}, "waits")
    with monkeypatch.context() as patched:
        patched.setattr(beating.records, "write", failing)
        beating.beat()
    beating.beat()
    assert beating.row().note == "waits"


def test_a_restarted_worker_describes_itself_again(beating: Beating) -> None:
    beating.said = Description({}, "waits")
    beating.beat()
    with beating.records.write() as rows:
        rows.slots.forget_all()
    beating.beat()
    assert beating.row().note == "waits"
