"""Commands: what the API, the scheduler and workers ask of a plan. `app.domain.decide` accepts or refuses them.

Clock readings and random ids are fields of the commands, so that deciding stays pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.domain.events import Json, PackingProfiled, PlanOpened, Stage
from app.domain.sampler_inputs import ResultsLearned as ResultsLearned
from app.domain.search_plan import AVERAGE_OF, PlacedCheckpoint, Progresses
from app.domain.terms import ChainId, ChainOutcome, StudyId, VerificationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitStudy:
    plan: PlanOpened
    study: StudyId
    spec: Json
    at: float
    begin: Json | None = None  # this field and the next two, and `by`: as in `StudySubmitted`
    inputs: list[Json] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    has_new_weights: bool = True
    """Whether the caller has just written the object that `begin` names; otherwise another study must still own it."""
    by: str = ""
    learned: tuple[ResultsLearned, ...] = ()
    """Results of other studies for the sampler to start from."""


class AveragedState(NamedTuple):
    """The state of a trial after a step, with its weight in a mean."""

    trial: int
    step: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a trial with this configuration, for `steps` steps.

    average_of: the states of one trial whose mean is evaluated instead of training; the last one is at step `steps`.
    """

    hp: Json
    steps: int
    reason: Json = field(default_factory=dict)
    average_of: tuple[AveragedState, ...] = ()

    @property
    def recorded_reason(self) -> Json:
        """The reason as the log holds it."""
        states = {AVERAGE_OF: [state._asdict() for state in self.average_of]} if self.average_of else {}
        return {**self.reason, **states}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Train an existing trial to `steps` steps in total."""

    trial: int
    steps: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    trial: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prioritize:
    """Rank a trial within its study: stages of trials with a higher priority run first."""

    trial: int
    priority: float
    reason: Json = field(default_factory=dict)


TunerAction = Start | Extend | Stop | Prioritize


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTunerActions:
    """The next actions of a study's tuner. An action without an effect yields no event."""

    study: StudyId
    actions: tuple[TunerAction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTrial:
    """Add a user's trial to a study."""

    study: StudyId
    hp: Json
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForTrials:
    """Add users' trials and extend existing ones, all of them or none."""

    study: StudyId
    actions: tuple[Start | Extend, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTrial:
    study: StudyId
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryTrial:
    """Try a failed trial again. Reopens a study that has ended."""

    study: StudyId
    trial: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStudy:
    study: StudyId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStudy:
    study: StudyId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenStudy:
    """Continue a completed study with more trials: rungs get wider, earlier promotions stay."""

    study: StudyId
    trials: int
    """The new total of trials; for Hyperband of loops, for population based training of populations."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStudy:
    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStudy:
    """The client of a study with an external tuner has no more trials."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStudy:
    """The tuner is done: complete the study, or fail it if no trial has a result."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStudy:
    """End the study before its tuner does, because of a target, a time limit or a budget."""

    study: StudyId
    reason: Json
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailStudy:
    study: StudyId
    error: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFailures:
    """Fail the study if its trials fail for a reason that applies to all, or if more than `max_failures` failed."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignChain:
    chain: ChainId
    slot: str
    stages: tuple[Stage, ...]
    at: float
    progress: Progresses = field(default_factory=dict)
    """How far running chains are. Steps that they have passed without saving may be trained again."""
    proof: VerificationKind | None = None  # and the next two: as in `ChainAssigned`
    members: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosePacking:
    """Set the number of lanes for the packs of a plan that was opened without one."""

    width: int
    reason: str
    profile: PackingProfiled | None = None
    """The measurement that the width follows from, if another plan made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseChain:
    """The lease of a chain ran out."""

    chain: ChainId
    outcome: ChainOutcome = ChainOutcome.LOST
    steps: int = 0
    """Steps of the current stage that were run, according to the last heartbeat."""
    seconds: float = 0.0
    """Time spent on them."""
    died_alone: bool = False
    """As in `ChainEnded`: only then may the stage be to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolateStudy:
    """Apply the study's `inexact` policy if its trainer has turned out not to be exact."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAudit:
    """Verify everything that the study shares."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAudit:
    """End an audit with nothing left to compare."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStudy:
    """Delete a study that has ended, and the states kept for it alone."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCheckpoints:
    """Release these checkpoints, except any that have come into use since they were chosen."""

    checkpoints: tuple[PlacedCheckpoint, ...]
    reason: str
    assigned_keys: frozenset[str] = frozenset()
    """The keys of objects that the rows of chains refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDeleted:
    """Record that these objects of released checkpoints, or of weights that no study starts from, are deleted."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTrial:
    """Add a user's trial that branches off another one after step `at`. Reopens a study that has ended.

    hp: the new sequence of each hyper-parameter that changes, with t = 0 at the branch. steps: in total.
    """

    study: StudyId
    trial: int
    at: int
    hp: Json
    steps: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageTrials:
    """Add a user's trial that begins with the mean of others. Reopens a study that has ended.

    trials: their numbers. best: the number of best trials to average instead. last: the number of the last saved states
    to average of a single trial. weights: one for each state; empty for equal ones. steps: in total, if it is trained
    further. hp: the changed sequences from there on, as for a branch.
    """

    study: StudyId
    trials: tuple[int, ...] = ()
    best: int | None = None
    last: int | None = None
    weights: tuple[float, ...] = ()
    steps: int | None = None
    hp: Json = field(default_factory=dict)
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestConfigurations:
    """Enqueue configurations for a study's tuner, all of them or none. Callers have checked them against its space."""

    study: StudyId
    configurations: tuple[Json, ...]
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawSuggestion:
    """Withdraw a suggestion that no trial has taken up."""

    study: StudyId
    suggestion: int
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNote:
    """Add a note to a study, or to one of its trials."""

    study: StudyId
    text: str
    trial: int | None
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectNote:
    """Replace the text of a note."""

    study: StudyId
    event: int
    """The position in its study of the event that added the note."""
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStudy:
    """Add and remove tags, and set attributes; None removes one."""

    study: StudyId
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    at: float
    by: str = ""


StudyCommand = (
    PauseStudy
    | ResumeStudy
    | ReopenStudy
    | CancelStudy
    | CompleteStudy
    | CloseStudy
    | EndStudy
    | FailStudy
    | CheckFailures
    | IsolateStudy
    | RequestAudit
    | EndAudit
    | DeleteStudy
    | AddNote
    | CorrectNote
    | LabelStudy
)
SuggestionCommand = SuggestConfigurations | WithdrawSuggestion
UserRequest = AddTrial | AskForTrials | CancelTrial | RetryTrial | BranchTrial | AverageTrials | SuggestionCommand
TrialCommand = ApplyTunerActions | UserRequest
ChainCommand = ChoosePacking | AssignChain | LoseChain
Command = SubmitStudy | StudyCommand | TrialCommand | ChainCommand | ReleaseCheckpoints | RecordDeleted
