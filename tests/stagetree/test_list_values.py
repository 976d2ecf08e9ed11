"""Lists as values of hyper-parameters, such as the widths of a model's layers."""

from __future__ import annotations

from app.domain.schedule import path, segment_at
from stagetree import StudySpec
from stagetree.runtime.model import HpTimeline
from stagetree.sequences import Constant, Held, parse
from stagetree.space import Space

SPACE = {"filters": [[55, 110, 220], (32, 96, 256)], "deep": [{"value": [1, [2.0, "x"]]}, 5], "one": {"value": [1, 2]}}


def test_each_option_is_one_value() -> None:
    space = Space(SPACE)
    configurations = list(space.grid())
    assert len(configurations) == 4
    assert [each["filters"].at(0) for each in configurations[::2]] == [(55, 110, 220), (32, 96, 256)]
    assert {each["one"].at(0) for each in configurations} == {(1, 2)}
    assert [space.values(each) for each in configurations] == [
        {"filters": filters, "deep": deep} for filters in (0, 1) for deep in (0, 1)
    ]


def test_a_value_survives_json() -> None:
    fields = {"name": "x", "trainer": "x", "metric": "m", "mode": "max", "space": SPACE}
    spec = StudySpec.from_dict({**fields, "tuner": {"kind": "grid", "max_steps": 2}})
    assert StudySpec.from_dict(spec.to_json()) == spec
    for each in spec.configurations():
        assert parse(each["filters"].to_json()) == each["filters"]


def test_the_trainer_is_given_a_list_of_its_own() -> None:
    timeline = HpTimeline({"filters": Constant([55, [110]]).to_json()})
    timeline.at(0)["filters"][1].append(0)
    assert timeline.at(0) == {"filters": [55, [110]]} and timeline.changes(1) == {}


def test_lists_that_differ_in_type_are_other_nodes() -> None:
    names = {
        str(path({"x": parse(value).to_json()}, 1, "")) for value in ([1, 2], [1.0, 2], [True, 2], ["1", 2], [[1], 2])
    }
    assert len(names) == 5
    assert Held((1, "a")).name == Held([1, "a"]).name == 'l[1, "a"]'  # type: ignore[arg-type]


def test_the_scheduler_has_tuples_from_json() -> None:
    """It failed to compare the costs of trials: a list is no number, and no word."""
    segment = segment_at({"filters": Constant([55, [110]]).to_json()}, 0)
    assert segment.values(0) == {"filters": (55, (110,))} and hash(segment.forms["filters"])


def test_where_compares_lists_and_their_items() -> None:
    for where in ("filters == [32, 96, 256]", "filters[2] > 250", "filters[0] < one[1] * 20 and one == [1, 2]"):
        assert [each["filters"].at(0) for each in Space({**SPACE, "deep": 1}, where).grid()] == [(32, 96, 256)]
