"""One chain in a slot: runs its stages, and ends it correctly after any error.

Runs on: the thread that trains; the heartbeat's reads `pulse` and `flags`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain import events as e
from app.domain.terms import ChainOutcome
from app.events import ChainFlags
from app.workers.slot.checkpoint_store import CheckpointUnreadable
from app.workers.slot.claim import (
    ChainLost,
    ChainStopped,
    Claim,
    LentSlotsBusy,
    NoTrainerProcess,
    PackBroken,
    Pulse,
    TrainerVersionMismatch,
)
from app.workers.slot.context import SlotContext
from app.workers.slot.execution import Progress
from app.workers.slot.lending import await_members_empty
from app.workers.slot.models import LaneContext
from app.workers.slot.outbox import DescribeSlot, End, RowChange
from app.workers.slot.retry import Closing, Instant
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A request to train from step `begin` to step `until`.

    on_progress: given the current step, returns where the training must end; `begin` or less for at the next step.
    """

    begin: int
    until: int
    on_progress: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """step: the step that was reached.
    inexact_reasons: why its bits may differ from a model trained alone, besides the model's own reasons.
    passed: the metrics of the steps that it passed.
    peak_bytes: as for `stagetree.runtime.commands.Trained`.
    """

    step: int
    inexact_reasons: tuple[str, ...] = ()
    passed: Mapping[int, e.Metrics] = field(default_factory=dict)
    peak_bytes: int = 0


Stage = Generator[TrainRequest, TrainResult, bool]
"""A stage as a generator: it yields requests to train and receives the results, or the errors. It returns whether
the stage was completed; if not, its chain is over.
"""


def resume_stage(stage: Stage, train: Callable[[], TrainResult]) -> TrainRequest:
    """Train, and resume the stage with the result; returns its next request. Raises StopIteration at its end."""
    try:
        trained = train()
    except Exception as error:  # the stage handles it
        return stage.throw(error)
    return stage.send(trained)


class Lane(ABC):
    """A claimed chain, one stage after the other.

    waits_since: when its last stage ended, if the next message has not come.
    keeps_nothing: whether none of its states is saved.
    """

    waits_since: Instant | None = None
    keeps_nothing = False

    def __init__(self, slot: SlotContext, context: LaneContext) -> None:
        self.claim, self.work, self._asked = context.claimed.claim, context.claimed.work, context.claimed.lease.flags
        self._slot, self._context = slot, context
        self._set_up()

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """The last step, and the kept ones."""

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields of a log line about it."""
        return {**self.claim.log_fields, "study": self.work.study, "trial": self.work.trial}

    @property
    def pulse(self) -> Pulse:
        progress = self.progress
        return Pulse(self.claim, progress.step, self.waits_since, progress.kept)

    @property
    def flags(self) -> ChainFlags:
        """What the scheduler wanted when the chain was claimed, and wants now."""
        now, first = self._slot.flags(self.claim.chain), self._asked
        steps, branches = first.extra_eval_steps + now.extra_eval_steps, first.branch_steps + now.branch_steps
        return ChainFlags(steps, first.stop or now.stop, first.preempt or now.preempt, branches)

    @property
    def is_unwanted(self) -> bool:
        """Whether the current call is useless: the chain must stop, or has ended."""
        return self.claim.end_flag.is_set() or self.flags.stop

    @abstractmethod
    def can_begin(self, index: int) -> bool:
        """Whether a message for stage `index` is neither stale nor a duplicate."""

    @property
    @abstractmethod
    def is_between_stages(self) -> bool:
        """Whether another stage follows and has not begun."""

    def stage(self) -> Stage:
        """Train the next stage."""
        self.waits_since = None
        try:
            return (yield from self._train())
        except (ChainLost, Closing) as end:
            self._abandon(end)
        except ChainStopped:
            self._end([self._ended_fact(ChainOutcome.STOPPED)])
        except TrainerFailed as failed:
            return self._fail(failed)
        except CheckpointUnreadable as problem:
            return self._discard(problem)
        except PackBroken:
            self._end([self._ended_fact(ChainOutcome.INTERRUPTED)])
        except LentSlotsBusy as problem:
            self._give_up_members(problem)
        except (TrainerVersionMismatch, NoTrainerProcess) as problem:
            self._interrupt(str(problem), is_hopeless=type(problem) is NoTrainerProcess)
        except Exception as error:
            logger.exception("chain %s is interrupted by a fault of ours", self.claim.chain, extra=self.log_fields)
            self._slot.trainer.end_process()
            self._interrupt(f"{type(error).__name__}: {error}")
        return False

    def give_back(self) -> None:
        """End the chain: the message for the next stage will not come."""
        self._end([self._ended_fact(ChainOutcome.STOPPED)])

    @abstractmethod
    def close(self) -> None:
        """Nothing more comes from the chain."""

    # ------------------------------------------------------------------------------------------------ what differs

    @abstractmethod
    def _set_up(self) -> None:
        """Called once, before anything begins."""

    @abstractmethod
    def _train(self) -> Stage:
        """Whether the stage was completed. Raises everything that can go wrong."""

    @abstractmethod
    def _ended_fact(self, outcome: ChainOutcome) -> e.ChainEnded:
        """The fact that the chain ends here."""

    @abstractmethod
    def _fail(self, failed: TrainerFailed) -> bool:
        """Handle a failure of the user's code or the trainer's process, and return whether the chain is complete."""

    @abstractmethod
    def _discard(self, problem: CheckpointUnreadable) -> bool:
        """Handle a lost checkpoint, and return whether the chain is complete."""

    @abstractmethod
    def _end(self, facts: Sequence[e.Event], *changes: RowChange) -> None:
        """Record the chain's last facts."""

    # ------------------------------------------------------------------------------------------------ common

    def _check_not_lost(self) -> None:
        """Raises `ChainLost`."""
        if self.claim.end_flag.is_set():
            raise ChainLost(f"chain {self.claim.chain} is over, or another worker's")

    def _check_wanted(self) -> None:
        """Raises `ChainLost`, `ChainStopped`."""
        self._check_not_lost()
        if self.flags.end:
            raise ChainStopped

    def _await_members(self) -> None:
        """Wait until the lent slots' devices are empty. Raises `LentSlotsBusy`, `Closing`, `ChainLost`,
        `ChainStopped`.
        """
        if self.work.members:
            await_members_empty(self._slot, self.claim.chain, self._check_wanted)

    def _give_up_members(self, problem: LentSlotsBusy) -> None:
        """Give the chain back, and quarantine these slots."""
        logger.warning("chain %s is given back: %s", self.claim.chain, problem, extra=self.log_fields)
        self._end(
            [self._ended_fact(ChainOutcome.INTERRUPTED)],
            End(),
            *self._slot.quarantine.quarantine_members(problem.slots),
        )

    def _end_ranks(self) -> None:
        """End all ranks before the chain's end frees the lent slots."""
        if self.work.members:
            self._slot.trainer.end_process()

    def _interrupt(self, reason: str, is_hopeless: bool = False) -> None:
        """An accident: give the chain back, so that its work is assigned again, perhaps to another slot.

        The same transaction tells the scheduler which trainers this slot has, so that it does not assign the same chain
        again.
        """
        logger.warning("chain %s is given back: %s", self.claim.chain, reason, extra=self.log_fields)
        slot = self._slot
        quarantine = slot.quarantine.judge_accident(reason, is_hopeless=is_hopeless)
        says = DescribeSlot(slot.me.slot, slot.me.owner, slot.trainer.versions, slot.status.text)
        changes = (End(), says) if quarantine is None else (End(), says, quarantine)
        self._end([self._ended_fact(ChainOutcome.INTERRUPTED)], *changes)

    def _abandon(self, end: Exception) -> None:
        logger.warning("chain %s is given up: %s", self.claim.chain, end or type(end).__name__, extra=self.log_fields)
        self.claim.end_flag.set()
        self._end_ranks()
        self.close()


def refuse(slot: SlotContext, claim: Claim, reason: str) -> None:
    """Give back a chain that this version cannot read; another worker may."""
    logger.error("chain %s is given back: %s", claim.chain, reason, extra=claim.log_fields)
    quarantine = slot.quarantine.judge_accident(reason, is_hopeless=True)
    changes = [End()] if quarantine is None else [End(), quarantine]
    slot.outbox.put(claim, [e.ChainEnded(chain=claim.chain, outcome=ChainOutcome.INTERRUPTED)], *changes, is_last=True)
