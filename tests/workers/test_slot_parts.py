"""The parts of a slot, each by itself."""

from __future__ import annotations

from threading import Event as Flag
from threading import enumerate as enumerate_threads

import pytest
from stacks import wait_for

from app.workers.slot.health import MAX_FAILED_NODES, QUARANTINE_SECONDS, Health
from app.workers.slot.heartbeat import STOP_SECONDS, UNSAVED_SECONDS, UNWANTED_SECONDS, Watchdog
from app.workers.slot.retry import LONGEST_PAUSE, Closing, RetryPolicy
from app.workers.slot.slot_status import SlotStatus
from app.workers.slot.worker_thread import WorkerThread


def test_patience_waits_longer_each_time_and_for_ever() -> None:
    pauses = list[float]()
    patience = RetryPolicy(pauses.append)
    for number in patience.attempts():
        if number == 20:
            break
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE


def test_patience_ends_when_the_slot_does() -> None:
    patience = RetryPolicy()
    tries = patience.attempts()
    assert next(tries) == 1  # any call is tried once
    patience.close()
    with pytest.raises(Closing):
        next(tries)


def test_things_are_done_in_the_order_in_which_they_came() -> None:
    done = list[int]()
    thread = WorkerThread("test", done.append, RetryPolicy(), capacity=3)
    for number in range(100):
        thread.put(number)
    assert thread.drain(60.0)
    assert done == list(range(100))
    thread.close()


def test_a_queued_job_is_not_done_yet() -> None:
    """Though the thread rests before it begins."""
    may_end = Flag()
    thread = WorkerThread("test", lambda number: may_end.wait(60), RetryPolicy(), capacity=3)
    assert thread.is_idle
    thread.put(1)
    assert not thread.is_idle and not thread.drain(0.0)
    may_end.set()
    assert thread.drain(60.0) and thread.is_idle
    thread.close()


def test_a_thread_that_is_closed_ends() -> None:
    thread = WorkerThread[int]("to be closed", lambda number: None, RetryPolicy(), capacity=3)
    thread.put(1)
    assert thread.drain(60.0)
    thread.close()
    wait_for("its end", lambda: "to be closed" not in {each.name for each in enumerate_threads()})


def test_what_follows_is_taken_as_soon_as_it_is_there() -> None:
    taken, hour = list[tuple[int, int | None]](), 3600.0

    def do(number: int) -> None:
        taken.append((number, thread.take_next(lambda each: True, hour)))

    thread = WorkerThread("test", do, RetryPolicy(), capacity=3)
    thread.put(1)
    thread.put(2)
    assert thread.drain(60.0)
    assert taken == [(1, 2)]
    thread.close()


def test_whoever_brings_too_much_waits_and_stops_waiting_when_the_slot_ends() -> None:
    patience, may_go_on, began = RetryPolicy(), Flag(), Flag()

    def do(number: int) -> None:
        began.set()
        may_go_on.wait(60)

    thread = WorkerThread("test", do, patience, capacity=1)
    thread.put(1)
    began.wait(60)
    thread.put(2, wait=False)  # from a thread that must not wait
    patience.close()
    with pytest.raises(Closing):
        thread.put(3)
    assert not thread.drain(0.0)
    may_go_on.set()
    thread.close()


def test_jobs_taken_together_run_once() -> None:
    done, may_take = list[list[int]](), Flag()

    def do(number: int) -> None:
        may_take.wait(60)
        taken = [number]
        while (following := thread.take_next(lambda each: each < 3, 0.0)) is not None:
            taken.append(following)
        done.append(taken)

    thread = WorkerThread("test", do, RetryPolicy(), capacity=5)
    for number in range(5):
        thread.put(number)
    may_take.set()
    assert thread.drain(60.0)
    assert done == [[0, 1, 2], [3], [4]]
    thread.close()


def test_an_error_of_one_thing_does_not_keep_the_next_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    done = list[int]()

    def do(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError
        if number == 2:
            raise Closing
        done.append(number)

    thread = WorkerThread("test", do, RetryPolicy(), capacity=5)
    for number in range(4):
        thread.put(number)
    assert thread.drain(60.0)
    assert done == [0, 3]
    assert caplog.messages == ["test: failed"]
    thread.close()


def test_notes_of_several_sources_are_one_text() -> None:
    notes = SlotStatus()
    assert notes.text is None
    notes.put("saver", "waits for the store")
    notes.put("health", "is unwell")
    assert notes.text == "is unwell; waits for the store"
    notes.remove("health")
    notes.remove("health")
    assert notes.text == "waits for the store"


def test_a_slot_is_suspect_when_different_nodes_fail_in_a_row() -> None:
    health = Health()
    for node in ("a", "a", "a", "b"):
        health.record_failure(node, 3, "plan", 7)
    assert not health.is_suspect
    health.record_success()
    for node in range(MAX_FAILED_NODES):
        assert not health.is_suspect
        health.record_failure(str(node), 3, "plan", 8 + node)
    assert health.is_suspect
    assert health.since == {"plan": 8}


def test_only_the_first_quarantine_may_end_at_once() -> None:
    health = Health()
    assert (health.start_quarantine(), health.may_return_at_once) == (QUARANTINE_SECONDS, True)
    assert (health.start_quarantine(), health.may_return_at_once) == (QUARANTINE_SECONDS, False)
    health.record_success()
    assert (health.start_quarantine(), health.may_return_at_once) == (QUARANTINE_SECONDS, True)


class Watched:
    def __init__(self, grace: float = 60.0) -> None:
        self.kills = self.ends = 0
        self.watch = Watchdog(self._kill, self._end, grace)

    def _kill(self) -> None:
        self.kills += 1

    def _end(self) -> None:
        self.ends += 1

    def look(
        self,
        now: float,
        busy_since: float | None = 0.0,
        retiring: bool = False,
        unwanted: bool = False,
        proof: bool = False,
    ) -> None:
        how = {"is_retiring": retiring, "is_unwanted": unwanted, "keeps_nothing": proof}
        self.watch.look(now, busy_since=busy_since, **how)


def test_a_hanging_call_of_an_ending_worker_is_ended() -> None:
    watched = Watched()
    watched.look(1000.0)
    watched.look(1001.0, retiring=True)
    watched.look(1001.0 + STOP_SECONDS, retiring=True)
    assert not watched.kills
    watched.look(1001.5 + STOP_SECONDS, busy_since=1002.0, retiring=True)
    assert not watched.kills  # another call, which has only begun
    watched.look(1001.5 + STOP_SECONDS, retiring=True)
    assert watched.kills == 1


def test_the_wait_for_a_step_of_a_verification_is_short() -> None:
    """Nothing of it is kept. But what comes next may use the process, which takes a while to make."""
    watched = Watched()
    watched.look(1000.0, proof=True, unwanted=True)
    watched.look(1000.0 + UNSAVED_SECONDS, proof=True, unwanted=True)
    assert not watched.kills
    watched.look(1000.1 + UNSAVED_SECONDS, proof=True, unwanted=True)
    assert watched.kills == 1


def test_a_worker_that_was_to_end_waits_for_no_proof() -> None:
    watched = Watched()
    watched.look(1001.0, busy_since=None, proof=True, retiring=True)
    watched.look(1001.1, busy_since=None, proof=True, retiring=True)
    assert not watched.kills
    watched.look(1001.2, proof=True, retiring=True)
    assert watched.kills == 1


def test_an_unneeded_step_has_a_longer_limit() -> None:
    watched = Watched()
    watched.look(0.0, unwanted=True)
    watched.look(UNWANTED_SECONDS, unwanted=True)
    assert not watched.kills
    watched.look(UNWANTED_SECONDS + 1, unwanted=False)
    watched.look(2 * UNWANTED_SECONDS, unwanted=True)
    assert not watched.kills
    watched.look(3 * UNWANTED_SECONDS + 1, unwanted=True)
    assert watched.kills == 1


def test_after_its_grace_a_worker_waits_for_nothing() -> None:
    watched = Watched(grace=10.0)
    watched.look(0.0, busy_since=None, retiring=True)
    watched.look(10.0, busy_since=None, retiring=True)
    assert not watched.ends
    watched.look(10.1, busy_since=None, retiring=True)
    assert watched.ends == 1
