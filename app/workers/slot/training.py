"""Runs on: the thread that trains.

A chain that trains: does what its execution says, and hands its facts on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from app.domain import events as e
from app.domain.chain_assignment import ResumePoint
from app.domain.terms import ChainOutcome, FailureKind, NodeId, VerificationKind
from app.workers.slot.checkpoint_store import CheckpointUnreadable
from app.workers.slot.claim import NoTrainerProcess
from app.workers.slot.execution import (
    ChainExecution,
    Complete,
    Evaluate,
    ExecutionState,
    Outside,
    Progress,
    Save,
    Stop,
    Train,
)
from app.workers.slot.intermediates import ChainCheckpoints
from app.workers.slot.lane import Lane, Stage, Wish
from app.workers.slot.models import can_have_more, needs_more
from app.workers.slot.outbox import Advance, End, Finish, Release, RowChange
from app.workers.state import State
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

MOST_SECONDS_APART = 900.0
"""A state inside a stage is kept after so long at any cost: a machine may be taken away at any time."""

SOON_SECONDS = 1.0
"""So long before a stage ends, the message of the next one is sent, and costs no time then. It is not in the broker for
longer, where it may be lost."""


class TrainingLane(Lane):
    """In a pack, or where a pack is trained lane by lane, one message begins all stages of the chain."""

    def _prepare(self) -> None:
        slot, room = self._slot, self.work.intermediate_bytes
        self._execution = ChainExecution(self.claim.chain, self.work, slot.overhead)
        self._checkpoints = ChainCheckpoints(
            self.claim, room, slot.given.records, slot.outbox, slot.saver, slot.me.host
        )
        self._facts: list[e.Event] = []
        self._told_changed = frozenset[str]()
        self._last_read = ResumePoint("", 0, "", "")
        self._step_seconds = inf  # of the stage before

    @property
    def progress(self) -> Progress:
        return self._execution.progress

    @property
    def is_between_stages(self) -> bool:
        return self._execution.state == ExecutionState.BETWEEN_STAGES

    def can_begin(self, index: int) -> bool:
        return self._execution.can_begin(index)

    def close(self) -> None:
        self._execution.closed()
        self._checkpoints.close()

    # ------------------------------------------------------------------------------------------------ a stage

    def _train(self) -> Stage:
        self._check_ours()
        execution, slot, its = self._execution, self._slot, self._its
        execution.begin(its.seconds())
        if execution.index == 0:
            self._await_members()
            slot.around.note_writes(self.work, slot.trainer.uses())
        log = slot.logs.begin(self.claim.chain, self.work, execution.index)
        its.model.begin(self.work, execution.index, self._read, log)
        about, other_inputs = slot.around.look(self.claim, self.work, execution.index)
        self._facts += [*about, *execution.not_exact((*its.model.inexact_reasons, *its.inexact_reasons, *other_inputs))]
        while True:
            self._check_ours()
            match execution.next(self._outside()):
                case Train(until):
                    self._state_facts()
                    trained = yield Wish(execution.step, until, self._on_progress)
                    self._facts += execution.not_exact((*trained.inexact_reasons, *its.model.operations))
                    self._facts += execution.passed(trained.passed)
                    execution.reached(trained.step, trained.peak_bytes)
                case Evaluate():
                    self._evaluate()
                case Save() as save:
                    self._save(save)
                case Complete():
                    self._complete()
                    return True
                case Stop():
                    self._stop()
                    return False

    def _evaluate(self) -> None:
        """Where the trial alone is not evaluated, it is on record if that changes its state."""
        execution, model, stage = self._execution, self._its.model, self._execution.stage
        is_its_own = execution.step in self.work.own_evaluations
        self._facts.append(execution.evaluated(model.evaluate(watch=not is_its_own)))
        self._facts += execution.not_exact(model.operations)
        if not is_its_own and (changed := frozenset(model.changed) - self._told_changed):
            self._told_changed |= changed
            self._facts.append(
                e.ExactnessTested(
                    chain=self.claim.chain,
                    proof=VerificationKind.EVALUATION,
                    device=self._slot.me.kind or self._slot.device,
                    node=stage.node,
                    begin=execution.step,
                    step=execution.step,
                    stray=dict.fromkeys(sorted(changed), "is changed by evaluate()"),
                )
            )

    def _read(self, point: ResumePoint) -> State:
        self._last_read = point
        return self._its.reader.read(point, self._check_wanted)

    def _on_progress(self, step: int) -> int:
        if self.claim.over.is_set():
            return 0
        end = self._execution.end_of_training(step, self._outside())
        if end and self._ends_soon():
            self._slot.given.send_next()
        return end

    def _ends_soon(self) -> bool:
        """Whether the end of the stage is a moment away, if a step takes as long as in the stage before."""
        return 0 < (self._execution.stage.end - self._execution.step) * self._step_seconds <= SOON_SECONDS

    def _outside(self) -> Outside:
        saver = self._slot.saver
        cost = saver.seconds(self.claim.stream)
        return Outside(self._its.seconds(), self.flags, cost, saver.is_idle, MOST_SECONDS_APART)

    def _state_facts(
        self, *more: e.Event, change: RowChange | None = None, is_news: bool = False, awaits_more: bool = False
    ) -> None:
        """What was found since the last time goes on record."""
        facts, self._facts = [*self._facts, *more], []
        if facts:
            news, changes = is_news or self._execution.is_news(facts, self.flags), () if change is None else (change,)
            self._slot.outbox.put(self.claim, facts, *changes, is_news=news, awaits_more=awaits_more)

    def _complete(self) -> None:
        """The stage is done; after the last one the slot is free, and the chain is closed when all is saved."""
        execution, slot, stage = self._execution, self._slot, self._execution.stage
        is_last, is_branch_point = execution.is_last_stage, execution.index in self.work.branch_points
        self._look_again()
        self._its.model.mark_at((self.work.plan, stage.node, stage.end))
        if is_last:
            self._let_go()
        slot.quarantine.succeeded()
        news = is_last or execution.is_news(self._facts, self.flags)
        done = replace(execution.completed(self._its.seconds()), shared_process=self._its.model.shares_process)
        self._step_seconds = done.seconds / max(1, stage.end - stage.start)
        slot.status.remove("lost")
        change = Release(self.work.plan, stage.node, stage.end) if is_last else Advance(execution.index)
        follows = is_last or self._checkpoints.has_held  # the chain's last words, or that the state was kept
        self._state_facts(done, change=change, is_news=news, awaits_more=follows and self._checkpoints.is_quick)
        last_words = [execution.finished()] if is_last else []
        if not self._checkpoints.save_held(stage, last_words, is_branch_point) and is_last:
            self._end(last_words, Finish())

    def _look_again(self) -> None:
        """Files that have changed since the stage began, or that another trial has written, make all of it another."""
        stage = self._execution.stage
        reasons = self._slot.around.look_again(self.claim, self.work, self._slot.trainer.uses())
        step = min(stage.start + 1, stage.end)
        self._facts += [e.ExactnessLost(node=stage.node, step=step, reason=reason) for reason in reasons]

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _save(self, save: Save) -> None:
        """Copy the state. That at the end of a stage waits until the stage is on its way to the log."""
        execution, stage = self._execution, self._execution.stage
        begun_at = self._its.seconds()
        parts = execution.step >= stage.end and not execution.is_last_stage
        state = self._its.model.save(look=parts or execution.step in self.work.keep_at)
        copied_at = self._its.seconds()
        execution.saved(copied_at)
        if execution.step >= stage.end:
            self._checkpoints.hold(state)
            return
        self._checkpoints.save_inside(
            stage,
            execution.step,
            state,
            copy_seconds=copied_at - begun_at,
            is_intermediate=save.is_intermediate,
            best_for=save.best_for,
            branches=execution.branches_inside(self.flags),
        )

    # ------------------------------------------------------------------------------------------------ endings

    def _stop(self) -> None:
        """Nobody wants more of the chain; its model stays in memory, where the state was just kept."""
        stage, step = self._execution.stage, self._execution.step
        self._look_again()
        self._its.model.mark_at((self.work.plan, stage.node, step))
        self._end([self._ended(ChainOutcome.STOPPED)])

    def _ended(self, outcome: ChainOutcome) -> e.ChainEnded:
        return self._execution.ended(outcome, self._its.seconds())

    def _fail(self, failed: TrainerFailed) -> bool:
        """The user's code failed. A fault of ours is an accident the first time, a lost rank until it is no chance."""
        execution, slot, stage = self._execution, self._slot, self._execution.stage
        about = {**self.named, "stage": stage.node}
        logger.warning("stage %s of chain %s failed:\n%s", execution.index, self.claim.chain, failed.error, extra=about)
        if slot.quarantine.may_be_chance(failed.kind):
            self._interrupt(failed.error)
            return False
        self._facts.clear()  # what was found at a step that is not good is not told
        if can_have_more(self.work, failed):
            self._end([self._needs_more(failed.step), self._ended(ChainOutcome.INTERRUPTED)])
            return False
        kind = FailureKind.CRASH if failed.kind in ("internal", "rank") else FailureKind(failed.kind)
        out_of_memory = kind == FailureKind.OUT_OF_MEMORY
        error = f"{failed.error.rstrip()}\n\n{self._advice(failed)}" if out_of_memory else failed.error
        signature = None if failed.is_final else failed.signature
        fact = execution.failed(kind, error, signature, failed.step, self._its.seconds())
        version = slot.outbox.version(self.claim.stream)
        sound = fact.step if fact.evaluated is None else fact.evaluated - 1
        quarantine = slot.quarantine.after_failure(self.claim, stage.node, sound, version)
        if quarantine is None:
            self._end([fact])
        else:
            self._end([fact], End(), quarantine)
            slot.quarantine.lift(self._is_well)
        return False

    def _needs_more(self, step: int) -> e.NeedsMore:
        """That a step past that one has too little memory on the devices that the chain has."""
        stage, ranks = self._execution.stage, self.work.ranks
        logger.warning("chain %s is tried with %d devices: %d are out of memory", self.claim.chain, 2 * ranks, ranks)
        return needs_more(self.work, stage, max(step, stage.start), ranks, self._slot.me.kind)

    def _advice(self, failed: TrainerFailed) -> str:
        """What helps a trial that has too little memory. More devices seldom do: each computes one shard at a time."""
        if failed.may_divide and (ranks := self.work.ranks) > 1:
            return f"It had {ranks} devices, the most that `ranks` and the machines allow: more may need less memory."
        if shards := self.work.shards:
            return f"A device has 1/{shards} of a batch at once, however many there are: more shards need less memory."
        return "With shards, a batch is computed in so many parts, one after the other, which need less memory."

    def _is_well(self) -> bool:
        """Whether a fresh process starts, once all is on record."""
        slot = self._slot
        slot.saver.drain()
        slot.outbox.drain()
        try:
            slot.trainer.check()
        except NoTrainerProcess as problem:
            logger.warning("slot %s stays in quarantine: %s", slot.me.slot, problem)
            return False
        return True

    def _discard(self, problem: CheckpointUnreadable) -> bool:
        """The checkpoint that was read is struck from the plan, and its steps are trained again."""
        resume = self._last_read
        if not resume.node:
            return self._fail(TrainerFailed("storage", f"the weights that it begins from: {problem}"))
        if resume.is_cached:  # the upload that is under way decides what becomes of it
            logger.info("%s: it is waited for", problem, extra=self.named)
            self._end([self._ended(ChainOutcome.INTERRUPTED)])
            return False
        logger.warning("%s: its steps are trained again", problem, extra=self.named)
        dropped = e.CheckpointDropped(node=NodeId(resume.node), step=resume.step, key=resume.key, reason=str(problem))
        self._end([dropped, self._ended(ChainOutcome.INTERRUPTED)])
        self._slot.status.put("lost", f"{problem}: its steps are trained again")  # until the next chain is done
        return False

    def _end(self, facts: Sequence[e.Event], *changes: RowChange) -> None:
        """After all its checkpoints."""
        self._let_go()
        slot, all_facts, changes = self._slot, [*self._facts, *facts], changes or (End(),)
        self._facts = []
        slot.status.remove("lost")
        slot.saver.submit(self.claim, lambda: slot.outbox.put(self.claim, all_facts, *changes, is_last=True))
