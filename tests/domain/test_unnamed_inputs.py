"""Undeclared inputs of a trainer, at the paths that this study would read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.domain.inputs import undeclared_inputs
from app.domain.search_plan import SearchPlan, StoredSpec, Study
from app.domain.terms import StudyId


def undeclared_paths(path: str, before: dict[str, Any], now: dict[str, Any], *inputs: str) -> list[str]:
    """The undeclared paths of a study with arguments `now`, after a check with arguments `before` saw `path`."""
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
def test_a_path_follows_its_argument(path: str, before: str, now: str, there: str) -> None:
    assert undeclared_paths(path, {"data": before}, {"data": now}) == [there]
    assert undeclared_paths(path, {"data": before, "workers": 4}, {"data": before, "workers": 8}) == [path]
    assert undeclared_paths(path, {"data": before}, {}) == [path]


def test_paths_under_a_declared_input_are_left_out() -> None:
    assert undeclared_paths("/data/1/a.csv", {"data": "/data/1"}, {"data": "/data/2"}, "/data/2") == []
    assert undeclared_paths("/data/1/a.csv", {"data": "/data/1"}, {"data": "/data/2"}, "/data/1") == ["/data/2/a.csv"]
