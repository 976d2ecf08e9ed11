"""By what POP orders trials, for any judgement: ranks of values at one step, and ties."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.search.tuners.pop import ORDERS, UNKNOWN, Judgement

AT_STEP = ORDERS["rank_at_step"]
LOSSES = st.lists(st.integers(0, 6), min_size=2, max_size=30)


def judgement(losses: list[int], loss: int, steps: int = 4) -> Judgement:
    found = sorted(losses)
    rank, tied = 1 + bisect_left(found, loss), bisect_right(found, loss) - bisect_left(found, loss)
    return {"p": 0.0, "rank": rank, "tied": tied, "of": len(found), "steps": steps}


def place(judged: Judgement) -> tuple[float, ...]:
    return -AT_STEP.worth(judged), *AT_STEP.among_equals(judged)


@given(LOSSES)
def test_a_better_value_at_a_step_comes_first(losses: list[int]) -> None:
    values = sorted(set(losses))
    places = [place(judgement(losses, value)) for value in values]
    assert places == sorted(places) and len(set(places)) == len(values)


@given(LOSSES)
def test_worths_of_ties_are_those_of_broken_ties_in_the_mean_of_their_ranks(losses: list[int]) -> None:
    """As many trials are before the tied ones as behind: no tie has the worth of its best place."""
    judged = judgement(losses, losses[0])
    mean = sum(range(judged["rank"], judged["rank"] + judged["tied"])) / judged["tied"]
    if judged["tied"] < judged["of"]:
        assert AT_STEP.worth(judged) == ORDERS["rank"].worth({**judged, "rank": mean})


@given(st.integers(2, 50), st.integers(0, 9))
def test_equal_results_say_nothing(trials: int, loss: int) -> None:
    assert AT_STEP.worth(judgement([loss] * trials, loss)) == UNKNOWN


def test_the_first_trial_at_a_step_has_all_worth() -> None:
    assert all(ORDERS[name].worth(judgement([3], 3)) == 1 for name in ("rank_at_step", "rank"))


@given(LOSSES, LOSSES)
def test_without_ties_worth_is_that_of_the_rank(losses: list[int], others: list[int]) -> None:
    unique = list({*losses, *others})
    for value in unique:
        judged: Any = judgement(unique, value)
        assert AT_STEP.worth(judged) == ORDERS["rank"].worth(judged)


def test_of_equal_parts_the_trial_with_more_steps_comes_first() -> None:
    assert place(judgement([1, 2, 3], 3, steps=8)) < place(judgement([1, 2, 3], 3, steps=4))


def test_a_slow_starter_need_not_wait_for_all_that_are_further() -> None:
    """The 25th of 100 comes before the 15th of 16 of a later step, whose value is better because it is further."""
    slow = {"rank": 25, "tied": 1, "of": 100, "steps": 4}
    further = {"rank": 15, "tied": 1, "of": 16, "steps": 8}
    assert place(slow) < place(further)
    by_rank = ORDERS["rank"]
    assert by_rank.worth(slow) == by_rank.worth(further) and by_rank.among_equals(slow) == by_rank.among_equals(further)
