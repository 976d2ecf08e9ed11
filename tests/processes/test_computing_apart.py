"""What a client asks to have computed is in a process of its own, which is bounded."""

from __future__ import annotations

import os
import time

import pytest

from app.processes import Bounds, TooMuch, compute_apart
from stagetree.spec.errors import Problem, SpecError

SMALL = Bounds(seconds=1, bytes=2**28)


def pid() -> int:
    return os.getpid()


def fill(size: int) -> int:
    return len(bytearray(size))


def compute_on() -> None:
    while True:
        pass


def sleep_on() -> None:
    time.sleep(3600)


def end() -> None:
    os._exit(1)


def refuse() -> None:
    raise SpecError([Problem("tuner.eta", "is not a field here")])


def test_it_is_another_process_each_time() -> None:
    assert len({os.getpid(), compute_apart(pid), compute_apart(pid)}) == 3


def test_it_has_so_much_memory() -> None:
    bounds = Bounds(bytes=2**28)  # a second is soon over where others keep the machine busy
    assert compute_apart(fill, 2**24, bounds=bounds) == 2**24
    with pytest.raises(TooMuch, match=r"takes more than 60 s of a processor, or 0\.25 GiB of memory"):
        compute_apart(fill, 2**30, bounds=bounds)


@pytest.mark.slow
@pytest.mark.parametrize("do", [compute_on, sleep_on, end])
def test_it_has_so_much_time(do: object) -> None:
    with pytest.raises(TooMuch):
        compute_apart(do, bounds=SMALL)  # type: ignore[arg-type]


def test_it_raises_the_same() -> None:
    with pytest.raises(SpecError) as refused:
        compute_apart(refuse)
    assert refused.value.problems == [Problem("tuner.eta", "is not a field here")]
