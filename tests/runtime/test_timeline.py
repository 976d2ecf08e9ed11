"""What `setup` gets, step by step, is what the nodes of the plan are named by."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from hypothesis import given

from app.domain.schedule import ScheduleSegment, segments
from stagetree.runtime.model import HpTimeline
from stagetree.sequences import Sequence
from tests.strategies import configurations

STEPS = 40


def values_in_force(hp: dict[str, Any], step: int) -> ScheduleSegment:
    return [*takewhile(lambda segment: segment.start <= step, segments(hp))][-1]


@given(configurations("cab"))
def test_values_equal_the_plans_in_order(sequences: dict[str, Sequence]) -> None:
    hp = {name: sequence.to_json() for name, sequence in sequences.items()}
    timeline = HpTimeline(hp)
    for step in range(STEPS):
        assert [*timeline.at(step).items()] == [*values_in_force(hp, step).values(step).items()]


@given(configurations("ab"))
def test_changes_lead_from_the_values_of_one_step_to_those_of_the_next(sequences: dict[str, Sequence]) -> None:
    timeline = HpTimeline({name: sequence.to_json() for name, sequence in sequences.items()})
    values = timeline.changes(0)
    for step in range(STEPS):
        if step:
            changes = timeline.changes(step)
            assert all(values[name] != value for name, value in changes.items())
            values |= changes
        assert values == timeline.at(step)


def test_values_are_available_in_any_order_and_far_ahead() -> None:
    hp = {"lr": {"family": "cosine", "init": 1.0, "min": 0.0, "period": 10}}
    ahead = HpTimeline(hp)
    assert ahead.at(100_000) == {"lr": 1.0} and ahead.at(3) == HpTimeline(hp).at(3)


def test_a_trial_without_hyper_parameters_has_no_values() -> None:
    assert HpTimeline({}).at(0) == HpTimeline({}).changes(5) == {}
