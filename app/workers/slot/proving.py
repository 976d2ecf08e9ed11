"""A chain that trains nothing new: it trains steps that are on record again, in a fresh process, and compares.

See `ProofKind`. What it finds goes on record as it is found; it keeps nothing, and may be stopped at any step.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import dataclass, field

from app.domain import events as e
from app.domain.ids import ChainId, NodeId
from app.domain.states import ChainOutcome, FailureKind, ProofKind
from app.events.log import Alongside
from app.events.rows import ChainFlags, Lease
from app.scheduling.assignment import ChainAssignment, Comparison, ProofOrder
from app.workers.slot import quarantine
from app.workers.slot.bench import OFF, Bench, Unproven, last_line
from app.workers.slot.checking import CheckFailed, check
from app.workers.slot.checkpoint_store import CheckpointUnreadable
from app.workers.slot.claim import Claim
from app.workers.slot.heartbeat import Pulse
from app.workers.slot.parts import Parts
from app.workers.slot.patience import Closing
from app.workers.slot.proofs import Proofs
from app.workers.slot.trainer_host import NoTrainerProcess, OtherVersion, TrainerHost
from app.workers.slot.unwanted import Lost, Stopped
from app.workers.state import State
from app.workers.trainer_connection import TrainerKilled
from app.workers.trainer_process import Stray
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact import LOST, is_of_metrics, of_metrics, other_metrics, used

logger = logging.getLogger(__name__)

NEW = "in a new one"


@dataclass(slots=True)
class ProofProgress:
    """step: how far the model has been trained. has_begun: whether the one message of the chain has arrived."""

    step: int
    has_begun: bool = False
    kept: frozenset[int] = field(default_factory=frozenset)

    def can_begin(self, index: int) -> bool:
        return index == 0 and not self.has_begun

    def closed(self) -> None:
        """Nothing more comes from the chain."""
        self.has_begun = True


class ProofRun:
    """device: as the slot's row says it. All of it runs on the thread that trains."""

    is_between_stages = False

    def __init__(
        self, lease: Lease, claim: Claim, work: ChainAssignment, parts: Parts, host: TrainerHost, device: str
    ) -> None:
        assert work.proof is not None
        self.claim, self.work, self._lease, self._parts, self._host = claim, work, lease, parts, host
        self._order: ProofOrder = work.proof
        self._device, self._kind = device, ProofKind(work.proof.kind)
        self._begin = work.resume.step if work.resume else 0
        self.execution = ProofProgress(work.stages[0].start)
        self._proofs = Proofs(claim, parts)
        self._began_at = 0.0
        self._waiting = list(self._order.comparisons)
        self._differs = False
        self._bench = Bench(work, parts, host, self._check_wanted, self._at_step)

    @property
    def pulse(self) -> Pulse:
        return Pulse(self.claim, self.execution.step)

    @property
    def flags(self) -> ChainFlags:
        """What the scheduler wanted when the chain was claimed, and wants by now."""
        now, first = self._parts.flags(self.claim.chain), self._lease.flags
        return ChainFlags(stop=first.stop or now.stop, preempt=first.preempt or now.preempt)

    def run_stage(self) -> bool:
        """Make the proof; whether that was done to its end."""
        self._began_at, self.execution.has_begun = self._parts.clock(), True
        try:
            facts, proof, is_done = self._proven()
        except (Lost, Closing) as end:
            logger.warning("chain %s is given up: %s", self.claim.chain, end or type(end).__name__)
            self.claim.over.set()
            return False
        finally:
            if self._kind == ProofKind.CHECK or self._differs:  # else it is as good as any that has trained before
                self._host.end_process()
        self._parts.outbox.put(self.claim, facts, proof, is_last=True)
        return is_done

    def give_back(self) -> None:
        """The message that begins it will not come any more."""
        self._parts.outbox.put(self.claim, [self._ended(ChainOutcome.STOPPED)], self._proofs.over, is_last=True)

    # ------------------------------------------------------------------------------------------------ its end

    def _proven(self) -> tuple[list[e.Event], Alongside, bool]:
        """The last words about the chain, and what becomes of its row. Raises `Lost`, `Closing`."""
        try:
            self._prove()
        except (Stopped, TrainerKilled):
            return [self._ended(ChainOutcome.STOPPED)], self._proofs.over, False
        except CheckFailed as failed:
            return [self._failed(failed)], self._proofs.over, True
        except (Unproven, CheckpointUnreadable) as problem:
            return [self._tested(unproven=str(problem)), self._ended(ChainOutcome.DONE)], self._proofs.finish, True
        except TrainerFailed as failed:
            if failed.kind == "internal":
                return self._interrupted(failed.error)
            words = f"{self._the_proof} ended with {_accident(failed)}"
            return [self._tested(unproven=words), self._ended(ChainOutcome.DONE)], self._proofs.finish, True
        except (OtherVersion, NoTrainerProcess) as problem:
            return self._interrupted(str(problem), is_hopeless=isinstance(problem, NoTrainerProcess))
        except (Lost, Closing):
            raise
        except Exception as error:
            logger.exception("chain %s is interrupted by a fault of ours", self.claim.chain)
            return self._interrupted(f"{type(error).__name__}: {error}")
        self._parts.health.succeeded()
        self._parts.notes.remove("health")
        return [self._ended(ChainOutcome.DONE)], self._proofs.finish, True

    @property
    def _the_proof(self) -> str:
        return "the check" if self._kind == ProofKind.CHECK else "training again to compare"

    def _interrupted(self, reason: str, is_hopeless: bool = False) -> tuple[list[e.Event], Alongside, bool]:
        """An accident of ours: the proof may be made again, perhaps elsewhere."""
        logger.warning("chain %s is given back: %s", self.claim.chain, reason)
        self._parts.health.had_accident()
        sentence = quarantine.after_accident(self._parts, reason, is_hopeless=is_hopeless)
        return [self._ended(ChainOutcome.INTERRUPTED)], self._proofs.given_back(sentence), False

    def _ended(self, outcome: ChainOutcome) -> e.ChainEnded:
        seconds = self._parts.clock() - self._began_at if self.execution.has_begun else 0.0
        return e.ChainEnded(chain=ChainId(self.claim.chain), outcome=outcome, steps=self._bench.steps, seconds=seconds)

    def _failed(self, failed: CheckFailed) -> e.StageFailed:
        return e.StageFailed(
            chain=ChainId(self.claim.chain),
            index=0,
            step=failed.step,
            kind=failed.kind,
            error=failed.error,
            seconds=self._parts.clock() - self._began_at,
            signature=failed.signature,
        )

    def _tested(self, at: Comparison | None = None, **found: object) -> e.ExactnessTested:
        """What was found where both ways end, which by default is the next of those places."""
        at, stage = at or next(iter(self._waiting), None), self.work.stages[-1]
        place = {"node": NodeId(stage.node), "step": stage.end}
        if at is not None:
            place = {"node": NodeId(at.node), "step": at.step, "since": at.since}
        about = {"chain": ChainId(self.claim.chain), "proof": self._kind, "device": self._device}
        return e.ExactnessTested(**about, **place, begin=self._begin, **found)  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------------ what it does

    def _check_wanted(self) -> None:
        """Raises `Lost`, `Stopped`."""
        if self.claim.over.is_set():
            raise Lost(f"chain {self.claim.chain} is over, or another worker's")
        if self.flags.end:
            raise Stopped

    def _at_step(self, step: int) -> None:
        self.execution.step = step

    def _prove(self) -> None:
        bench = self._bench
        bench.print_to(self._parts.logs.begin(self.claim.chain, self.work, 0))
        if self._kind == ProofKind.CHECK:
            found = check(bench, self._order, self.work.stages[0].end)
            self._state(self._tested(difference=found.difference, stray=dict(found.stray), unproven=found.unproven))
            return
        if self.work.determinism == "off":
            raise Unproven(OFF)
        before = None
        while self._waiting:
            try:
                self._train_again(bench)
            except TrainerFailed as failed:
                if failed.kind != "exception" or (before is not None and before.signature != failed.signature):
                    raise
                if before is not None:
                    self._state(self._tested(difference=f"{self._failing}: {last_line(failed)}"))
                    return
                before = failed

    @property
    def _failing(self) -> str:
        how = "to go on from its state" if self._begin else "trained alone, without a break"
        return f"the trainer failed when it was {how}"

    def _train_again(self, bench: Bench) -> None:
        """The other way, in a fresh process, up to all that was not compared yet."""
        bench.build()
        looks = self._kind == ProofKind.HANDOVER and self.work.resume is not None
        if looks:
            bench.look("first")
        while self._waiting:
            at = self._waiting[0]
            bench.train(at.step)
            with closing(bench.save()) as mine:
                try:
                    text = self._difference(bench, mine, at)
                except CheckpointUnreadable as gone:
                    if len(self._waiting) == 1:
                        raise
                    logger.info("not compared: %s", gone)
                    self._waiting.pop(0)
                    continue
                self._tell(bench, mine, at, text, looks)
            self._waiting.pop(0)
            if text:
                self._waiting.clear()

    def _tell(self, bench: Bench, mine: State, at: Comparison, text: str, looks: bool) -> None:
        """Have it on record; looks: with what does not come back with the state that the model began with."""
        if text:
            self._say(at, *self._explained(bench, text, looks))
        elif looks and len(self._waiting) == 1:
            self._go_on_in_the_used(bench, mine, at)
        else:
            self._say(at)

    def _explained(self, bench: Bench, text: str, looks: bool) -> tuple[str, Stray]:
        """A difference with its likely cause, and what does not come back with the state; looks: as `_tell`."""
        stray, measured = Stray({}, ""), ""
        with suppress(TrainerFailed, CheckpointUnreadable):  # it differs all the same
            measured = bench.why_measured_otherwise() if is_of_metrics(text) else ""
            stray = self._after_reloading(bench) if looks else stray
        cause = of_metrics(measured, stray.names) if is_of_metrics(text) else stray.cause or LOST
        return f"{text}. {cause}", stray

    def _difference(self, bench: Bench, mine: State, at: Comparison) -> str:
        """Where the other way ends otherwise. Raises `Unproven` where that need not be the trainer's fault."""
        found = bench.compare_stored(mine, at)
        text = found.difference
        if not text and at.metrics is not None:
            text = other_metrics(at.metrics, bench.evaluate())
        if text and found.elsewhere:
            raise Unproven(f"the state was made under {found.elsewhere[0]}")
        if text and bench.changes:
            raise Unproven(f"the state that it began with was made elsewhere: it {bench.changes[0]}")
        if text and bench.operations:
            raise Unproven(f"the trainer {used(bench.operations[0])}")
        return text

    def _go_on_in_the_used(self, bench: Bench, mine: State, at: Comparison) -> None:
        """Once more, in the object that has been there already; this is a slot's everyday."""
        try:
            stray, text = self._after_reloading(bench), ""
        except CheckpointUnreadable:  # it was there a moment ago, and the bits are equal
            self._say(at)
            return
        if bench.is_worth(at.step - self._begin):
            bench.train(at.step)
            with closing(bench.save()) as again:
                text = bench.compare(again, mine).difference
            stray = bench.stray(NEW) if text else stray
        self._say(at, f"in a used object, {text}. {stray.cause or LOST}" if text else "", stray)

    def _after_reloading(self, bench: Bench) -> Stray:
        """Load the state that the model began with once more: what does not come back with it."""
        assert self.work.resume is not None
        with closing(bench.read(self.work.resume)) as state:
            bench.load(state, self._begin)
        bench.look("used")
        return bench.stray(NEW)

    def _say(self, at: Comparison, difference: str = "", stray: Stray | None = None) -> None:
        self._state(self._tested(at, difference=difference, stray=dict(stray.names) if stray else {}))

    def _state(self, fact: e.ExactnessTested) -> None:
        """It goes on record now, whatever becomes of the rest."""
        self._differs |= bool(fact.difference)
        self._parts.outbox.put(self.claim, [fact], is_news=True)


def _accident(failed: TrainerFailed) -> str:
    words = {
        FailureKind.CRASH: "a crash",
        FailureKind.OUT_OF_MEMORY: "no memory left",
        FailureKind.DEVICE: "an error of the device",
        FailureKind.HANG: "a hang",
        FailureKind.EXCEPTION: "an error that did not come again in the same way",
    }
    return f"{words[FailureKind(failed.kind)]}: {last_line(failed)}"
