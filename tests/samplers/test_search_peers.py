"""Searches of other tools spend the same budget in the same virtual time as ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 200))
def test_a_budget_is_spent_evenly_by_all_slots(parts: list[int], slots: int, budget: int) -> None:
    spent, ended = list[int](), 0

    def train() -> Iterator[int]:
        nonlocal ended
        for steps in parts:
            yield steps
            spent.append(steps)
        ended += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from search_peers import spend
    spend(train, slots, budget)
    under_way = slots * max(parts)
    assert budget - under_way <= sum(spent) < budget + under_way
    assert ended <= budget // sum(parts) + slots
