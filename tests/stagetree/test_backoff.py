"""How long is waited before something is tried again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagetree.backoff import Backoff

SECONDS = st.floats(1e-3, 1e3)


@given(SECONDS, SECONDS, st.floats(0, 1), st.integers(1, 10_000))
def test_a_pause_is_within_its_spread(first: float, longest: float, spread: float, failures: int) -> None:
    most = min(longest, first * 2.0 ** min(failures - 1, 64))
    assert most * (1 - spread) * 0.999 <= Backoff(first, longest, spread).seconds(failures) <= most


def test_each_attempt_but_the_first_waits_twice_as_long_as_the_one_before() -> None:
    pauses = list[float]()
    assert list(Backoff(1.0, 5.0, spread=0.0).attempts(6, pauses.append)) == [1, 2, 3, 4, 5, 6]
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_waiting_caller_may_end_the_backoff() -> None:
    def close(seconds: float) -> None:
        raise InterruptedError

    attempts = Backoff(1.0, 5.0).attempts(wait=close)
    assert next(attempts) == 1
    with pytest.raises(InterruptedError):
        next(attempts)


def test_the_global_generator_is_left_alone() -> None:
    """It may be that of a trainer in the same process, whose numbers must not depend on a race."""
    before = random.getstate()
    Backoff(1.0, 5.0).seconds(1)
    assert random.getstate() == before
