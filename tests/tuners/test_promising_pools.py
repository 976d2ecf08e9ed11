"""Which trials are promising, and how many slots they have: HyperDrive, §3.2."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.search.tuners.promising import NO_POOLS, divide

CONFIDENCES = st.lists(st.floats(0, 1), max_size=30)


def test_early_on_low_confidence_deserves_little() -> None:
    """Figure 4a: many desire slots at a low p, and deserve few there."""
    pools = divide([0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1], slots=10)
    assert (pools.threshold, pools.effective, pools.slots) == (0.2, 2.0, 2)


def test_later_on_high_confidence_deserves_more() -> None:
    """Figure 4b: where the desired and the deserved cross, the effective is most."""
    pools = divide([0.95, 0.9, 0.9, 0.8, 0.3, 0.1], slots=4)
    assert (pools.threshold, pools.effective, pools.slots) == (0.8, 3.2, 3)


def test_no_trial_is_promising_without_a_slot() -> None:
    assert divide([], slots=4) == NO_POOLS
    assert divide([0.1, 0.05], slots=2) == NO_POOLS
    assert divide([0.0, 0.0], slots=2) == NO_POOLS


def test_one_slot_goes_to_a_trial_with_a_chance_above_one_half() -> None:
    assert divide([0.6, 0.2], slots=1).threshold == 0.6
    assert divide([0.4, 0.2], slots=1) == NO_POOLS


@given(CONFIDENCES, st.integers(1, 40))
def test_no_other_threshold_gives_more(confidences: list[float], slots: int) -> None:
    """By the definition, looked at on a grid of p and at every p that a trial has."""
    pools = divide(confidences, slots)
    for p in [*confidences, *(number / 50 for number in range(51))]:
        effective = min(sum(each >= p for each in confidences), slots * p)
        assert effective <= pools.effective or (pools is NO_POOLS and effective < 0.5)
    if pools is not NO_POOLS:
        desired = sum(each >= pools.threshold for each in confidences)
        assert pools.effective == min(desired, slots * pools.threshold)
        assert pools.slots == math.floor(pools.effective + 0.5) <= min(desired, slots)
