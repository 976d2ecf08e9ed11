"""The operations of verification: training steps again in a separate process, and comparing states and metrics.

Runs on: the thread that trains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from math import inf
from typing import Any

from app.domain.artifacts import Metrics
from app.domain.chain_assignment import ChainAssignment, Comparison, ResumePoint
from app.workers.slot.checkpoint_store import CheckpointUnreadable
from app.workers.slot.claim import ChainStopped
from app.workers.slot.context import SlotContext
from app.workers.slot.input_watch import written_records
from app.workers.slot.models import LaneContext
from app.workers.state import State
from app.workers.trial_logs import StageFiles
from stagetree.runtime.commands import Compared
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact_reasons import other_metrics

Json = dict[str, Any]

MOMENT_SECONDS = 2.0
"""Cheaper steps need not be saved."""

NOT_KEPT = Compared("")
"""The result if the state was deleted and cannot be compared."""

OFF = "determinism: off promises no equal bits"


class Inconclusive(Exception):
    """Nothing can be compared; the message is the reason, a clause that follows a colon."""


class Bench:
    """steps: how many were trained in all.
    step: of the model.
    fastest: the fewest seconds a step.
    log: for the trainer's output, from the next build on.

    check_wanted: raises when the result is no longer needed.
    on_step: receives the model's step. All methods raise what `check_wanted` does, and `TrainerFailed`.
    """

    def __init__(
        self,
        work: ChainAssignment,
        slot: SlotContext,
        context: LaneContext,
        check_wanted: Callable[[], None],
        on_step: Callable[[int], None],
    ) -> None:
        self._work, self._reader, self._host, self._seconds = work, slot.reader, slot.trainer, context.seconds
        self._check_wanted, self._on_step, self._input_watch = check_wanted, on_step, slot.input_watch
        self.log: StageFiles | None = None
        self.steps, self.step, self.fastest = 0, work.stages[0].start, inf

    @property
    def operations(self) -> tuple[str, ...]:
        """Why the model's results are not exact."""
        return self._host.operations

    @property
    def is_exact(self) -> bool:
        """Whether equal bits are promised at all."""
        return self._work.determinism != "off"

    def build(self) -> None:
        """Build a model where the work begins, in a fresh process. Raises as `TrainerHost.begin`."""
        self._check_wanted()
        self._host.begin_independently(self._work, self.read, self.log)
        self.step = self._work.stages[0].start

    def read(self, resume: ResumePoint) -> State:
        """A kept state, which is the caller's to close. Raises `CheckpointUnreadable`."""
        return self._reader.read(resume, self._check_wanted)

    def train(self, until: int) -> None:
        """Raises `ChainStopped` if it ended early."""
        self._check_wanted()
        begun_at, begin = self._seconds(), self.step
        try:
            self.step = self._host.train(self._work, until, lambda step: self._check_progress(step, until)).step
        except TrainerFailed as failed:
            self.step = max(failed.step, begin)
            raise
        finally:
            self.steps += self.step - begin
        if self.step > begin:
            self.fastest = min(self.fastest, (self._seconds() - begun_at) / (self.step - begin))
        if self.step < until:
            raise ChainStopped

    def evaluate(self) -> Metrics:
        self._check_wanted()
        return self._host.evaluate().metrics

    def save(self, *, look: bool = False) -> State:
        """The state of the model, which is the caller's to close; look: as for `Child.save`."""
        self._check_wanted()
        return self._host.save(look=look)

    def load(self, state: State, step: int) -> None:
        """Put the model where it was after `step` steps."""
        self._check_wanted()
        self._host.commands().load(fds=state.lend(), hp=dict(self._work.hp), step=step)
        self.step = step

    def compare(self, mine: State, other: State, ignored: Sequence[str] = ()) -> Compared:
        """Where a state differs from another one; ignored: as for `Child.compare`."""
        return self._host.commands().compare(fds=(*mine.fds, *other.fds), mine=len(mine.fds), ignored=list(ignored))

    def compare_stored(self, mine: State, at: Comparison) -> Compared:
        """Where a state differs from the recorded one, which is read only if their hashes differ.

        Raises `CheckpointUnreadable`.
        """
        assert self._work.proof is not None
        on_record = [at.sha256, *(part.sha256 for part in at.parts)]
        if [hashlib.sha256(each.view()).hexdigest() for each in mine.images] == on_record:
            return Compared("")
        with closing(self.read(at.resume_point)) as stored:
            return self.compare(mine, stored, self._work.proof.ignored)

    def compare_with_record(self, mine: State | None, metrics: Metrics | None, at: Comparison) -> Compared:
        """Compare the model's state or metrics with the record, and the trainers' other held objects.

        mine: the model's state, if it is compared.
        metrics: its metrics, if they are compared.

        Raises `Inconclusive` if a difference may not be the trainer's fault, and `CheckpointUnreadable`.
        """
        comparison = NOT_KEPT if mine is None else self.compare_stored(mine, at)
        text = comparison.difference
        if not text and at.metrics is not None and metrics is not None:
            text = other_metrics(at.metrics, metrics, of_equal_weights=bool(at.key))
        if text and mine is None:
            comparison = self._compare_origin()
        if text and comparison.elsewhere:
            raise Inconclusive(f"the state was made under {comparison.elsewhere[0]}")
        if text and (reasons := self._host.inexact_reasons):
            raise Inconclusive(f"the state that it began with was made elsewhere: it {reasons[0]}")
        if text and self.operations:
            raise Inconclusive(f"the trainer {self.operations[0]}")
        return comparison._replace(difference=text)

    def _compare_origin(self) -> Compared:
        """Compare with a state, which records the environment that made the metrics; metrics alone do not.

        Raises `Inconclusive` if there is none.
        """
        assert self._work.proof is not None
        if (origin := self._work.proof.origin) is not None:
            with suppress(CheckpointUnreadable), closing(self.save()) as mine, closing(self.read(origin)) as stored:
                return self.compare(mine, stored)
        raise Inconclusive(
            "no state is kept on its way that tells under which torch, and on which device, it was measured"
        )

    def seen(self) -> tuple[Sequence[str], list[Json]]:
        """The hyper-parameters that the trainer read in no step, and records of the files that it read and wrote."""
        seen = self._host.commands().seen()
        files = self._input_watch.record_undeclared(seen.files, self._check_wanted)
        return seen.unread, [*files, *written_records(self._host.uses()["written"])]

    def is_affordable(self, steps: int) -> bool:
        """Whether this many more steps are within the budget, or take only a moment."""
        assert self._work.proof is not None
        few, most = steps * self.fastest <= MOMENT_SECONDS, self._work.proof.most_steps
        return few or self.steps + steps <= most

    def _check_progress(self, step: int, until: int) -> int:
        self._on_step(step)
        try:
            self._check_wanted()
        except Exception:  # it is raised again after the call
            return 0
        return until


def last_line(failed: TrainerFailed) -> str:
    """What the user's code raised, without its traceback."""
    return failed.error.strip().splitlines()[-1] if failed.error.strip() else "an error"
