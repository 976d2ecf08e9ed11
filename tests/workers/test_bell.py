from __future__ import annotations

from threading import Event as Flag

from stacks import wait_for

from app.workers.bell import Bell


def test_many_pulls_while_it_rings_are_one_more_ring() -> None:
    rings, may_end = list[int](), Flag()

    def ring() -> None:
        rings.append(1)
        may_end.wait(5)

    bell = Bell(ring)
    bell.pull()
    wait_for("the first ring", lambda: rings)
    for _ in range(100):
        bell.pull()
    may_end.set()
    wait_for("the second ring", lambda: len(rings) == 2)
    bell.close()
    assert len(rings) == 3  # the last words
