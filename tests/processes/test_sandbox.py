"""What a client asks to have computed is in a process of its own, which is bounded."""

from __future__ import annotations

import os
import time

import pytest

from app.process.sandbox import LimitExceeded, SandboxLimits, run_in_sandbox
from stagetree.spec.errors import Problem, SpecError

SMALL = SandboxLimits(seconds=1, bytes=2**28)


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
    assert len({os.getpid(), run_in_sandbox(pid), run_in_sandbox(pid)}) == 3


def test_it_has_so_much_memory() -> None:
    limits = SandboxLimits(bytes=2**28)  # a second is soon over where others keep the machine busy
    assert run_in_sandbox(fill, 2**24, limits=limits) == 2**24
    with pytest.raises(LimitExceeded, match=r"takes more than 60 s of a processor, or 0\.25 GiB of memory"):
        run_in_sandbox(fill, 2**30, limits=limits)


@pytest.mark.slow
@pytest.mark.parametrize("do", [compute_on, sleep_on, end])
def test_it_has_so_much_time(do: object) -> None:
    with pytest.raises(LimitExceeded):
        run_in_sandbox(do, limits=SMALL)  # type: ignore[arg-type]


def test_it_raises_the_same() -> None:
    with pytest.raises(SpecError) as refused:
        run_in_sandbox(refuse)
    assert refused.value.problems == [Problem("tuner.eta", "is not a field here")]
