"""The lane of verification steps: trains recorded steps again in a fresh process, and compares.

`VerificationKind` lists the kinds. Each result is recorded at once. Nothing is kept, and the chain
may be stopped at any step.

Runs on: the thread that trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

from app.domain import events as e
from app.domain.chain_assignment import Comparison, VerificationOrder
from app.domain.terms import ChainOutcome, FailureKind, NodeId, VerificationKind
from app.workers.slot.checkpoint_store import CheckpointUnreadable
from app.workers.slot.execution import Progress
from app.workers.slot.lane import Lane, Stage
from app.workers.slot.outbox import End, Finish, RowChange
from app.workers.slot.trainer_check import CheckFailed, Files, check, state_cause
from app.workers.slot.verification_bench import OFF, Bench, Inconclusive, last_line
from app.workers.state import State
from stagetree.runtime import inexact_reasons
from stagetree.runtime.commands import Compared
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact_reasons import UNREPEATABLE, WATCHED, is_of_metrics, metric_cause, rephrase_for_scripts


class VerificationLane(Lane):
    """One stage that trains by itself: other lanes in its process could change the compared values."""

    is_between_stages = False
    keeps_nothing = True
    progress = Progress(0)

    def _set_up(self) -> None:
        assert self.work.proof is not None
        self._order: VerificationOrder = self.work.proof
        self._kind = VerificationKind(self._order.kind)
        self._begin = self.work.resume.step if self.work.resume else 0
        self.progress, self._has_begun = Progress(self.work.stages[0].start), False
        self._began_at = self._context.seconds()
        self._waiting = list(self._order.comparisons)
        self._log_size = 0  # before anything was printed
        self._bench = Bench(self.work, self._slot, self._context, self._check_wanted, self._set_step)

    def can_begin(self, index: int) -> bool:
        return index == 0 and not self._has_begun

    def close(self) -> None:
        self._has_begun = True

    # ------------------------------------------------------------------------------------------------ ending

    def _train(self) -> Stage:
        yield from ()  # no training requests to the group
        self._began_at, self._has_begun = self._context.seconds(), True
        self._await_members()
        try:
            self._verify()
        except CheckFailed as failed:
            self._keep_output()
            self._end([self._failed_fact(failed)])
            return True
        except Inconclusive as problem:
            return self._end_inconclusive(str(problem))
        self._slot.quarantine.record_success()
        self._end([self._ended_fact(ChainOutcome.DONE)], Finish())
        return True

    def _end(self, facts: Sequence[e.Event], *changes: RowChange) -> None:
        self._end_ranks()
        self._slot.outbox.put(self.claim, facts, *(changes or (End(),)), is_last=True)
        self._end_process()

    def _abandon(self, end: Exception) -> None:
        super()._abandon(end)
        self._end_process()

    def _keep_output(self) -> None:
        """Add what the failed check printed to its trial's log: nothing else will be there. The process may print until
        it ends.
        """
        self._end_process()
        if (log := self._bench.log) is not None:
            printed = log.read_since(self._log_size)
            self._slot.logs.add_to_trial(self.claim.chain, self.work, printed)

    def _end_process(self) -> None:
        """End the process, which must not be used by the slot's next chain."""
        if self._has_begun:
            self._slot.trainer.end_process()

    def _end_inconclusive(self, why: str) -> bool:
        """Record that the remaining comparisons are inconclusive: another attempt would end in the same way."""
        facts = [self._tested_fact(at, unproven=why) for at in self._waiting] or [self._tested_fact(unproven=why)]
        self._end([*facts, self._ended_fact(ChainOutcome.DONE)], Finish())
        return True

    def _discard(self, problem: CheckpointUnreadable) -> bool:
        return self._end_inconclusive(str(problem))

    def _fail(self, failed: TrainerFailed) -> bool:
        if failed.kind in ("internal", "rank"):
            self._interrupt(failed.error)
            return False
        subject = "the check" if self._kind == VerificationKind.CHECK else "training again to compare"
        return self._end_inconclusive(f"{subject} ended with {_accident(failed)}")

    def _ended_fact(self, outcome: ChainOutcome) -> e.ChainEnded:
        seconds = self._context.seconds() - self._began_at if self._has_begun else 0.0
        return e.ChainEnded(chain=self.claim.chain, outcome=outcome, steps=self._bench.steps, seconds=seconds)

    def _failed_fact(self, failed: CheckFailed) -> e.StageFailed:
        return e.StageFailed(
            chain=self.claim.chain,
            index=0,
            step=failed.step,
            kind=failed.kind,
            error=failed.error,
            seconds=self._context.seconds() - self._began_at,
            signature=failed.signature,
        )

    def _tested_fact(self, at: Comparison | None = None, *, difference: str = "", **found: object) -> e.ExactnessTested:
        """The result at a comparison, by default the next one."""
        source = self._slot.dependencies.sources().get(self.work.trainer)
        if source is not None and source.script:
            difference = rephrase_for_scripts(difference, source.launched)
        at, stage = at or next(iter(self._waiting), None), self.work.stages[-1]
        place = {"node": NodeId(stage.node), "step": stage.end}
        if at is not None:
            place = {"node": NodeId(at.node), "step": at.step, "since": at.since}
        about = {"chain": self.claim.chain, "proof": self._kind, "device": self._slot.me.kind or self._slot.device}
        found |= {"begin": self._begin, "difference": difference}
        return e.ExactnessTested(**about, **place, **found)  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------------ comparing

    def _set_step(self, step: int) -> None:
        self.progress = Progress(step)

    def _verify(self) -> None:
        bench, log = self._bench, self._slot.logs.begin(self.claim.chain, self.work, 0)
        bench.log, self._log_size = log, 0 if log is None else log.size()
        if self._kind == VerificationKind.CHECK:
            self._slot.input_watch.prepare()
            result = check(bench, self._order, self.work.stages[0].end, self._let_others_train)
            unread, files = list(result.unread), list(result.files)
            self._record(
                self._tested_fact(difference=result.difference, unproven=result.unproven, unread=unread, files=files)
            )
            return
        if self.work.determinism == "off":
            raise Inconclusive(OFF)
        before = None
        while self._waiting:
            try:
                self._train_again(bench)
            except TrainerFailed as failed:
                if failed.kind != "exception" or (before is not None and before.signature != failed.signature):
                    raise
                if before is not None:
                    how = "resumed from its state" if self._begin else "trained alone, without a break"
                    text = f"the trainer failed when {how}: {last_line(failed)}"
                    self._record(self._tested_fact(difference=text))
                    return
                before = failed

    def _let_others_train(self, files: Files) -> None:
        self._record(self._tested_fact(goes_on=True, files=list(files)))

    def _train_again(self, bench: Bench) -> None:
        """Train in a fresh process up to all remaining comparisons."""
        bench.build()
        looks = self._kind == VerificationKind.HANDOVER
        while self._waiting:
            at = self._waiting[0]
            metrics = self._train_to(bench, at)
            with ExitStack() as held:
                mine = held.enter_context(closing(bench.save(look=looks))) if at.key else None
                try:
                    compared = bench.compare_with_record(mine, metrics, at)
                except CheckpointUnreadable as gone:
                    if len(self._waiting) == 1:
                        raise
                    self._record(self._tested_fact(unproven=str(gone)))
                    self._waiting.pop(0)
                    continue
                difference = self._explain(bench, mine, at, compared) if compared.difference else ""
            words = dict.fromkeys(compared.stray if looks else (), inexact_reasons.STRAY)
            self._record(self._tested_fact(at, difference=difference, stray=words))
            self._waiting.pop(0)
            if difference:
                self._waiting.clear()

    def _train_to(self, bench: Bench, at: Comparison) -> e.Metrics | None:
        """Train to a comparison, and evaluate where the recorded training did, before its state was saved.

        An evaluation changes what a trainer holds, such as the mode of its model. Returns the last metrics, if they are
        compared.
        """
        measured = {step for stage in self.work.stages for step in stage.evaluate}
        for step in sorted(each for each in measured if bench.step < each < at.step):
            bench.train(step)
            bench.evaluate()
        bench.train(at.step)
        return None if at.metrics is None else bench.evaluate()

    def _explain(self, bench: Bench, mine: State | None, at: Comparison, compared: Compared) -> str:
        """A difference with its likely cause."""
        text, stray = compared.difference, compared.stray
        if self._kind == VerificationKind.WHOLE:  # earlier comparisons name the suspects
            stray = self._order.suspects
            return f"{text}. {WATCHED if not stray and self._order.ignored else _cause(text, stray)}"
        with suppress(TrainerFailed, CheckpointUnreadable):  # the difference is reported in any case
            bench.build()
            stray = self._stray_when_loaded(bench) or stray
            if mine is not None and not is_of_metrics(text):
                bench.build()  # the save above may have changed the model
                self._train_to(bench, at)
                with closing(bench.save()) as again:
                    if bench.compare(again, mine).difference:
                        return f"{text}. {UNREPEATABLE}"
        return f"{text}. {_cause(text, stray)}"

    def _stray_when_loaded(self, bench: Bench) -> Sequence[str]:
        """What a newly loaded model holds otherwise than the one that saved the state."""
        if self.work.resume is None:
            return ()
        with closing(bench.save(look=True)) as mine, closing(bench.read(self.work.resume)) as stored:
            return bench.compare(mine, stored).stray

    def _record(self, fact: e.ExactnessTested) -> None:
        """Record a result now, before the rest of the verification, which may fail."""
        self._slot.outbox.put(self.claim, [fact], is_news=True)


def _cause(text: str, stray: Sequence[str]) -> str:
    return metric_cause(stray) if is_of_metrics(text) else state_cause(stray)


def _accident(failed: TrainerFailed) -> str:
    words: dict[str, str] = {
        FailureKind.CRASH: "a crash",
        FailureKind.OUT_OF_MEMORY: "no memory left",
        FailureKind.DEVICE: "an error of the device",
        FailureKind.HANG: "a hang",
        FailureKind.EXCEPTION: "an error that did not come again in the same way",
    }
    return f"{words[failed.kind]}: {last_line(failed)}"
