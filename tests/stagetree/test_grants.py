"""Steps that are granted to the processes of a script: however they are cut short, all take the same ones."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagetree.runtime.scripts import step_grant as grants
from stagetree.runtime.scripts.step_grant import Grant, GrantLost

CUTS = st.lists(st.sampled_from([0.0, 0.001]), max_size=3)
PAUSES = st.lists(st.sampled_from([0.0, 0.0, 0.0002, 0.003]), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(st.lists(PAUSES, min_size=1, max_size=3), st.integers(0, 30), CUTS)
def test_all_take_the_same_steps(paces: list[list[float]], steps: int, cuts: list[float]) -> None:
    """Also where they are of different speed, and each waits in each step for all others, as in a collective."""
    grant, fd = Grant.create(len(paces))
    barrier, taken = threading.Barrier(len(paces)), [0] * len(paces)

    def train(rank: int) -> None:
        mine = Grant(fd, len(paces))
        while taken[rank] < steps and mine.may_begin(rank, taken[rank]):
            time.sleep(paces[rank][taken[rank] % len(paces[rank])])
            barrier.wait(5)
            taken[rank] += 1

    grant.give(steps)
    ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(len(paces))]
    for each in ranks:
        each.start()
    done = grant.finished_steps()
    for pause in cuts:
        time.sleep(pause)
        grant.cut_short()
    for each in ranks:
        each.join(10)
        assert not each.is_alive()
    os.close(fd)
    assert len(set(taken)) == 1
    assert done <= taken[0] <= steps
    assert grant.finished_steps() <= taken[0]
    assert cuts or taken[0] == steps


def test_the_wait_for_a_limit_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "LOST_SECONDS", 0.01)
    monkeypatch.setattr(grants, "SETTLE_SECONDS", 0.1)
    grant, fd = Grant.create(1)
    os.close(fd)
    grant.give(3)
    cutting = threading.Thread(target=grant.cut_short)
    cutting.start()
    time.sleep(0.02)
    with pytest.raises(GrantLost):
        grant.may_begin(0, 0)
    cutting.join()
