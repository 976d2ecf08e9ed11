"""The search plan: an append-only tree of everything that its studies have requested.

TreeML §4.2 describes the structure: nodes with hyper-parameter functions, checkpoints, metrics and requests, and edges
that are never removed. Only `app.domain.evolve` changes it, from events.
"""

from __future__ import annotations

from app.domain.search_plan.chain import NO_PROGRESS, Chain, ChainProgress, ChainsUnderWay, Progresses
from app.domain.search_plan.node import (
    MAX_LOST,
    MOST_FAILURES,
    CachedState,
    Checkpoint,
    ErrorLocation,
    FinalFailure,
    Node,
    PlacedCheckpoint,
)
from app.domain.search_plan.plan import (
    SearchPlan,
    get_open_study,
    get_study,
    speedup,
)
from app.domain.search_plan.resumptions import Resumption, Value, Witness, resumption_at
from app.domain.search_plan.spec import BUDGETS, StoredSpec
from app.domain.search_plan.study import Study, TargetReached, get_trial, require_open
from app.domain.search_plan.trial import AVERAGE_OF, COOLDOWN_OF, MERGE_OF, Note, Trial, TrialEvent, TrialRun

__all__ = [
    "AVERAGE_OF",
    "BUDGETS",
    "COOLDOWN_OF",
    "MAX_LOST",
    "MERGE_OF",
    "MOST_FAILURES",
    "NO_PROGRESS",
    "CachedState",
    "Chain",
    "ChainProgress",
    "ChainsUnderWay",
    "Checkpoint",
    "ErrorLocation",
    "FinalFailure",
    "Node",
    "Note",
    "PlacedCheckpoint",
    "Progresses",
    "Resumption",
    "SearchPlan",
    "StoredSpec",
    "Study",
    "TargetReached",
    "Trial",
    "TrialEvent",
    "TrialRun",
    "Value",
    "Witness",
    "get_open_study",
    "get_study",
    "get_trial",
    "require_open",
    "resumption_at",
    "speedup",
]
