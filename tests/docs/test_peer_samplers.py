"""Searches of other tools spend the same budget in the same virtual time as ours."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.samplers import spend


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 200))
def test_a_budget_is_spent_evenly_by_all_slots(parts: list[int], slots: int, budget: int) -> None:
    spent, ended = list[int](), 0

    def train() -> Iterator[int]:
        nonlocal ended
        for steps in parts:
            yield steps
            spent.append(steps)
        ended += 1

    spend(train, slots, budget)
    under_way = slots * max(parts)
    assert budget - under_way <= sum(spent) < budget + under_way
    assert ended <= budget // sum(parts) + slots
