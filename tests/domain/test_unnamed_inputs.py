"""What a trainer was seen to read and a study does not name, at the path at which this study reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.domain.inputs import undeclared_inputs
from app.domain.search_plan import SearchPlan, StoredSpec, Study
from app.domain.terms import StudyId


def told(path: str, before: dict[str, Any], now: dict[str, Any], *inputs: str) -> list[str]:
    """The paths of a study with the arguments `now`, where a check with those `before` saw that path."""
    tests = [SimpleNamespace(files=[{"path": path, "stamp": "1"}])]
    other = Study(StudyId("a"), StoredSpec.from_json({"runtime_args": before}), 0.0)
    plan = cast(SearchPlan, SimpleNamespace(tests=tests, studies={"a": other}))
    return [each["path"] for each in undeclared_inputs(plan, [{"path": each} for each in inputs], now)]


@pytest.mark.parametrize(
    "path, before, now, there",
    [
        ("/data/1/a.csv", "/data/1", "/data/2", "/data/2/a.csv"),
        ("/data/1/*/*.png", "/data/1/", "/data/2/", "/data/2/*/*.png"),
        ("/data/1.csv", "/data/1.csv", "/elsewhere/2.csv", "/elsewhere/2.csv"),
        ("/data/10/a.csv", "/data/1", "/data/2", "/data/10/a.csv"),
        ("/home/me/data/1/a.csv", "data/1", "data/2", "/home/me/data/2/a.csv"),
        ("/home/me/rows.csv", "./rows.csv", "more.csv", "/home/me/more.csv"),
        ("/home/me/rows.csv", "rows.csv", "/data/rows.csv", "/data/rows.csv"),
        ("/home/me/rows.csv", "fast", "slow", "/home/me/rows.csv"),
        ("$DATA", "/data/1", "/data/2", "$DATA"),
    ],
)
def test_a_path_goes_with_the_argument_that_it_came_by(path: str, before: str, now: str, there: str) -> None:
    assert told(path, {"data": before}, {"data": now}) == [there]
    assert told(path, {"data": before, "workers": 4}, {"data": before, "workers": 8}) == [path]
    assert told(path, {"data": before}, {}) == [path]


def test_what_an_input_names_is_not_left_out() -> None:
    assert told("/data/1/a.csv", {"data": "/data/1"}, {"data": "/data/2"}, "/data/2") == []
    assert told("/data/1/a.csv", {"data": "/data/1"}, {"data": "/data/2"}, "/data/1") == ["/data/2/a.csv"]
