"""A chain from its claim to its end: does what the execution says, and hands its facts on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from app.domain import events as e
from app.domain.ids import NodeId
from app.domain.states import FailureKind
from app.events.log import Alongside
from app.events.rows import ChainFlags, Lease
from app.scheduling.assignment import ChainAssignment, ResumePoint
from app.workers.slot import quarantine
from app.workers.slot.checkpoint_store import CheckpointUnreadable, Stored
from app.workers.slot.claim import Claim
from app.workers.slot.driving import Stage, answered
from app.workers.slot.execution import ChainExecution, Complete, Evaluate, ExecutionState, Outside, Save, Stop, Train
from app.workers.slot.heartbeat import Pulse
from app.workers.slot.intermediates import IntermediateCheckpoints, kept
from app.workers.slot.parts import SAVE_SECONDS, Parts
from app.workers.slot.patience import Closing
from app.workers.slot.proofs import Proofs
from app.workers.slot.trainer_host import NoTrainerProcess, OtherVersion
from app.workers.slot.unwanted import Lost, PackBroken, Stopped
from app.workers.state import State
from app.workers.trainer_connection import TrainerKilled
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact import used

logger = logging.getLogger(__name__)


class ChainRun:
    """All of it runs on the thread that trains, except for what the saver and the outbox call back."""

    def __init__(self, lease: Lease, claim: Claim, work: ChainAssignment, parts: Parts) -> None:
        self.claim, self._lease, self._work, self._parts = claim, lease, work, parts
        room = work.intermediate_bytes
        self._proofs = Proofs(claim, parts)
        self.execution = ChainExecution(lease.chain, work, parts.overhead)
        self._intermediates = IntermediateCheckpoints(claim, room, parts.records, parts.outbox, parts.saver)
        self._facts: list[e.Event] = []
        self._end_state: State | None = None
        self._waits_since: float | None = None

    @property
    def work(self) -> ChainAssignment:
        return self._work

    @property
    def pulse(self) -> Pulse:
        step = self.execution.step  # first: what is kept at a step is known before it is passed
        return Pulse(self.claim, step, self._waits_since, self.execution.kept)

    @property
    def is_between_stages(self) -> bool:
        """Whether it waits for the message that begins its next stage."""
        return self.execution.state == ExecutionState.BETWEEN_STAGES

    @property
    def flags(self) -> ChainFlags:
        """What the scheduler wanted when the chain was claimed, and wants by now."""
        now, first = self._parts.flags(self.claim.chain), self._lease.flags
        steps, branches = first.extra_eval_steps + now.extra_eval_steps, first.branch_steps + now.branch_steps
        return ChainFlags(steps, first.stop or now.stop, first.preempt or now.preempt, branches)

    def run_stage(self) -> bool:
        """Train the next stage; whether it was completed. If not, the chain is over."""
        stage = self.stage()
        try:
            wanted = next(stage)
            while True:
                train = partial(self._parts.host.train, self._work, wanted, self.on_progress)
                wanted = answered(stage, train)
        except StopIteration as end:
            return bool(end.value)

    def stage(self) -> Stage:
        """As `run_stage`, but whoever drives it trains: it yields until which step, and is sent which was reached.

        What goes wrong meanwhile is thrown into it.
        """
        self._waits_since = None
        try:
            return (yield from self._train())
        except (Lost, Closing) as end:
            self._abandon(end)
        except (Stopped, TrainerKilled):
            self._end([self.execution.stopped(self._parts.clock())])
        except TrainerFailed as failed:
            self._fail(failed)
        except CheckpointUnreadable as problem:
            self._strike(problem)
        except PackBroken:
            self._end([self.execution.interrupted(self._parts.clock())])
        except (OtherVersion, NoTrainerProcess) as problem:
            self._interrupt(str(problem), is_hopeless=isinstance(problem, NoTrainerProcess))
        except Exception as error:
            logger.exception("chain %s is interrupted by a fault of ours", self.claim.chain)
            self._parts.host.end_process()
            self._interrupt(f"{type(error).__name__}: {error}")
        return False

    def note(self, fact: e.Event) -> None:
        """It goes on record with what is found next."""
        self._facts.append(fact)

    def note_not_exact(self, reason: str) -> None:
        """Of the steps that were trained last."""
        self._facts += self.execution.not_exact([reason])

    def give_back(self) -> None:
        """The message that begins the next stage will not come any more."""
        self._end([self.execution.stopped(self._parts.clock())])

    # ------------------------------------------------------------------------------------------------ a stage

    def _train(self) -> Stage:
        """Whether the stage was completed. Raises everything that can go wrong."""
        self._check_ours()
        execution, parts = self.execution, self._parts
        execution.begin(parts.clock())
        log = parts.logs.begin(self.claim.chain, self._work, execution.index)
        parts.host.begin(self._work, execution.index, self._read, log)
        seen, changes = parts.around.look(self.claim, self._work, execution.index)
        self._facts += [*seen, *execution.not_exact((*parts.host.changes, *parts.changes, *changes))]
        while True:
            self._check_ours()
            match execution.next(self._outside()):
                case Train(until):
                    self._state_facts()
                    trained_to = yield until
                    self._facts += execution.not_exact(map(used, parts.host.operations))
                    execution.reached(trained_to)
                case Evaluate():
                    self._facts.append(execution.evaluated(parts.host.evaluate()))
                    self._facts += execution.not_exact(map(used, parts.host.operations))
                case Save(is_intermediate):
                    self._save(is_intermediate)
                case Complete():
                    self._complete()
                    return True
                case Stop():
                    self._stop()
                    return False

    def _read(self, resume: ResumePoint) -> State:
        return self._parts.reader.read(resume, self._check_wanted)

    def on_progress(self, step: int) -> int:
        """Where the training under way, which has come to `step`, is to end by now."""
        if self.claim.over.is_set():
            return 0
        return self.execution.end_of_training(step, self._outside())

    def _outside(self) -> Outside:
        parts = self._parts
        save_seconds = parts.save_seconds.get(self._work.plan, SAVE_SECONDS)
        return Outside(parts.clock(), self.flags, save_seconds, parts.saver.is_idle)

    def _check_ours(self) -> None:
        if self.claim.over.is_set():
            raise Lost(f"chain {self.claim.chain} is over, or another worker's")

    def _check_wanted(self) -> None:
        self._check_ours()
        if self.flags.end:
            raise Stopped

    def _state_facts(
        self, *more: e.Event, proof: Alongside | None = None, is_news: bool = False, awaits_more: bool = False
    ) -> None:
        """What was found since the last time goes on record."""
        facts, self._facts = [*self._facts, *more], []
        if facts:
            news = is_news or self.execution.is_news(facts, self.flags)
            self._parts.outbox.put(self.claim, facts, proof, is_news=news, awaits_more=awaits_more)

    def _complete(self) -> None:
        """The stage is done; after the last one the slot is free, and the chain is closed when all is saved."""
        execution, parts, stage = self.execution, self._parts, self.execution.stage
        is_last = execution.is_last_stage
        place = (self._work.plan, stage.node, stage.end)
        parts.host.mark_at(place)
        parts.health.succeeded()
        parts.notes.remove("health")
        news = is_last or execution.is_news(self._facts, self.flags)
        done = execution.completed(parts.clock())
        parts.notes.remove("lost")
        follows = is_last or self._end_state is not None  # the chain's last words, or that the state was kept
        awaits_more = follows and parts.saver.is_quick(self._end_state)
        self._state_facts(
            done, proof=self._proofs.moved_on(place, execution.index, is_last), is_news=news, awaits_more=awaits_more
        )
        self._save_end(stage, [execution.finished()] if is_last else [])
        if not (is_last or self._work.pack):  # a pack is begun by one message, and waits for no other
            self._waits_since = parts.clock()

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _save(self, is_intermediate: bool) -> None:
        """Copy the state. That at the end of a stage waits until the stage is on its way to the log."""
        execution, parts, stage = self.execution, self._parts, self.execution.stage
        begun_at = parts.clock()
        state = parts.host.save()
        copied_at = parts.clock()
        execution.saved(copied_at)
        if execution.step >= stage.end:
            self._end_state = state
        else:
            self._upload(stage, execution.step, state, copied_at - begun_at, is_intermediate)

    def _save_end(self, stage: e.Stage, last_words: Sequence[e.Event]) -> None:
        """last_words: about the chain, if this was its end. They go on record together with the last checkpoint."""
        state, self._end_state = self._end_state, None
        if state is not None:
            self._upload(stage, stage.end, state, 0.0, False, last_words)
        elif last_words:
            self._end(last_words, self._proofs.finish)

    def _upload(
        self,
        stage: e.Stage,
        step: int,
        state: State,
        seconds: float,
        is_intermediate: bool,
        last_words: Sequence[e.Event] = (),
    ) -> None:
        branches = self.execution.branches_inside(self.flags)

        def then(stored: Stored, upload_seconds: float) -> None:
            self._parts.save_seconds[self._work.plan] = seconds + upload_seconds
            fact = kept(stage.node, step, stored, is_intermediate=is_intermediate)
            if is_intermediate:
                self._intermediates.keep(fact, stage.start, branches)
            else:
                proof, is_last = (self._proofs.finish, True) if last_words else (None, False)
                self._parts.outbox.put(self.claim, [fact, *last_words], proof, is_last=is_last, is_news=True)

        place = f"{self._work.plan}/{stage.node}/{step}"
        is_branch_point = step == stage.end and self._work.stages.index(stage) in self._work.branch_points
        self._parts.saver.save(self.claim, place, state, then, is_branch_point=is_branch_point)

    # ------------------------------------------------------------------------------------------------ endings

    def _stop(self) -> None:
        """Nobody wants more of the chain; its model stays in memory, where the state was just kept."""
        stage, step = self.execution.stage, self.execution.step
        self._parts.host.mark_at((self._work.plan, stage.node, step))
        self._end([self.execution.stopped(self._parts.clock())])

    def _fail(self, failed: TrainerFailed) -> None:
        """The user's code failed. A fault of ours is an accident the first time."""
        execution, health, stage = self.execution, self._parts.health, self.execution.stage
        logger.warning("stage %s of chain %s failed:\n%s", execution.index, self.claim.chain, failed.error)
        if failed.kind == "internal" and not health.accidents:
            self._interrupt(failed.error)
            return
        self._facts.clear()  # what was found at a step that is not good is not told
        kind = FailureKind.CRASH if failed.kind == "internal" else FailureKind(failed.kind)
        fact = execution.failed(kind, failed.error, failed.signature, failed.step, self._parts.clock())
        health.failed(stage.node, self.claim.stream, self._parts.outbox.version(self.claim.stream))
        sentence = quarantine.after_failure(self._parts, self.claim)
        self._end([fact], None if sentence is None else sentence.added_to(self._proofs.over))
        quarantine.serve(self._parts, sentence)

    def _strike(self, problem: CheckpointUnreadable) -> None:
        """The checkpoint to resume from is struck from the plan, and its steps are trained again."""
        if (resume := self._work.resume) is None:
            self._fail(TrainerFailed("storage", f"the weights that it begins from: {problem}"))
            return
        logger.warning("%s: its steps are trained again", problem)
        dropped = e.CheckpointDropped(node=NodeId(resume.node), step=resume.step, key=resume.key, reason=str(problem))
        self._end([dropped, self.execution.interrupted(self._parts.clock())])
        self._parts.notes.put("lost", f"{problem}: its steps are trained again")  # until the next chain is done

    def _interrupt(self, reason: str, is_hopeless: bool = False) -> None:
        """An accident: the chain is given back, and its work comes again, perhaps elsewhere."""
        logger.warning("chain %s is given back: %s", self.claim.chain, reason)
        self._parts.health.had_accident()
        sentence = quarantine.after_accident(self._parts, reason, is_hopeless=is_hopeless)
        self._end([self.execution.interrupted(self._parts.clock())], self._proofs.given_back(sentence))

    def _end(self, facts: Sequence[e.Event], proof: Alongside | None = None) -> None:
        """Last words about the chain, after all its checkpoints."""
        self._parts.notes.remove("lost")
        said = [*self._facts, *facts]
        self._facts = []
        proof = proof or self._proofs.over
        self._parts.saver.submit(self.claim, lambda: self._parts.outbox.put(self.claim, said, proof, is_last=True))

    def _abandon(self, end: Exception) -> None:
        logger.warning("chain %s is given up: %s", self.claim.chain, end or type(end).__name__)
        self.claim.over.set()
        self.execution.closed()
        if self._end_state is not None:
            self._end_state.close()
