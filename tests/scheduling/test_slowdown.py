"""What sharing a GPU costs, by what its slots did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.slowdowns import MOSTLY, Slowdown, StageTiming, slowdowns

TIMES = {1: 1.0, 2: 1.3, 3: 2.1}
Work = Sequence[tuple[float, str, int]]
"""What a slot does in a row: how long it pauses before a stage, the kind of its steps, how many."""

COSTS = {"small": 0.5, "large": 4.0}
works = st.lists(
    st.lists(
        st.tuples(
            st.floats(0, 60).map(lambda pause: round(pause, 1)), st.sampled_from(sorted(COSTS)), st.integers(1, 80)
        ),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=3,
)


def stage_timings(works: Sequence[Work], times: Mapping[int, float]) -> list[StageTiming]:
    """The stages of slots of one GPU, on which all steps slow down as soon as another slot begins."""
    now, ran = 0.0, list[StageTiming]()
    todo = [list(work) for work in works]
    waits = [work[0][0] for work in works]
    begun, left = [-1.0] * len(works), [0.0] * len(works)
    while any(todo):
        busy = [slot for slot, at in enumerate(begun) if at >= 0]
        pace = {slot: COSTS[todo[slot][0][1]] * times[len(busy)] for slot in busy}
        until = {
            slot: left[slot] * pace[slot] if slot in pace else waits[slot] for slot in range(len(works)) if todo[slot]
        }
        slot = min(until, key=lambda each: until[each])
        passed, now = until[slot], now + until[slot]
        for each in until:
            if each in pace:
                left[each] -= passed / pace[each]
            else:
                waits[each] -= passed
        if slot in pace:
            _, kind, steps = todo[slot].pop(0)
            ran.append(StageTiming(f"gpu0{'abc'[slot]}", kind, steps, now - begun[slot], begun[slot], now))
            begun[slot], waits[slot] = -1.0, todo[slot][0][0] if todo[slot] else 0.0
        else:
            begun[slot], left[slot] = now, float(todo[slot][0][2])
    return ran


@given(works)
def test_the_measured_slowdown_is_right_except_around_changes(works: Sequence[Work]) -> None:
    slowest = max(TIMES.values())
    for found in slowdowns(stage_timings(works, TIMES)):
        true = TIMES[found.slots]
        least, most = 1 / (MOSTLY + (1 - MOSTLY) * true), 1 / (MOSTLY + (1 - MOSTLY) * true / slowest)
        alone = 1 / (MOSTLY + (1 - MOSTLY) / slowest)
        assert least / alone - 1e-9 <= found.times / true <= most + 1e-9


@given(works)
def test_no_slowdown_is_found_without_one(works: Sequence[Work]) -> None:
    for found in slowdowns(stage_timings(works, dict.fromkeys(TIMES, 1.0))):
        assert found.times == pytest.approx(1.0) and found.gain == pytest.approx(found.slots)


def ran(slot: str, begun_at: float, ended_at: float, steps: int = 10, kind: str = "small") -> StageTiming:
    return StageTiming(slot, kind, steps, ended_at - begun_at, begun_at, ended_at)


ALONE, BESIDE = ran("gpu0a", 0, 10), [ran("gpu0a", 20, 33), ran("gpu0b", 20, 33)]


def test_two_at_once_against_one() -> None:
    (found,) = slowdowns([ALONE, *BESIDE])
    assert found == Slowdown("gpu0", 2, pytest.approx(1.3)) and found.gain == pytest.approx(2 / 1.3)


def test_no_slowdown_is_reported_without_both_samples() -> None:
    assert slowdowns(BESIDE) == slowdowns([ALONE]) == slowdowns([]) == []
    assert slowdowns([ran("gpu0a", 0, 10, kind="large"), *BESIDE]) == []


def test_slots_of_other_gpus_and_of_none_are_no_neighbours() -> None:
    others = [ran("gpu1a", 0, 10), ran("host-gpu0a", 0, 10), ran("cpu0", 0, 10), ran("gpu0", 0, 10)]
    (found,) = slowdowns([ALONE, *BESIDE, *others])
    assert found.times == pytest.approx(1.3)


def test_a_stage_that_tells_nothing_of_its_steps_keeps_its_slot_busy() -> None:
    """It failed, or is under way: no stage beside it is alone."""
    assert slowdowns([ALONE, ran("gpu0b", 0, 30, steps=0), *BESIDE]) == []


def test_a_slot_that_trains_several_stages_at_once_is_one_neighbour() -> None:
    packed = [ran("gpu0b", 20, 33, steps=0), ran("gpu0b", 22, 30, steps=0)]
    (found,) = slowdowns([ALONE, *BESIDE, *packed])
    assert found.slots == 2
