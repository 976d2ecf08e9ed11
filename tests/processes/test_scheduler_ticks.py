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


def test_it_looks_by_itself_when_beat_is_dead() -> None:
    looks, after = list[int](), list[int]()
    ticking = TickLoop(lambda: looks.append(1), 0.02, after=lambda: after.append(1))
    ticking.start()
    wait_for("three looks", lambda: len(looks) >= 3)
    assert after
    ticking.close()


def test_it_leaves_it_to_beat_as_long_as_that_is_alive() -> None:
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


def test_what_is_away_is_said_once_and_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    answers = [True, False, False, True, False]

    def look() -> None:
        if not answers.pop(0):
            raise DatabaseUnavailable("The database cannot be used.")

    ticking = TickLoop(look, 1.0)
    with caplog.at_level(logging.WARNING):
        while answers:
            ticking.tick()
    assert len(caplog.records) == 2


def test_a_fault_of_ours_comes_through_and_does_not_end_it() -> None:
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


def test_nobody_looks_while_another_does() -> None:
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


def test_now_and_then_is_not_more_often() -> None:
    done, clock = list[float](), Clock()
    each = RateLimit(10.0, lambda: done.append(clock.at), clock)
    for _ in range(25):
        each.do_if_due()
        clock.at += 1.0
    assert done == [1000.0, 1010.0, 1020.0]


def test_what_is_done_after_ticks_says_nothing_of_a_database_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """It filled the log with tracebacks while migrations were run: several a second."""
    asked = list[int]()

    def after() -> None:
        asked.append(1)
        raise DatabaseUnavailable("The database waits for its migrations.")

    ticking = TickLoop(lambda: None, 0.02, after=after)
    with caplog.at_level(logging.INFO):
        ticking.start()
        wait_for("three tries", lambda: len(asked) >= 3)
        ticking.close()
    assert not caplog.records
