"""How things stand, one list for all who name it. The values are the storage format and the REST contract."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Word(StrEnum):
    """A word that is written as it is wherever it is shown."""

    def __repr__(self) -> str:
        return repr(self.value)


class StudyState(Word):
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TrialState(Word):
    """`ACTIVE`: waits for a result. `COMPLETED`: all that it was asked for is there."""

    ACTIVE = "active"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    CANCELLED = "cancelled"


ShownTrialState = Literal["waiting", "running", "completed", "stopped", "failed", "cancelled"]
"""How a trial's state is shown: an active one waits for a slot, or is trained on one."""


class TrialEventKind(Word):
    """What a line of a study's history says of a trial."""

    START = "start"
    PROMOTE = "promote"
    STOP = "stop"
    PRIORITIZE = "prioritize"
    RESULT = "result"
    FAIL = "fail"
    CANCEL = "cancel"


class ChainOutcome(Word):
    """Why nothing more comes from a chain.

    `DONE`: all is trained and saved. `LOST`: its worker is gone. `UNDELIVERED`: a message that starts one of its stages
    never arrived. `STOPPED`: nobody wants it any more, another study got its slot, or its worker was asked to end.
    `INTERRUPTED`: an accident that is neither the worker's death nor the user's code; the work comes back, and nobody
    is to blame.
    """

    DONE = "done"
    LOST = "lost"
    UNDELIVERED = "undelivered"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class FailureKind(Word):
    """What was wrong with the user's work.

    `EXCEPTION`, `OUT_OF_MEMORY`, `DEVICE` (a CUDA error), `CRASH` (the trainer's process died) and `HANG` (no progress
    before the deadline) are tried again in a fresh process before they count. `POISON`: the process that trained it
    died too often, the last time with no other stage beside it. `METRIC`: the study's metric is not reported. `NAN`: it
    is not a finite number. `STORAGE` and `INTERNAL` occur in logs of older versions only.
    """

    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE = "device"
    CRASH = "crash"
    HANG = "hang"
    POISON = "poison"
    METRIC = "metric"
    NAN = "nan"
    STORAGE = "storage"
    INTERNAL = "internal"


class ProofKind(Word):
    """What a chain trains only in order to compare: see `app.domain.proofs`.

    `CHECK`: a trainer's first steps, in a new and in a used object, before anything else of the plan is trained.
    `HANDOVER`: some steps on from a checkpoint in a fresh process, against the process that went on. `WHOLE`: a trial
    alone from step 0, without a break. `AUDIT`: a finished stage once more, across the hand-over at its beginning.
    """

    CHECK = "check"
    HANDOVER = "handover"
    WHOLE = "whole"
    AUDIT = "audit"


class Verdict(Word):
    """Whether training on from a saved state ends with the same bits as training without a break.

    `EXACT`: so it was seen to be, as far as the verdict says. `INEXACT`: it was seen not to be. `UNPROVEN`: nobody has
    looked, or not at all of it.
    """

    EXACT = "exact"
    INEXACT = "inexact"
    UNPROVEN = "unproven"


class InexactPolicy(Word):
    """What a study wants of a trainer that is not exact: each trial `ALONE`, nothing (`REFUSE`), or to share anyway."""

    ALONE = "alone"
    REFUSE = "refuse"
    ALLOW = "allow"


class ChainState(Word):
    """How a chain's row stands. `SAVING`: all is trained, its slot is free, checkpoints are on their way."""

    READY = "ready"
    RUNNING = "running"
    SAVING = "saving"
    DONE = "done"
    ENDED = "ended"


FINAL_STATES = frozenset({StudyState.COMPLETED, StudyState.FAILED, StudyState.CANCELLED})
