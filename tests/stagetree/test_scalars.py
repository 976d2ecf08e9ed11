"""1, 1.0 and true are three values, 0.0 and -0.0 are two: `setup` gets a value as it is written."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain.schedule import path
from app.events.codec import decode, encode
from stagetree.runtime.model import HpTimeline
from stagetree.sequences import Constant, Held, Values, is_equal_value, is_same_value, parse, unique_values
from stagetree.spec import StudySpec
from stagetree.trainer.program import ProgramOrder
from stagetree.trainer.values import RecordedValues, has_changed
from tests.plans import max_examples

NUMBERS = st.sampled_from([0, 1, 2, 64, 2**53, 10**22]) | st.integers()
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 2.0, 64.0, 2.0**53, 1e22, 5e-324]) | st.floats(
    allow_nan=False, allow_infinity=False
)
SCALARS = st.booleans() | NUMBERS | FLOATS | st.text(st.characters(codec="utf-8"), max_size=3) | st.none()
"""Every kind of scalar that JSON has, and many that Python calls equal."""


def bits(value: Any) -> Any:
    """The type and the content of a value, to the last bit."""
    return type(value), pack("d", value) if isinstance(value, float) else value


@max_examples(300)
@given(SCALARS, SCALARS)
@example(1, True)
@example(1, 1.0)
@example(0.0, -0.0)
def test_two_constants_are_one_exactly_if_type_and_bits_are_equal(one: Any, other: Any) -> None:
    is_same = bits(one) == bits(other)
    assert is_same_value(one, other) is is_same
    assert (Held(one).name == Held(other).name) is (Held(one) == Held(other)) is is_same
    assert (Constant(one) == Constant(other)) is is_same
    assert (path({"x": one}, 1, "") == path({"x": other}, 1, "")) is is_same
    assert len(unique_values([one, other])) == (1 if is_same else 2)


@max_examples(200)
@given(st.lists(SCALARS, min_size=1, max_size=6))
def test_a_timeline_delivers_exactly_the_changes(values: list[Any]) -> None:
    sequence = Values(values, list(range(2, 2 * len(values), 2))).to_json()
    timeline = HpTimeline({"x": sequence, "y": 1})
    assert timeline.changes(0).keys() == {"x", "y"}
    for step in range(1, 2 * len(values)):
        before, now = values[(step - 1) // 2], values[step // 2]
        assert [*map(bits, timeline.changes(step).values())] == ([] if bits(before) == bits(now) else [bits(now)])


@max_examples(100)
@given(st.lists(SCALARS, min_size=1, max_size=4))
@example([True, 1, 0, False])
@example([0.5, 1.0, 1])
def test_setup_gets_the_values_of_the_study_file(options: list[Any]) -> None:
    """From the file through JSON, the space, the log and the plan to the values of the first step."""
    fields = {"name": "s", "trainer": "t", "metric": "m", "mode": "min", "tuner": {"kind": "grid", "max_steps": 2}}
    spec = StudySpec.from_dict(json.loads(json.dumps({**fields, "space": {"x": {"choice": options}}})))
    recorded = StudySpec.from_dict(json.loads(json.dumps(spec.model_dump(mode="json"))))
    found = []
    for number, configuration in enumerate(recorded.configurations()):
        hp = {name: sequence.to_json() for name, sequence in configuration.items()}
        added = e.TrialAdded(study=e.StudyId("s"), trial=number, hp=hp, steps=2, reason={}, path={})
        read = decode(*json.loads(json.dumps(encode(added))))
        assert isinstance(read, e.TrialAdded)
        found.append(HpTimeline(read.hp).at(0)["x"])
    assert [*map(bits, found)] == [*map(bits, options)]


def test_trainers_see_a_change_of_the_type_alone() -> None:
    assert has_changed({"x"}, {"x": 1}, {"x": True}) and has_changed({"x"}, {"x": 1}, {"x": 1.0})
    assert not has_changed({"x"}, {"x": 1.0}, {"x": 1.0}) and not has_changed({"x"}, {"x": 1}, {"y": 2})
    read = RecordedValues({"x": 1})
    assert read["x"] == 1 and read.fits({"x": 1}) and not read.fits({"x": True})
    order = ProgramOrder(4, [{"x": 1}, {"x": 1}], frozenset(), Path("state"))
    assert order.trains(5, {"x": 1}) and not order.trains(5, {"x": True}) and not order.trains(6, {"x": 1})


def test_hyper_parameters_are_equal_in_any_order_with_their_types() -> None:
    line = {"family": "linear", "init": 1, "slope": 2}
    assert is_same_value({"x": True, "y": line}, {"y": dict(line), "x": True})
    assert not is_same_value({"x": True}, {"x": 1}) and not is_same_value({"x": 1}, {"x": 1, "y": 1})


def test_people_find_a_number_however_they_write_it() -> None:
    assert is_equal_value(1, 1.0) and is_equal_value({"init": [0, "x"]}, {"init": [0.0, "x"]})
    assert not is_equal_value(1, True) and not is_equal_value("1", 1) and not is_equal_value(None, 0)
    assert not is_same_value({"init": [1]}, {"init": [1.0]}) and not is_same_value([1], [1, 1])


SCHEDULES_OF_INTS = [
    ({"family": "multistep", "init": 64, "milestones": [1, 2], "gamma": 2}, [64, 128, 256, 256]),
    ({"family": "linear", "init": 64, "slope": 8}, [64, 72, 80, 88]),
    ({"family": "exponential", "init": 1, "gamma": 3}, [1, 3, 9, 27]),
    ({"family": "exponential", "init": 5, "gamma": 0}, [5, 0, 0, 0]),
    ({"family": "cyclic", "init": 16, "max": 64, "up": 2, "down": 1}, [16, 40, 64, 16]),
    ({"family": "cosine", "init": 4, "min": 4, "period": 5}, [4, 4, 4, 4]),
    ({"family": "warmup", "steps": 3, "then": 48}, [16, 32, 48, 48]),
    ({"family": "wsd", "peak": 8, "warmup": 2, "stable_until": 2, "decay": 4}, [4, 8, 8, 6]),
    ({"family": "power", "peak": 12, "warmup": 1, "exponent": -1}, [12, 6, 4, 3]),
    ({"family": "one_cycle", "max": 8, "up": 2, "down": 4, "shape": "linear"}, [0, 4, 8, 6]),
    ({"family": "polynomial", "init": 9, "final": 1, "steps": 4, "power": 1}, [9, 7, 5, 3]),
    ({"family": "piecewise", "parts": [{"steps": 2, "sequence": 8}, {"sequence": 4}]}, [8, 8, 4, 4]),
]


@pytest.mark.parametrize(("sequence", "values"), SCHEDULES_OF_INTS)
def test_a_schedule_of_ints_gives_ints(sequence: dict[str, Any], values: list[int]) -> None:
    assert [*map(bits, parse(sequence).take(4))] == [*map(bits, values)]


@pytest.mark.parametrize(("sequence", "values"), SCHEDULES_OF_INTS[:-1])
def test_with_a_single_float_all_its_numbers_are_floats(sequence: dict[str, Any], values: list[int]) -> None:
    for name in sequence.keys() & {"init", "min", "max", "gamma", "slope", "peak", "final", "then"}:
        mixed = parse({**sequence, name: float(sequence[name])})
        assert [*map(bits, mixed.take(4))] == [bits(float(value)) for value in values]


def test_fractions_and_large_numbers_are_floats() -> None:
    assert [*map(bits, parse({"family": "warmup", "steps": 4, "then": 2}).take(4))] == [*map(bits, (0.5, 1, 1.5, 2))]
    growing = parse({"family": "multistep", "init": 1, "milestones": [1, 2], "gamma": 2**52})
    assert [*map(bits, growing.take(3))] == [*map(bits, (1, 2**52, 2.0**104))]


def test_defaults_of_a_schedule_are_of_the_type_of_the_rest() -> None:
    assert [*map(bits, parse({"family": "warmup", "steps": 2, "then": 1.0}).take(3))] == [*map(bits, (0.5, 1.0, 1.0))]
    wsd = parse({"family": "wsd", "peak": 1.0, "warmup": 0, "stable_until": 1, "decay": 1})
    assert [*map(bits, wsd.take(4))] == [*map(bits, (1.0, 1.0, 0.0, 0.0))]
