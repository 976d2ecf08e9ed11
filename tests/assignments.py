"""Plain assignments, for tests about something else."""

from __future__ import annotations

from typing import Any

from app.domain.chain_assignment import ChainAssignment, ResumePoint
from app.domain.events import Stage
from app.domain.terms import NodeId, StudyId
from app.events.rows import LeaseFence


def work(*stages: Stage, resume: str | None = None, **fields: Any) -> ChainAssignment:
    """To train these stages. resume: the key of the checkpoint with which it begins."""
    begins = None if resume is None else ResumePoint("n", 0, resume, "")
    values = {"plan": "plan", "trainer": "toy", "trainer_version": "1", "trainer_args": {}, "seed": 0}
    of = {"study": "s", "trial": 0, "hp": {}}
    return ChainAssignment(**values, **of, stages=stages, resume=begins, **fields)


def stage(node: str = "n", start: int = 0, end: int = 4, study: str = "s") -> Stage:
    return Stage(node=NodeId(node), start=start, end=end, study=StudyId(study))


WORK = work()

FENCE = LeaseFence(1, "anna")
"""The fence of a chain that anna has claimed and not reported yet."""
