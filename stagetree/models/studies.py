"""Studies: how they stand, what they cost, and what one would cost."""

from __future__ import annotations

from typing import Any, Literal

from stagetree.models.answer import Answer, Json
from stagetree.models.trials import Note, Outcome, Trial

StudyState = Literal["running", "paused", "completed", "failed", "cancelled"] | str


class Best(Answer):
    """The best trial so far, by the study's mode, ties to the lower number."""

    trial: int
    value: float
    steps: int
    hp: Json = {}
    last: Outcome | None = None
    best: Outcome | None = None


class Steps(Answer):
    """Steps asked for, each trial counted alone; different ones among them; and those that workers really ran."""

    requested: int = 0
    unique: int = 0
    executed: int = 0


class Cost(Answer):
    """A waterfall, in steps.

    alone - stopped_early - unfinished - shared - known + repeated + retried + lost + struck = run.

    `saved_by_sharing` is the part of `taken` that sharing saved, where `taken` is what the same tuner runs without
    sharing; `saved_by_stopping` is the part that early stopping saved of every trial trained to the end.
    """

    alone: int = 0
    stopped_early: int = 0
    unfinished: int = 0
    shared: int = 0
    known: int = 0
    repeated: int = 0
    retried: int = 0
    lost: int = 0
    struck: int = 0
    run: int = 0
    taken: int = 0
    saved_by_sharing: float | None = None
    saved_by_stopping: float | None = None


class Failures(Answer):
    """Failed trials with equal errors; `text` says it in a line.

    `where` is what only their hyper-parameters have in common, `tries` how often they were tried, all together.
    """

    trials: list[int] = []
    kind: str = ""
    place: str | None = None
    error: str = ""
    steps: list[int] = []
    tries: int = 1
    where: str = ""
    text: str = ""


class UnderWay(Answer):
    """A stage that a slot is training now: the steps (start, end] of a node, `step` of them done."""

    slot: str
    study: str = ""
    node: str
    start: int
    end: int
    step: int
    trials: list[int] = []
    trial_count: int = 0
    forms: dict[str, str] = {}


class TrialsDone(Answer):
    """Trials that came to a first result or to an end, which never get fewer; those of them that wait for their tuner,
    which may ask for more of them; and how many there will be, None where others say so.
    """

    done: int
    resting: int = 0
    expected: int | None = None


class StepsDone(Answer):
    """Different steps that are trained, and how many there will be."""

    done: int
    expected: int


class RungStanding(Answer):
    """Where a tuner compares trials: how many were sent there, have a result there, failed, and went on."""

    bracket: int
    rung: int
    steps: int
    entered: int
    arrived: int
    failed: int
    promoted: int


class Decision(Answer):
    """What the tuner decided about a trial, and why."""

    kind: str
    trial: int
    steps: int
    reason: Json = {}


class Progress(Answer):
    """How far a study is, and what slots do for it."""

    trials: TrialsDone | None = None
    steps: StepsDone | None = None
    seconds_left: float | None = None
    rungs: list[RungStanding] = []
    last: Decision | None = None
    running: list[UnderWay] = []


class Share(Answer):
    """What a study has of the slots, and what it is due while others compete with it for them."""

    used: int = 0
    due: float | None = None


class Exactness(Answer):
    """Whether sharing was seen to change no bit of a study's trainer, and up to which step: `text` says it in a line.

    `mark` is what is to stand beside the study's numbers; it is empty where all of them are proven. `reason` says what
    differs or was not covered, `stray` which attributes of the trainer do not come back with its state. Where
    `isolated`, each trial is trained alone. `proof_steps` were trained again, only to compare.
    """

    verdict: str = "unproven"
    proven_to: int = 0
    text: str = ""
    mark: str = ""
    reason: str = ""
    stray: list[str] = []
    isolated: bool = False
    audited: bool = False
    proof_steps: int = 0


class StudyAnswer(Answer):
    """A study with its results so far; `spec` and `trials` only where they were asked for.

    `not_exact` says why results may differ in their last bits from those of trials trained alone, where they may.
    """

    study: str
    name: str = ""
    state: StudyState
    error: str | None = None
    not_exact: list[str] = []
    exactness: Exactness = Exactness()
    ending: str | None = None
    metric: str = ""
    mode: str = ""
    value: str = "last"
    tuner: str = ""
    best: Best | None = None
    counts: dict[str, int] = {}
    failed: int = 0
    failures: list[Failures] = []
    steps: Steps = Steps()
    cost: Cost = Cost()
    merge_rate: float | None = None
    waits_for: list[str] = []
    begins: dict[str, Any] | None = None
    inputs: list[dict[str, Any]] | None = None
    packing: dict[str, Any] | None = None
    gpu_sharing: list[dict[str, Any]] | None = None
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    submitted_at: float = 0.0
    finished_at: float | None = None
    slots: Share = Share()
    progress: Progress = Progress()
    notes: list[Note] = []
    spec: Json = {}
    trials: list[Trial] = []


class StudyListed(Answer):
    """A study in the list."""

    study: str
    name: str = ""
    state: StudyState
    submitted_at: float = 0.0
    plan: str = ""
    slots: Share = Share()
    begins: str = ""


class Preview(Answer):
    """What a study would cost, counted in steps; `advice` says what would make it cost less."""

    trials: int
    requested: int
    unique: int
    merge_rate: float
    alone: int = 0
    saved_by_sharing: float | None = None
    saved_by_stopping: float | None = None
    critical_path_steps: int
    makespan_steps: int
    slots: int = 1
    packed_makespan_steps: int | None = None
    packing: dict[str, Any] | None = None
    advice: list[str] = []
