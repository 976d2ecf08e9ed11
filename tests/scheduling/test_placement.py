"""Which of several free slots gets a chain, where slots share GPUs."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain.events import PlanOpened
from app.domain.search_plan import Node, SearchPlan, StoredSpec, Study
from app.domain.slots import shared_gpu
from app.domain.terms import NodeId, StudyId
from app.scheduling.frontier import Span
from app.scheduling.placement import Candidates, place

OPENED = PlanOpened(trainer="toy", trainer_version="1", trainer_args={}, seed=0)
PLAN = SearchPlan(opened=OPENED)
PLAN.nodes[NodeId("node")] = Node(id=NodeId("node"), parent=None, start=0, hp={})
PLAN.studies[StudyId("study")] = Study(StudyId("study"), StoredSpec({}), 0.0)
SPANS = [Span(NodeId("node"), 0, 4, StudyId("study"))]


def slot(name: str) -> Any:
    return SimpleNamespace(name=name, trainers={"toy": "1"}, resident_model=None, kind="")


def place_one(well: list[Any], free: list[Any]) -> Any:
    return place(PLAN, "plan", SPANS, None, Candidates(well, free))


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_gpus_that_are_shared_are_filled_evenly(gpus: int, shares: int, data: st.DataObject) -> None:
    names = [f"host-gpu{number}{letter}" for number in range(gpus) for letter in "abcd"[:shares]]
    well = [slot(name) for name in data.draw(st.permutations(names))]
    free, used = list(well), Counter({f"host-gpu{number}": 0 for number in range(gpus)})
    while free:
        taken = place_one(well, free)
        free.remove(taken)
        used[shared_gpu(taken.name) or ""] += 1
        assert max(used.values()) - min(used.values()) <= 1


def test_slots_that_share_nothing_are_taken_in_order() -> None:
    well = [slot(name) for name in ("cpu0", "cpu1", "gpu0", "gpu1")]
    assert [place_one(well, well[taken:]).name for taken in range(4)] == ["cpu0", "cpu1", "gpu0", "gpu1"]
