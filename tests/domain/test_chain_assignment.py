"""A chain's row holds the whole assignment of its worker; a row of another format is refused."""

from __future__ import annotations

import json

import pytest
from assignments import stage, work

from app.domain.chain_assignment import FORMAT, ChainAssignment, Comparison, ResumePoint, Unreadable, VerificationOrder
from app.domain.events import StoredPart

POINT = ResumePoint("n", 2, "k", "ab", (StoredPart("k.1", "cd", 3),), is_cached=True)
COMPARISON = Comparison("n", 4, "k4", "ef", since=2, metrics={"loss": None}, parts=POINT.parts)


@pytest.mark.parametrize(
    "assignment",
    [
        work(stage()),
        work(stage(), branches_inside=((1, 2),), keep_at=(3,), members=("gpu1",), mean=((POINT, 0.5),)),
        work(stage(), proof=VerificationOrder("handover", (COMPARISON,), 8, ("loss",), origin=POINT)),
    ],
)
def test_an_assignment_comes_back_from_its_json(assignment: ChainAssignment) -> None:
    data = json.loads(json.dumps(assignment.to_json()))
    assert data["format"] == FORMAT
    assert ChainAssignment.from_json(data) == assignment


@pytest.mark.parametrize("changed", [{"format": 17}, {"format": None}])
def test_another_format_is_refused_with_what_to_do(changed: dict) -> None:
    refused = ChainAssignment.from_json({**work(stage()).to_json(), **changed})
    assert isinstance(refused, Unreadable)
    assert f"in format {changed['format']}, and this version reads format {FORMAT}: run the workers" in refused.reason


def test_a_field_that_is_missing_is_refused() -> None:
    data = work(stage()).to_json()
    del data["keep_at"]
    refused = ChainAssignment.from_json(data)
    assert isinstance(refused, Unreadable) and "'keep_at'" in refused.reason
