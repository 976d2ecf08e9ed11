"""The scheduler ticks when woken, and by itself when no message comes."""

from __future__ import annotations

import logging
from threading import Event as Flag
from threading import Thread

import pytest
from stacks import wait_for
from transactions import Clock

from app.outages import DatabaseUnavailable
from app.workers.threads import RateLimit, TickLoop


def test_the_scheduler_ticks_by_itself_when_beat_is_dead() -> None:
    looks, after = list[int](), list[int]()
    ticking = TickLoop(lambda: looks.append(1), 0.02, after=lambda: after.append(1))
    ticking.start()
    wait_for("three looks", lambda: len(looks) >= 3)
    assert after
    ticking.close()


def test_the_scheduler_leaves_ticks_to_a_live_beat() -> None:
    looks, clock = list[int](), Clock()
    ticking = TickLoop(lambda: looks.append(1), 10.0, clock=clock)
    for _ in range(5):
        clock.at += 10.0
        ticking.tick()
        ticking.tick_if_late()
    assert len(looks) == 5
    clock.at += 14.0
    ticking.tick_if_late()
    assert len(looks) == 5
    clock.at += 2.0
    ticking.tick_if_late()
    assert len(looks) == 6


def test_an_outage_is_logged_once_and_the_tick_retried(caplog: pytest.LogCaptureFixture) -> None:
    answers = [True, False, False, True, False]

    def look() -> None:
        if not answers.pop(0):
            raise DatabaseUnavailable("The database cannot be used.")

    ticking = TickLoop(look, 1.0)
    with caplog.at_level(logging.WARNING):
        while answers:
            ticking.tick()
    assert len(caplog.records) == 2


def test_an_internal_error_is_raised_and_ticks_continue() -> None:
    looks = list[int]()

    def look() -> None:
        looks.append(1)
        raise KeyError("strange")

    ticking = TickLoop(look, 0.02)
    with pytest.raises(KeyError):
        ticking.tick()
    ticking.start()
    wait_for("more looks", lambda: len(looks) >= 3)
    ticking.close()


def test_ticks_do_not_overlap() -> None:
    inside, most, may_end = list[int](), list[int](), Flag()

    def look() -> None:
        inside.append(1)
        most.append(len(inside))
        may_end.wait(5)
        inside.pop()

    ticking = TickLoop(look, 1.0)
    threads = [Thread(target=ticking.tick) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for("the first look", lambda: inside)
    may_end.set()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_periodic_work_runs_once_an_interval() -> None:
    done, clock = list[float](), Clock()
    each = RateLimit(10.0, lambda: done.append(clock.at), clock)
    for _ in range(25):
        each.do_if_due()
        clock.at += 1.0
    assert done == [1000.0, 1010.0, 1020.0]


def test_work_after_ticks_logs_no_database_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Once it filled the log with several tracebacks a second during migrations."""
    asked = list[int]()

    def fail() -> None:
        asked.append(1)
        raise DatabaseUnavailable("The database waits for its migrations.")

    ticking = TickLoop(lambda: None, 0.02, after=fail)
    with caplog.at_level(logging.INFO):
        ticking.start()
        wait_for("three tries", lambda: len(asked) >= 3)
        ticking.close()
    assert not caplog.records
