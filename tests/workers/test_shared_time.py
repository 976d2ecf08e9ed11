"""The time of a slot, divided among the chains that it trains together."""

from __future__ import annotations

import pytest
from faulty import Clock
from hypothesis import given
from hypothesis import strategies as st

from app.workers.slot.shared_time import SharedTime

MEMBERS = range(3)
PASSED = st.tuples(st.integers(0, 9), st.sampled_from([None, *([a, b] for a in MEMBERS for b in MEMBERS if a < b)]))


@given(st.lists(PASSED))
def test_shares_of_time_add_up_to_the_elapsed_time(spans: list[tuple[int, list[int] | None]]) -> None:
    clock = Clock()
    time = SharedTime(clock.now, MEMBERS)
    for seconds, payers in spans:
        if payers is None:
            clock.wait(seconds)
        else:
            with time.charge(payers):
                clock.wait(seconds)
    assert sum(map(time.seconds_of, MEMBERS)) == pytest.approx(sum(seconds for seconds, _ in spans))


def test_only_who_is_charged_pays_and_who_has_left_no_more() -> None:
    clock = Clock()
    time = SharedTime(clock.now, MEMBERS)
    clock.wait(3.0)
    with time.charge([1]):
        clock.wait(5.0)
    time.leave(0)
    clock.wait(4.0)
    assert [time.seconds_of(member) for member in MEMBERS] == [1.0, 8.0, 3.0]
