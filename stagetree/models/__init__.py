"""The answers of the server as typed objects, so that an editor completes `client.study(id).best.value`.

Fields added by a newer server are available by name, and fields missing from an older one have defaults. Answers also
work like the JSON they come from: `study["best"]["value"]`.
"""

from __future__ import annotations

from stagetree.models.answer import Answer
from stagetree.models.previews import Preview
from stagetree.models.service import Event, Replay, Slot, SlotStage, TrainerListed
from stagetree.models.studies import (
    Best,
    Cost,
    Decision,
    Exactness,
    Progress,
    RungStanding,
    Share,
    Steps,
    StepsDone,
    StudyAnswer,
    StudyListed,
    StudyStory,
    TrialsDone,
    UnderWay,
)
from stagetree.models.trials import (
    Branch,
    Failure,
    LoggedPoint,
    Node,
    Note,
    Outcome,
    Plan,
    Point,
    Proposed,
    SamplerState,
    Stage,
    StageTree,
    Suggestion,
    Trial,
    TrialDetail,
)

__all__ = [
    "Answer",
    "Best",
    "Branch",
    "Cost",
    "Decision",
    "Event",
    "Exactness",
    "Failure",
    "LoggedPoint",
    "Node",
    "Note",
    "Outcome",
    "Plan",
    "Point",
    "Preview",
    "Progress",
    "Proposed",
    "Replay",
    "RungStanding",
    "SamplerState",
    "Share",
    "Slot",
    "SlotStage",
    "Stage",
    "StageTree",
    "Steps",
    "StepsDone",
    "StudyAnswer",
    "StudyListed",
    "StudyStory",
    "Suggestion",
    "TrainerListed",
    "Trial",
    "TrialDetail",
    "TrialsDone",
    "UnderWay",
]
