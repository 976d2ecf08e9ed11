"""Runs on: the thread that trains; the heartbeat's reads `pulse` and `flags`.

One chain in the hands of a slot: what it does next, and how it ends, whatever goes wrong.
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
    """To be trained from step `begin` until step `until`. on_progress: says, of the step that is reached now, where
    the training must end; `begin` or less for at the next step."""

    begin: int
    until: int
    on_progress: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The step that was reached. inexact_reasons: why its bits need not be those of a model alone, besides what the
    model itself says. passed: the metrics of the steps that it went past. peak_bytes: as of `TrainedTo`."""

    step: int
    inexact_reasons: tuple[str, ...] = ()
    passed: Mapping[int, e.Metrics] = field(default_factory=dict)
    peak_bytes: int = 0


Stage = Generator[TrainRequest, TrainResult, bool]
"""A stage as a conversation: it says how far it would be trained, and is told how far it was. What goes wrong meanwhile
is thrown into it. It returns whether the stage was completed; if not, its chain is over."""


def resume_stage(stage: Stage, train: Callable[[], TrainResult]) -> TrainRequest:
    """Do what a stage wants; what it wants next. Raises StopIteration when it is over."""
    try:
        trained = train()
    except Exception as error:  # the stage's to deal with
        return stage.throw(error)
    return stage.send(trained)


class Lane(ABC):
    """A chain that is ours, one stage after the other.

    waits_since: when its last stage was done, if the message that begins the next one is not there. keeps_nothing:
    whether no state of it is saved.
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
        """How far it is."""

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
        """Whether nothing comes any more of the call under way: the chain is to stop, or was ended by others."""
        return self.claim.end_flag.is_set() or self.flags.stop

    @abstractmethod
    def can_begin(self, index: int) -> bool:
        """Whether a message that begins stage `index` is neither stale nor a copy."""

    @property
    @abstractmethod
    def is_between_stages(self) -> bool:
        """Whether another stage follows, and has not begun."""

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
        """The message that begins the next stage will not come any more."""
        self._end([self._ended_fact(ChainOutcome.STOPPED)])

    @abstractmethod
    def close(self) -> None:
        """Nothing more comes from the chain."""

    # ------------------------------------------------------------------------------------------------ what differs

    @abstractmethod
    def _set_up(self) -> None:
        """Nothing has begun yet."""

    @abstractmethod
    def _train(self) -> Stage:
        """Whether the stage was completed. Raises everything that can go wrong."""

    @abstractmethod
    def _ended_fact(self, outcome: ChainOutcome) -> e.ChainEnded:
        """The fact that the chain ends here."""

    @abstractmethod
    def _fail(self, failed: TrainerFailed) -> bool:
        """The user's code failed, or an accident of the trainer's process; whether the chain came to its end."""

    @abstractmethod
    def _discard(self, problem: CheckpointUnreadable) -> bool:
        """A checkpoint is lost; whether the chain came to its end."""

    @abstractmethod
    def _end(self, facts: Sequence[e.Event], *changes: RowChange) -> None:
        """Last words about the chain."""

    # ------------------------------------------------------------------------------------------------ what is common

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
        """No worker of a slot that is lent to the chain has a process on its device any more. Raises `LentSlotsBusy`,
        `Closing`, `ChainLost`, `ChainStopped`."""
        if self.work.members:
            await_members_empty(self._slot, self.claim.chain, self._check_wanted)

    def _give_up_members(self, problem: LentSlotsBusy) -> None:
        """The chain is given back, and these slots are given nothing for a while."""
        logger.warning("chain %s is given back: %s", self.claim.chain, problem, extra=self.log_fields)
        self._end(
            [self._ended_fact(ChainOutcome.INTERRUPTED)],
            End(),
            *self._slot.quarantine.quarantine_members(problem.slots),
        )

    def _end_ranks(self) -> None:
        """When the chain is over, the slots that are lent to it are free: then none of its ranks is left on them."""
        if self.work.members:
            self._slot.trainer.end_process()

    def _interrupt(self, reason: str, is_hopeless: bool = False) -> None:
        """An accident: the chain is given back, and its work comes again, perhaps elsewhere.

        The scheduler learns in the same transaction what this slot has, and does not give it the same again.
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
    """Give a chain back that this version cannot read: it is for others."""
    logger.error("chain %s is given back: %s", claim.chain, reason, extra=claim.log_fields)
    quarantine = slot.quarantine.judge_accident(reason, is_hopeless=True)
    changes = [End()] if quarantine is None else [End(), quarantine]
    slot.outbox.put(claim, [e.ChainEnded(chain=claim.chain, outcome=ChainOutcome.INTERRUPTED)], *changes, is_last=True)
