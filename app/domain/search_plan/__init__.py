"""The search plan: an append-only tree of all that its studies ever asked for.

TreeML §4.2 describes the structure: nodes with hyper-parameter functions, checkpoints, metrics and requests, and edges
that are only ever added. `app.domain.evolve` makes it from events, and nothing else does.
"""

from __future__ import annotations

from app.domain.search_plan.chain import NO_PROGRESS, Chain, ChainProgress, ChainsUnderWay, Progresses
from app.domain.search_plan.node import MAX_LOST, MOST_FAILURES, CachedState, Checkpoint, GivenUp, KeptAt, Node, Raised
from app.domain.search_plan.plan import (
    SearchPlan,
    open_study_of,
    speed_up,
    study_of,
)
from app.domain.search_plan.resumptions import Resumption, Value, Witness, resumption_at
from app.domain.search_plan.study import MAX_RESTARTS, Study, still_open, trial_of
from app.domain.search_plan.trial import COOLDOWN_OF, Note, Trial, TrialEvent, TrialRun

__all__ = [
    "COOLDOWN_OF",
    "MAX_LOST",
    "MAX_RESTARTS",
    "MOST_FAILURES",
    "NO_PROGRESS",
    "CachedState",
    "Chain",
    "ChainProgress",
    "ChainsUnderWay",
    "Checkpoint",
    "GivenUp",
    "KeptAt",
    "Node",
    "Note",
    "Progresses",
    "Raised",
    "Resumption",
    "SearchPlan",
    "Study",
    "Trial",
    "TrialEvent",
    "TrialRun",
    "Value",
    "Witness",
    "open_study_of",
    "resumption_at",
    "speed_up",
    "still_open",
    "study_of",
    "trial_of",
]
