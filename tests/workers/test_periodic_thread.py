"""Periodic work, done once for all callers that wake it at the same time."""

from __future__ import annotations

from threading import Event as Flag

import pytest

from app.outages import DatabaseUnavailable, LostRace
from app.workers.threads import PeriodicThread

HOUR = 3600.0


def test_a_wake_up_runs_the_work_at_once() -> None:
    done = [Flag(), Flag()]
    left = iter(done)

    def do() -> bool:
        next(left).set()
        return True

    thread = PeriodicThread("test", do, HOUR)
    thread.start()
    assert done[0].wait(60)
    thread.wake()
    assert done[1].wait(60)
    thread.close()


def test_the_thread_rests_between_runs_and_ends_at_once() -> None:
    times, begun = list[int](), Flag()

    def do() -> bool:
        times.append(1)
        begun.set()
        return True

    thread = PeriodicThread("test", do, HOUR, rest=HOUR)
    thread.start()
    assert begun.wait(60)
    thread.wake()
    thread.wake()
    thread.close()
    assert thread.join(60.0) and times == [1]


def test_one_that_was_never_started_has_ended() -> None:
    assert PeriodicThread("test", lambda: True, HOUR).join(60.0)


AWAY, MISTAKE = "test waits: ", "test failed, and is tried again"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (DatabaseUnavailable("no server"), AWAY),
        (LostRace("a deadlock"), AWAY),
        (OSError("a disk"), MISTAKE),
        (ValueError("a bug"), MISTAKE),
    ],
)
def test_errors_are_logged_and_the_work_repeated(
    problem: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    times, again = list[int](), Flag()

    def do() -> bool:
        times.append(1)
        if len(times) == 1:
            raise problem
        again.set()
        return True

    thread = PeriodicThread("test", do, 0.0)
    thread.start()
    assert again.wait(60)
    thread.close()
    assert thread.join(60.0)
    assert said in caplog.text


def test_unfinished_work_continues_at_once() -> None:
    times, done = list[int](), Flag()

    def do() -> bool:
        times.append(1)
        if len(times) == 3:
            done.set()
        return len(times) == 3

    thread = PeriodicThread("test", do, HOUR)
    thread.start()
    assert done.wait(60)
    thread.close()


def test_closing_does_not_wait_for_running_work() -> None:
    begun, let_go = Flag(), Flag()
    thread = PeriodicThread("test", lambda: (begun.set(), let_go.wait(60))[1], HOUR)
    thread.start()
    assert begun.wait(60)
    thread.close()
    assert not thread.join(0.0)
    let_go.set()
    assert thread.join(60.0)
