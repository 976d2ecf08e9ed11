"""The lane of a chain that trains: performs the actions of its execution, and records its facts.

Runs on: the thread that trains.
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
    Conditions,
    Evaluate,
    ExecutionState,
    Progress,
    Save,
    Stop,
    Train,
)
from app.workers.slot.intermediates import ChainCheckpoints
from app.workers.slot.lane import Lane, Stage, TrainRequest
from app.workers.slot.models import can_use_more_ranks, needs_more_fact
from app.workers.slot.outbox import Advance, End, Finish, Release, RowChange
from app.workers.state import State
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

MAX_SAVE_INTERVAL = 900.0
"""A state inside a stage is kept after this time at any cost: a machine may be preempted at any time."""

SOON_SECONDS = 1.0
"""The next stage's message is sent this long before a stage ends, so that it costs no time then; not earlier, since
the broker may lose it.
"""


class TrainingLane(Lane):
    """In a pack, or a pack trained lane by lane, one message begins all stages of the chain."""

    def _set_up(self) -> None:
        slot, room = self._slot, self.work.intermediate_bytes
        self._execution = ChainExecution(self.claim.chain, self.work, slot.overhead)
        self._checkpoints = ChainCheckpoints(
            self.claim, room, slot.dependencies.records, slot.outbox, slot.saver, slot.me.host
        )
        self._facts: list[e.Event] = []
        self._recorded_changes = frozenset[str]()
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
        self._execution.close()
        self._checkpoints.close()

    # ------------------------------------------------------------------------------------------------ a stage

    def _train(self) -> Stage:
        self._check_not_lost()
        execution, slot, context = self._execution, self._slot, self._context
        execution.begin(context.seconds())
        if execution.index == 0:
            self._await_members()
            slot.input_watch.note_writes(self.work, slot.trainer.uses())
            if self.work.inputs:
                slot.input_watch.prepare()
        log = slot.logs.begin(self.claim.chain, self.work, execution.index)
        context.model.begin(self.work, execution.index, self._read, log)
        about, other_inputs = slot.input_watch.look(self.claim, self.work, execution.index, self._check_wanted)
        self._facts += [
            *about,
            *execution.record_inexactness((*context.model.inexact_reasons, *context.inexact_reasons, *other_inputs)),
        ]
        while True:
            self._check_not_lost()
            match execution.next(self._conditions()):
                case Train(until):
                    self._record_facts()
                    trained = yield TrainRequest(execution.step, until, self._on_progress)
                    self._facts += execution.record_inexactness((*trained.inexact_reasons, *context.model.operations))
                    self._facts += execution.record_passed(trained.passed)
                    execution.record_progress(trained.step, trained.peak_bytes)
                case Evaluate(saves):
                    self._evaluate(saves=saves)
                case Save() as save:
                    self._save(save)
                case Complete():
                    self._complete()
                    return True
                case Stop():
                    self._stop()
                    return False

    def _evaluate(self, *, saves: bool) -> None:
        """If the trial alone would not be evaluated here, a change of its state by the evaluation is recorded."""
        execution, model, stage = self._execution, self._context.model, self._execution.stage
        is_its_own = execution.step in self.work.own_evaluations
        evaluated = model.evaluate(watch=not is_its_own, look=self._looks if saves else None)
        self._facts.append(execution.record_evaluation(evaluated.metrics))
        self._facts += execution.record_inexactness(model.operations)
        if not is_its_own and (changed := frozenset(evaluated.changed) - self._recorded_changes):
            self._recorded_changes |= changed
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
        return self._context.reader.read(point, self._check_wanted)

    def _on_progress(self, step: int) -> int:
        if self.claim.end_flag.is_set():
            return 0
        end = self._execution.end_of_training(step, self._conditions())
        left_seconds = (self._execution.stage.end - self._execution.step) * self._step_seconds
        if end and 0 < left_seconds <= SOON_SECONDS:
            self._slot.dependencies.send_next()
        return end

    def _conditions(self) -> Conditions:
        saver = self._slot.saver
        cost = saver.seconds(self.claim.stream)
        return Conditions(self._context.seconds(), self.flags, cost, saver.is_idle, MAX_SAVE_INTERVAL)

    def _record_facts(
        self, *more: e.Event, change: RowChange | None = None, is_news: bool = False, awaits_more: bool = False
    ) -> None:
        """Record the facts collected since the last call."""
        facts, self._facts = [*self._facts, *more], []
        if facts:
            news, changes = is_news or self._execution.is_news(facts, self.flags), () if change is None else (change,)
            self._slot.outbox.put(self.claim, facts, *changes, is_news=news, awaits_more=awaits_more)

    def _complete(self) -> None:
        """The stage is complete. After the last one the slot is free, and the chain ends when everything is saved."""
        execution, slot, stage = self._execution, self._slot, self._execution.stage
        is_last, is_branch_point = execution.is_last_stage, execution.index in self.work.branch_points
        self._check_inputs()
        self._context.model.set_place((self.work.plan, stage.node, stage.end))
        if is_last:
            self._end_ranks()
        slot.quarantine.record_success()
        news = is_last or execution.is_news(self._facts, self.flags)
        done = replace(
            execution.complete_stage(self._context.seconds()), shared_process=self._context.model.shares_process
        )
        self._step_seconds = done.seconds / max(1, stage.end - stage.start)
        slot.status.remove("lost")
        change = Release(self.work.plan, stage.node, stage.end) if is_last else Advance(execution.index)
        follows = is_last or self._checkpoints.has_held  # the chain's last facts, or the kept state
        self._record_facts(done, change=change, is_news=news, awaits_more=follows and self._checkpoints.is_quick)
        last_words = [execution.finish_chain()] if is_last else []
        if not self._checkpoints.save_held(stage, last_words, is_branch_point) and is_last:
            self._end(last_words, Finish())

    def _check_inputs(self) -> None:
        """Changed input files, or files written by another trial, make the whole stage inexact."""
        stage = self._execution.stage
        uses = self._slot.trainer.uses()
        reasons = self._slot.input_watch.look_at_end(self.claim, self.work, uses, lambda: self.is_unwanted)
        step = min(stage.start + 1, stage.end)
        self._facts += [e.ExactnessLost(node=stage.node, step=step, reason=reason) for reason in reasons]

    # ------------------------------------------------------------------------------------------------ checkpoints

    @property
    def _looks(self) -> bool:
        """Whether a state that is saved here may be compared, with all that the trainer holds."""
        execution = self._execution
        parts = execution.step >= execution.stage.end and not execution.is_last_stage
        return parts or execution.step in self.work.keep_at

    def _save(self, save: Save) -> None:
        """Copy the state. The one at the stage's end is held until the stage's fact is on its way to the log."""
        execution, stage = self._execution, self._execution.stage
        begun_at = self._context.seconds()
        state = self._context.model.save(look=self._looks)
        copied_at = self._context.seconds()
        execution.record_save(copied_at)
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
        """Stop the chain; its model stays in memory, where its state was just kept."""
        stage, step = self._execution.stage, self._execution.step
        self._check_inputs()
        self._context.model.set_place((self.work.plan, stage.node, step))
        self._end([self._ended_fact(ChainOutcome.STOPPED)])

    def _ended_fact(self, outcome: ChainOutcome) -> e.ChainEnded:
        return self._execution.end_chain(outcome, self._context.seconds())

    def _fail(self, failed: TrainerFailed) -> bool:
        """The user's code failed. A fault of ours is an accident the first time, and a lost rank up to a limit."""
        execution, slot, stage = self._execution, self._slot, self._execution.stage
        about = {**self.log_fields, "stage": stage.node}
        logger.warning("stage %s of chain %s failed:\n%s", execution.index, self.claim.chain, failed.error, extra=about)
        if slot.quarantine.may_be_chance(failed.kind):
            self._interrupt(failed.error)
            return False
        self._facts.clear()  # results of a failed step are not recorded
        if can_use_more_ranks(self.work, failed):
            ranks, step = self.work.ranks, max(failed.step, stage.start)
            logger.warning(
                "chain %s is tried with %d devices: %d are out of memory", self.claim.chain, 2 * ranks, ranks
            )
            needs_more = needs_more_fact(self.work, stage, step, ranks, slot.me.kind)
            self._end([needs_more, self._ended_fact(ChainOutcome.INTERRUPTED)])
            return False
        kind = FailureKind.CRASH if failed.kind in ("internal", "rank") else FailureKind(failed.kind)
        out_of_memory = kind == FailureKind.OUT_OF_MEMORY
        error = f"{failed.error.rstrip()}\n\n{self._advice(failed)}" if out_of_memory else failed.error
        signature = None if failed.is_final else failed.signature
        fact = execution.fail_stage(kind, error, signature, failed.step, self._context.seconds())
        version = slot.outbox.version(self.claim.stream)
        sound = fact.step if fact.evaluated is None else fact.evaluated - 1
        quarantine = slot.quarantine.judge_failure(self.claim, stage.node, sound, version)
        if quarantine is None:
            self._end([fact])
        else:
            self._end([fact], End(), quarantine)
            slot.quarantine.lift(self._is_well)
        return False

    def _advice(self, failed: TrainerFailed) -> str:
        """Advice for a trial that is out of memory. More devices seldom help: each computes one shard at a time."""
        if failed.may_divide and (ranks := self.work.ranks) > 1:
            return f"It had {ranks} devices, the most that `ranks` and the machines allow: more may need less memory."
        if shards := self.work.shards:
            return f"Any number of devices holds 1/{shards} of a batch each at once: more shards need less memory."
        return "With shards, a batch is computed in parts, one after the other, which needs less memory."

    def _is_well(self) -> bool:
        """Whether a fresh process starts, once everything is recorded."""
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
        """Record that the checkpoint is lost; its steps are trained again."""
        resume = self._last_read
        if not resume.node:
            return self._fail(TrainerFailed("storage", f"the weights that it begins from: {problem}"))
        if resume.is_cached:  # the present upload decides about it
            logger.info("%s: it is waited for", problem, extra=self.log_fields)
            self._end([self._ended_fact(ChainOutcome.INTERRUPTED)])
            return False
        logger.warning("%s: its steps are trained again", problem, extra=self.log_fields)
        dropped = e.CheckpointDropped(node=NodeId(resume.node), step=resume.step, key=resume.key, reason=str(problem))
        self._end([dropped, self._ended_fact(ChainOutcome.INTERRUPTED)])
        self._slot.status.put("lost", f"{problem}: its steps are trained again")  # until the next chain is done
        return False

    def _end(self, facts: Sequence[e.Event], *changes: RowChange) -> None:
        """After all its checkpoints."""
        self._end_ranks()
        slot, all_facts, changes = self._slot, [*self._facts, *facts], changes or (End(),)
        self._facts = []
        slot.status.remove("lost")
        slot.saver.submit(self.claim, lambda: slot.outbox.put(self.claim, all_facts, *changes, is_last=True))
