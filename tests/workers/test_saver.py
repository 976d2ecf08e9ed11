"""Checkpoints on their way to the store, and those inside a stage that make room, each without a slot."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event as Flag
from typing import Any

import pytest
from assignments import FENCE, work
from hypothesis import given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain.chain_assignment import ResumePoint
from app.domain.terms import NodeId
from app.events.memory import MemoryRecords
from app.events.rows import RowsPort
from app.outages import DatabaseUnavailable
from app.workers.slot.checkpoint_store import SMALL, CheckpointStore
from app.workers.slot.claim import Claim
from app.workers.slot.host_backlog import HostBacklog
from app.workers.slot.intermediates import IntermediateCheckpoints, IntermediateState
from app.workers.slot.retry import RetryPolicy
from app.workers.slot.saver import SAVE_SECONDS, TRIES_BEFORE_NOTE, Saver
from app.workers.slot.slot_status import SlotStatus
from app.workers.state import State
from tests.plans import max_examples

CLAIM = Claim("c", "plan", FENCE)


class Refusing:
    """A store that takes nothing, and deletes nothing."""

    prefix = ""

    def write(self, key: str, parts: Any) -> None:
        raise ConnectionError("no store")

    def read(self, key: str) -> Iterator[bytes]:
        raise ConnectionError("no store")

    def delete(self, key: str) -> None:
        raise ConnectionError("no store")


def saver(wait: Callable[[float], object] = lambda seconds: None) -> tuple[Saver, SlotStatus]:
    notes = SlotStatus()
    return Saver(CheckpointStore(Refusing()), RetryPolicy(wait), notes, lambda: 0.0), notes


def test_undeletable_states_are_left_to_the_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    made, deleted = saver()[0], list[str]()
    with caplog.at_level(logging.INFO):
        made.delete(CLAIM, ["key"], lambda: deleted.append("key"))
        assert made.drain(60.0)
    assert "checkpoint key cannot be deleted: ConnectionError: no store; the scheduler will" in caplog.text
    assert not deleted
    made.close()


class Slow(Refusing):
    """A store that takes nothing this many times."""

    prefix = ""

    def __init__(self, times: int) -> None:
        self._left = times

    def write(self, key: str, parts: Any) -> None:
        self._left -= 1
        if self._left >= 0:
            raise ConnectionError("no store")


def test_an_unavailable_store_is_waited_for_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    notes, said, stored = SlotStatus(), list[str | None](), list[object]()
    patience = RetryPolicy(lambda seconds: said.append(notes.text))
    made = Saver(CheckpointStore(Slow(6)), patience, notes, lambda: 0.0)
    made.save(CLAIM, "place", State.from_bytes(b"state"), lambda *found: stored.append(found))
    assert made.drain(60.0)
    (sentence,) = caplog.messages
    assert sentence.startswith("waiting for the store: checkpoint place-")
    assert said[: TRIES_BEFORE_NOTE - 1] == [None] * (TRIES_BEFORE_NOTE - 1)
    assert all("waits for the store" in (each or "") for each in said[TRIES_BEFORE_NOTE - 1 :]) and len(said) == 6
    assert len(stored) == 1 and notes.text is None
    made.close()


class Timed(Refusing):
    """A store that takes a state in some seconds, by a clock of its own; or fails after that time, if below 0."""

    def __init__(self, seconds: list[float]) -> None:
        self.now, self._seconds = 0.0, iter(seconds)

    def write(self, key: str, parts: Any) -> None:
        seconds = next(self._seconds)
        self.now += abs(seconds)
        if seconds < 0:
            raise ConnectionError("no store")


def cost_after(store: Timed, states: int, copy_seconds: float = 0.0) -> float:
    """The estimated cost of keeping a state, once some were kept."""

    def wait(seconds: float) -> None:
        store.now += seconds

    made = Saver(CheckpointStore(store), RetryPolicy(wait), SlotStatus(), lambda: store.now)  # type: ignore[arg-type,return-value]
    for number in range(states):
        made.save(CLAIM, f"place-{number}", State.from_bytes(b"state"), lambda *_: None, copy_seconds=copy_seconds)
        assert made.drain(60.0)
    made.close()
    return made.seconds("plan")


@pytest.mark.parametrize(
    ("seconds", "copy_seconds", "cost"),
    [
        pytest.param([0.02, -60.0, 0.02], 0.0, 0.02, id="an outage is no part of it"),
        pytest.param([0.02, 0.02, 90.0], 0.0, 0.02, id="one slow state does not make the next ones rare"),
        pytest.param([120.0] * 3, 0.0, SAVE_SECONDS, id="a long upload costs training little"),
        pytest.param([120.0] * 3, 3.0, 3.0 + SAVE_SECONDS, id="long copies cost as much"),
    ],
)
def test_what_keeping_a_state_is_said_to_cost(seconds: list[float], copy_seconds: float, cost: float) -> None:
    """After a minute without the store nothing was kept inside a stage for an hour and 40 minutes."""
    states = sum(each > 0 for each in seconds)
    assert cost_after(Timed(seconds), states, copy_seconds) == pytest.approx(cost)


def test_what_is_small_is_told_of_at_once_if_nothing_else_is_on_its_way() -> None:
    may_go_on = Flag()
    made = saver()[0]
    states = {size: State.from_bytes(bytes(size)) for size in (SMALL, SMALL + 1)}
    assert [made.is_quick(state) for state in (None, *states.values())] == [True, True, False]

    def wait() -> None:
        may_go_on.wait(60)

    made.submit(CLAIM, wait)
    assert not made.is_quick(None) and not made.is_quick(states[SMALL])
    may_go_on.set()
    made.close()


def test_an_unneeded_state_is_not_retried() -> None:
    claim, stored = Claim("c", "plan", FENCE), list[object]()
    made, notes = saver(lambda seconds: claim.end_flag.set())
    made.save(claim, "place", State.from_bytes(b"state"), lambda *found: stored.append(found))
    assert made.drain(60.0)
    assert not stored and notes.text is None
    made.close()


def test_saves_after_the_end_of_a_chain_are_dropped() -> None:
    claim, done = Claim("c", "plan", FENCE), list[str]()
    made, _ = saver()
    claim.end_flag.set()
    made.submit(claim, lambda: done.append("late"))
    made.submit(CLAIM, lambda: done.append("mine"))
    assert made.drain(60.0)
    assert done == ["mine"]
    made.close()


# ------------------------------------------------------------------------------------- checkpoints inside a stage


class Room:
    """A limit in bytes, and an outbox and a saver that do their work at once."""

    def __init__(self, limit: int) -> None:
        self.records, self.is_away = MemoryRecords(lambda: 0.0), False
        self.facts, self.deleted = list[e.Event](), list[str]()
        self.intermediates = IntermediateCheckpoints(CLAIM, limit, self, self, self)  # type: ignore[arg-type]

    @contextmanager
    def read(self) -> Iterator[RowsPort]:
        if self.is_away:
            raise DatabaseUnavailable("away")
        with self.records.read() as rows:
            yield rows

    def put(self, claim: Claim, facts: list[e.Event], on_recorded: Callable[[], None] = lambda: None) -> None:
        self.facts += facts
        on_recorded()

    def submit(self, claim: Claim, do: Callable[[], None]) -> None:
        do()

    def delete(self, claim: Claim, keys: Sequence[str], on_deleted: Callable[[], None]) -> None:
        self.deleted += keys
        on_deleted()

    def keep(self, step: int, node: str = "n", best_for: tuple[int, ...] = ()) -> None:
        """One more, of ten bytes."""
        key = f"{node}{step}"
        kept = e.CheckpointKept(node=NodeId(node), step=step, key=key, sha256="", size=10, intermediate=True)
        self.intermediates.keep(IntermediateState(kept, 0, (), best_for))

    @property
    def dropped_keys(self) -> list[str]:
        return [fact.key for fact in self.facts if isinstance(fact, e.CheckpointDropped)]


def test_no_more_goes_than_must() -> None:
    room = Room(30)
    for step in range(1, 5):
        room.keep(step)
    assert room.dropped_keys == room.deleted == ["n1"]


def test_that_of_another_stage_stays() -> None:
    room = Room(10)
    room.keep(1, "trunk")
    room.keep(5, "branch")
    room.keep(6, "branch")
    assert room.dropped_keys == ["branch5"]


def test_the_best_state_of_each_study_stays_until_another_one_is_better() -> None:
    room = Room(0)
    for step, best_for in ((1, (0, 1)), (2, (1,)), (3, ()), (4, (1,)), (5, ())):
        room.keep(step, best_for=best_for)
    assert room.dropped_keys == ["n2", "n3"]
    assert [each.key for each in room.intermediates.release_at_end()] == ["n5"]
    assert not room.intermediates.release_at_end()


def test_the_best_state_before_others_part_stays() -> None:
    """One that is better, on another trial's way, took its place."""
    room = Room(0)
    for step, node in ((1, "trunk"), (5, "branch"), (6, "branch")):
        room.keep(step, node, best_for=(0,))
    assert room.dropped_keys == ["branch5"]
    assert not room.intermediates.release_at_end()


@pytest.mark.parametrize("how", [{"resume": "n1"}, {"mean": ((ResumePoint("n", 1, "n1", ""), 1.0),)}])
def test_one_where_another_chain_begins_stays(how: dict[str, Any]) -> None:
    room = Room(10)
    with room.records.write() as rows:
        rows.slots.take("gpu1", "berta", instead_of=None, device="cpu", host="here", pid=1)
        rows.chains.assign("d", "plan", "gpu1", work(**how), 60.0)
    for step in range(1, 4):
        room.keep(step)
    assert room.dropped_keys == ["n2"]


def test_while_that_is_not_known_all_stay() -> None:
    room = Room(10)
    room.is_away = True
    for step in range(1, 4):
        room.keep(step)
    assert room.dropped_keys == []
    room.is_away = False
    room.keep(4)
    assert sorted(room.dropped_keys) == ["n1", "n2", "n3"]


def test_where_there_is_no_room_the_newest_stays_until_the_end_of_its_stage_is_kept() -> None:
    """Nothing was kept once a plan had spent its budget: an accident cost the whole stage."""
    room = Room(1)
    for step in range(1, 4):
        room.keep(step)
    assert room.dropped_keys == ["n1", "n2"]
    assert [each.key for each in room.intermediates.release_at_end()] == ["n3"]
    assert not room.intermediates.release_at_end()


def test_what_there_is_room_for_stays_at_the_end_of_a_stage() -> None:
    room = Room(20)
    for step in range(1, 3):
        room.keep(step)
    assert not room.intermediates.release_at_end()


def test_where_another_chain_begins_it_stays_at_the_end_too() -> None:
    room = Room(1)
    with room.records.write() as rows:
        rows.slots.take("gpu1", "berta", instead_of=None, device="cpu", host="here", pid=1)
        rows.chains.assign("d", "plan", "gpu1", work(resume="n1"), 60.0)
    room.keep(1)
    assert not room.intermediates.release_at_end()


# ------------------------------------------------------------------------------------- bytes on their way from a host


@pytest.fixture
def backlogs(tmp_path: Path) -> Iterator[Callable[[], HostBacklog]]:
    """Of slots of one host, which hold 100 bytes in all."""
    made: list[HostBacklog] = []

    def make() -> HostBacklog:
        made.append(HostBacklog(tmp_path / "backlog", 100))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_slots_of_a_host_hold_so_many_bytes_and_one_state_each(backlogs: Callable[[], HostBacklog]) -> None:
    one, other = backlogs(), backlogs()
    assert (one.add(60), one.add(30)) == (0, 0)
    assert other.add(500) == 0  # its first, however large: it could never be stored else
    assert (one.add(1), other.add(1)) == (590, 590)
    other.remove(500)
    assert one.add(10) == 0 and one.add(1) == 100
    one.remove(60)
    assert one.add(60) == 0


def test_what_a_dead_process_had_on_its_way_is_not_waited_for(
    backlogs: Callable[[], HostBacklog], tmp_path: Path
) -> None:
    alive, reading, writing = backlogs(), *os.pipe()
    if (pid := os.fork()) == 0:
        HostBacklog(tmp_path / "backlog", 100).add(90)  # closed by its death alone
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    assert (alive.add(20), alive.add(20)) == (0, 110)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert alive.add(20) == 0
    assert len(list((tmp_path / "backlog").glob("*.bytes"))) == 1


def test_a_process_stopped_in_the_middle_delays_no_other(
    backlogs: Callable[[], HostBacklog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagetree.backoff.Backoff.seconds", lambda self, failures: 0.0)
    one = backlogs()
    with (tmp_path / "backlog/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (one.add(90), one.add(90)) == (0, 0)
    assert one.add(90) == 180


def test_a_folder_that_cannot_be_used_bounds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    backlog = HostBacklog(tmp_path / "file", 1)
    assert [backlog.add(10) for _ in range(3)] == [0, 0, 0]
    backlog.remove(10)
    assert "are not counted in" in caplog.text


@max_examples(25)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=30))
def test_never_more_than_the_limit_beyond_one_state_each(asked: list[tuple[int, int]]) -> None:
    """A size of 0 takes the oldest state of a slot off."""
    with TemporaryDirectory() as folder:
        slots = [HostBacklog(Path(folder), 100) for _ in range(3)]
        held: list[list[int]] = [[], [], []]
        for number, size in asked:
            if not size and held[number]:
                slots[number].remove(held[number].pop(0))
            elif size:
                total, is_first = sum(map(sum, held)), not held[number]
                there = slots[number].add(size)
                assert there == (0 if is_first or total + size <= 100 else total)
                held[number] += [] if there else [size]
        for each in slots:
            each.close()


def test_training_waits_for_space_and_its_slot_reports_it(backlogs: Callable[[], HostBacklog]) -> None:
    """Of five states of 60 bytes, one may be on its way: the others are not even taken, and the first one's end lets
    the next one in."""
    notes, said, go_on = SlotStatus(), list[str | None](), Flag()
    store = Held(go_on)

    def wait(seconds: float) -> None:
        said.append(notes.text)
        go_on.set()

    made = Saver(CheckpointStore(store), RetryPolicy(wait), notes, lambda: 0.0, backlog=backlogs())
    stored = list[object]()
    for number in range(5):
        made.save(CLAIM, f"place-{number}", State.from_bytes(bytes(60)), stored.append)
    assert made.drain(60.0)
    assert len(stored) == 5 and notes.text is None
    assert said[0] == "waits for the store: 60 bytes of states are on their way to it from this host, of 100"
    made.close()


class Held(Refusing):
    """A store that takes states once it may."""

    def __init__(self, go_on: Flag) -> None:
        self._go_on = go_on

    def write(self, key: str, parts: Any) -> None:
        assert self._go_on.wait(60)


def test_unneeded_states_free_space(backlogs: Callable[[], HostBacklog]) -> None:
    claim, backlog, closed = Claim("c", "plan", FENCE), backlogs(), list[bool]()
    made = Saver(CheckpointStore(Held(Flag())), RetryPolicy(lambda _: None), SlotStatus(), lambda: 0.0, backlog=backlog)
    claim.end_flag.set()
    made.save(claim, "place", State(os.memfd_create("x"), 90, closed.append), lambda stored: None)
    assert made.drain(60.0)
    assert closed == [False] and (backlog.add(1), backlog.add(99)) == (0, 0)
    made.close()
