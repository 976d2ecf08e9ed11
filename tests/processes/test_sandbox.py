"""Computations that clients request run in a process of their own, with limits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

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


def total(first: int, numbers: Iterable[int]) -> int:
    return first + sum(numbers)


def first_of(numbers: Iterable[int]) -> int:
    return next(iter(numbers))


def many_times_the_first(numbers: Iterable[int]) -> bytes:
    return bytes([first_of(numbers)]) * 2**24


def sleep_beside(numbers: Iterable[int]) -> None:
    sleep_on()


class Numbers:
    """The numbers from 1 to `count`. made: the last number that was requested."""

    def __init__(self, count: int) -> None:
        self.count, self.made = count, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(1, self.count + 1):
            self.made = number
            yield number


def refuse() -> None:
    raise SpecError([Problem("tuner.eta", "is not a field here")])


def test_each_call_has_a_new_process() -> None:
    assert len({os.getpid(), run_in_sandbox(pid), run_in_sandbox(pid)}) == 3


def test_memory_is_limited() -> None:
    limits = SandboxLimits(bytes=2**28)  # a second is short on a busy machine
    assert run_in_sandbox(fill, 2**24, limits=limits) == 2**24
    with pytest.raises(LimitExceeded, match=r"takes more than 60 s of a processor, or 0\.25 GiB of memory"):
        run_in_sandbox(fill, 2**30, limits=limits)


@pytest.mark.slow
@pytest.mark.parametrize("do", [compute_on, sleep_on, end])
def test_time_is_limited(do: object) -> None:
    with pytest.raises(LimitExceeded):
        run_in_sandbox(do, limits=SMALL)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 100_000])
def test_a_stream_arrives_complete_and_in_order(count: int) -> None:
    assert run_in_sandbox(total, 5, stream=Numbers(count)) == 5 + count * (count + 1) // 2


def test_a_stream_is_sent_no_further_than_it_is_read() -> None:
    numbers = Numbers(10_000_000)
    assert run_in_sandbox(first_of, stream=numbers) == 1
    assert numbers.made < 1_000_000


def test_a_large_answer_does_not_wait_for_the_rest_of_the_stream() -> None:
    """Once each side waited for the other to read, until the time limit."""
    assert len(run_in_sandbox(many_times_the_first, stream=Numbers(10_000_000))) == 2**24


def test_an_error_of_the_source_ends_the_process_too() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ConnectionError("the database is away")

    with pytest.raises(ConnectionError, match="away"):
        run_in_sandbox(total, 0, stream=broken())


@pytest.mark.slow
def test_time_is_limited_for_an_unread_stream() -> None:
    with pytest.raises(LimitExceeded):
        run_in_sandbox(sleep_beside, stream=Numbers(10_000_000), limits=SMALL)


def test_it_raises_the_same_error() -> None:
    with pytest.raises(SpecError) as refused:
        run_in_sandbox(refuse)
    assert refused.value.problems == [Problem("tuner.eta", "is not a field here")]
