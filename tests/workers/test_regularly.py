"""What is done every so often, and once for all who wake it at the same time."""

from __future__ import annotations

from threading import Event as Flag

from app.workers.regularly import Regularly

HOUR = 3600.0


def test_who_wakes_it_does_not_wait_for_its_time() -> None:
    done = [Flag(), Flag()]
    left = iter(done)

    def do() -> bool:
        next(left).set()
        return True

    regularly = Regularly("test", do, HOUR)
    regularly.start()
    assert done[0].wait(60)
    regularly.wake()
    assert done[1].wait(60)
    regularly.close()


def test_it_rests_between_two_times_and_ends_all_the_same() -> None:
    times, begun = list[int](), Flag()

    def do() -> bool:
        times.append(1)
        begun.set()
        return True

    regularly = Regularly("test", do, HOUR, rest=HOUR)
    regularly.start()
    assert begun.wait(60)
    regularly.wake()
    regularly.wake()
    regularly.close()
    assert regularly.join(60.0) and times == [1]
