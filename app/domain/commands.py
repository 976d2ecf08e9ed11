"""What may be asked of a plan, in the imperative. Clocks and ids arrive here as fields."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.domain.events import Json, PackingProfiled, PlanOpened, Stage
from app.domain.search_plan import KeptAt, Progresses
from app.domain.study_annotations import AddNote as AddNote
from app.domain.study_annotations import CorrectNote as CorrectNote
from app.domain.study_annotations import LabelStudy as LabelStudy
from app.domain.study_annotations import ResultsLearned as ResultsLearned
from app.domain.terms import ChainId, ChainOutcome, ProofKind, StudyId
from app.domain.trial_requests import AverageTrials as AverageTrials
from app.domain.trial_requests import BranchTrial as BranchTrial
from app.domain.trial_requests import SuggestConfigurations as SuggestConfigurations
from app.domain.trial_requests import WithdrawSuggestion as WithdrawSuggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitStudy:
    """begin, inputs, other_files, by: as in `StudySubmitted`. has_new_weights: whether the object that `begin` names
    was just written; else another study of the plan has it. learned: what its sampler begins with.
    """

    plan: PlanOpened
    study: StudyId
    spec: Json
    at: float
    begin: Json | None = None
    inputs: list[Json] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    has_new_weights: bool = True
    by: str = ""
    learned: tuple[ResultsLearned, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A tuner's action, or a user's: train this configuration for `steps` steps."""

    hp: Json
    steps: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Train the same trial longer, to `steps` in all."""

    trial: int
    steps: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """No more of this trial."""

    trial: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prioritize:
    """What the trial waits for comes before that of trials of a lower priority in the same study."""

    trial: int
    priority: float
    reason: Json = field(default_factory=dict)


TunerAction = Start | Extend | Stop | Prioritize


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTunerActions:
    """What a study's tuner wants next. An action that is true already yields nothing."""

    study: StudyId
    actions: tuple[TunerAction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTrial:
    """A user's own trial in a study."""

    study: StudyId
    hp: Json
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForTrials:
    """A user's own trials, and more steps of those there are: all of it, or nothing."""

    study: StudyId
    actions: tuple[Start | Extend, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTrial:
    study: StudyId
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryTrial:
    """Try a failed trial again, whatever it failed by; a study that is over goes on for that."""

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
    """Go on with a completed study, with `trials` trials in all: wider rungs, the old promotions kept.

    Of Hyperband it is the number of loops, of population based training the number of populations.
    """

    study: StudyId
    trials: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStudy:
    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStudy:
    """Whoever brings the trials of an external study has no more of them."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStudy:
    """The tuner wants nothing more: the study is completed, or failed when no trial came to a result."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStudy:
    """Something ends the study before its tuner does: nobody waits for its trials any more."""

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
    """End the study if its trials fail for a reason that the next ones will share, or if too many did."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignChain:
    """progress: what chains under way have passed, which may be trained again. proof, members, kind: as in
    `ChainAssigned`.
    """

    chain: ChainId
    slot: str
    stages: tuple[Stage, ...]
    at: float
    progress: Progresses = field(default_factory=dict)
    proof: ProofKind | None = None
    members: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosePacking:
    """So many lanes the packs of a plan must have that was opened without a width. profile: by which, if it is one
    of another plan."""

    width: int
    reason: str
    profile: PackingProfiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseChain:
    """The lease of a chain ran out with `steps` of its stage run, as far as is known, and `seconds` spent on them.

    outcome: `LOST` when its worker is gone. died_alone: as in `ChainEnded`; only then the stage may be to blame.
    """

    chain: ChainId
    outcome: ChainOutcome = ChainOutcome.LOST
    steps: int = 0
    seconds: float = 0.0
    died_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolateStudy:
    """Do what the study wants of a trainer that is not exact, if it is not."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAudit:
    """Prove all that the study shares."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAudit:
    """Nothing is left to compare."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStudy:
    """Let go of a study that is over, and of what is kept for it alone."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCheckpoints:
    """Let nothing begin any more with these, as far as nothing does now. named: the keys that chains' rows name."""

    checkpoints: tuple[KeptAt, ...]
    reason: str
    named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDeleted:
    """The objects of these released checkpoints are gone, and of weights that no study begins with any more."""

    keys: tuple[str, ...]


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
Suggesting = SuggestConfigurations | WithdrawSuggestion
AskedByUsers = AddTrial | AskForTrials | CancelTrial | RetryTrial | BranchTrial | AverageTrials | Suggesting
TrialCommand = ApplyTunerActions | AskedByUsers
ChainCommand = ChoosePacking | AssignChain | LoseChain
Command = SubmitStudy | StudyCommand | TrialCommand | ChainCommand | ReleaseCheckpoints | RecordDeleted
