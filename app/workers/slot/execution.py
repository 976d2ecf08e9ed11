"""A chain in a slot, as a state machine: given what happened, it returns the next action and the facts.

It performs no actions and reads no clock, so the simulator can drive it too.

                 begin             completed, and a stage follows
      CLAIMED ----------> TRAINING ------------------------------> BETWEEN_STAGES
                           |    ^                                       |
                           |    +---------------- begin ----------------+
         completed, and it |
     was the last; stopped,|          close
       failed, interrupted +---------------------> SAVING -------------------> CLOSED

In SAVING the last checkpoints and facts are being stored. BETWEEN_STAGES waits for the next stage's message. `close`
ends any state, as when the chain was lost.

Runs on: the thread that trains; the heartbeat's reads `progress`. The simulator drives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.objectives import BestResults
from app.domain.terms import ChainId, ChainOutcome, FailureKind
from app.events import ChainFlags
from app.workers.slot.retry import Seconds

NO_FLAGS = ChainFlags()


class ExecutionState(Enum):
    CLAIMED = auto()
    TRAINING = auto()
    BETWEEN_STAGES = auto()
    SAVING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Train:
    """Train on to that step."""

    until: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate the model at its step. saves: whether its state is saved next, for any metrics."""

    saves: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """Keep the model's state. is_intermediate: kept in case of an accident, or as `best_for` some studies."""

    is_intermediate: bool
    best_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Complete:
    """The stage is complete."""


@dataclass(frozen=True, slots=True)
class Stop:
    """No trial needs more of the chain, its slot is due to another study, or its worker must end. Saved states are
    kept.
    """


Action = Train | Evaluate | Save | Complete | Stop


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on which the next action depends.

    now: the slot time that the chain has used.
    flags: what the scheduler wants now; `stop` also when the worker must end.
    save_seconds: the cost of keeping a state.
    can_save: whether the saver is idle.
    max_save_interval: after this many seconds a state inside a stage is kept at any cost.
    """

    now: Seconds
    flags: ChainFlags = NO_FLAGS
    save_seconds: float = 0.0
    can_save: bool = True
    max_save_interval: float = inf


@dataclass(frozen=True, slots=True)
class Progress:
    """step: the model's step. kept: the steps at which its state was kept."""

    step: int
    kept: frozenset[int] = frozenset()


class ChainExecution:
    """overhead: the share of training time that intermediate checkpoints may take.

    index: the current or next stage.
    progress: replaced as a whole, for other threads to read.
    last_good_step: the last step after which nothing has failed. It is always before the end of the stage, so that a
        failure there affects the trials that wait for that end.
    """

    def __init__(self, chain: str, assignment: ChainAssignment, overhead: float = 0.0) -> None:
        self.chain, self.assignment = ChainId(chain), assignment
        self.state, self.index, self.progress = ExecutionState.CLAIMED, 0, Progress(assignment.stages[0].start)
        self.last_good_step = self.step
        self._overhead = overhead
        self._is_in_step, self._is_in_evaluation, self._trains_from = False, False, self.step
        self._reasons: set[str] = set()
        self._best, self._best_for = BestResults(assignment.keep_best), tuple[int, ...]()
        self._evaluated_at, self._saved_at, self._peak_bytes = -1, -1, 0
        self._began_at = self._last_save_at = Seconds(0.0)

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def kept(self) -> frozenset[int]:
        return self.progress.kept

    @property
    def stage(self) -> e.Stage:
        """The current stage, or the next one."""
        return self.assignment.stages[min(self.index, len(self.assignment.stages) - 1)]

    @property
    def is_over(self) -> bool:
        """Whether no more stages are trained."""
        return self.state in (ExecutionState.SAVING, ExecutionState.CLOSED)

    @property
    def is_last_stage(self) -> bool:
        return self.index + 1 >= len(self.assignment.stages)

    def branches_inside(self, flags: ChainFlags) -> tuple[int, ...]:
        """The steps inside the stage at which known trials would branch off, if any checkpoint may be kept there."""
        if not self.assignment.intermediate_bytes:
            return ()
        inside, stage = self.assignment.branches_inside[self.index : self.index + 1], self.stage
        later = (step for step in flags.branch_steps if stage.start < step < stage.end)
        return (*(inside[0] if inside else ()), *later)

    def can_begin(self, index: int) -> bool:
        """Whether a message for stage `index` is neither stale nor a duplicate."""
        waits = self.state in (ExecutionState.CLAIMED, ExecutionState.BETWEEN_STAGES)
        return waits and self.index == index

    # ------------------------------------------------------------------------------------------------ next action

    def begin(self, now: Seconds) -> None:
        """The next stage has begun with its model in place."""
        stage, self.state = self.stage, ExecutionState.TRAINING
        self.progress = Progress(stage.start, self.kept)
        self.last_good_step = stage.start if stage.start < stage.end else stage.start - 1
        self._evaluated_at, self._saved_at, self._peak_bytes = -1, -1, 0
        self._trains_from = stage.start
        self._reasons.clear()
        self._began_at = self._last_save_at = now

    def next(self, conditions: Conditions) -> Action:
        """The next action."""
        self._is_in_step = self._is_in_evaluation = False
        if self.step != self._evaluated_at and self.step in self._evaluations(conditions.flags):
            self._is_in_evaluation = True
            return Evaluate(saves=self.step >= self.stage.end and self._wanted_save(conditions) is not None)
        if self.step != self._saved_at and (save := self._wanted_save(conditions)) is not None:
            return save
        if self.step >= self.stage.end:
            return Complete()
        if conditions.flags.end:
            return Stop()
        self._is_in_step, self._trains_from = True, self.step
        self.last_good_step = max(self.last_good_step, self.step)
        return Train(self._next_stop(conditions.flags))

    def end_of_training(self, step: int, conditions: Conditions) -> int:
        """Where the current training, now at `step`, must end; 0 for at the next step.

        It never moves past a step at which something must be done, since the caller may hear of `step` late.
        """
        self.record_progress(step)
        if conditions.flags.end or self._is_intermediate_due(conditions):
            return 0
        return self._next_stop(conditions.flags)

    def _evaluations(self, flags: ChainFlags) -> set[int]:
        """The steps of this stage to evaluate. Other requested steps belong to other stages."""
        stage = self.stage
        steps = {*stage.evaluate, *flags.extra_eval_steps}
        return {step for step in steps if stage.start < step <= stage.end or stage.start == step == stage.end}

    def _next_stop(self, flags: ChainFlags) -> int:
        work = self.assignment
        stops = {*self._evaluations(flags), *self.branches_inside(flags), *work.keep_at, *work.keep_for_good}
        return min((each for each in stops if self._trains_from < each < self.stage.end), default=self.stage.end)

    def _wanted_save(self, conditions: Conditions) -> Save | None:
        stage, step, work = self.stage, self.step, self.assignment
        is_for_good = step in work.keep_for_good and step > stage.start
        if is_for_good or (work.mean and stage.start == step == stage.end):
            return Save(is_intermediate=False)
        if step == stage.start or (work.alone and not (self.is_last_stage and step >= stage.end)):
            return None  # nothing resumes from an isolated trial's state, and saving it may change its trainer
        if step >= stage.end or step in conditions.flags.extra_eval_steps or conditions.flags.end:
            return Save(is_intermediate=False)
        best_for = self._best_for if step == self._evaluated_at else ()
        is_due = best_for or step in work.keep_at or self._is_intermediate_due(conditions)
        return Save(is_intermediate=True, best_for=best_for) if is_due else None

    def _is_intermediate_due(self, conditions: Conditions) -> bool:
        """The first is due after enough training that its cost stays within the overhead.

        Where a known trial would branch off, it is due when it costs less than training there again.
        """
        is_inside = self.stage.start < self.step < self.stage.end
        if not (is_inside and self.assignment.intermediate_bytes and conditions.can_save):
            return False
        trained = conditions.now - self._last_save_at
        if self.step in self.branches_inside(conditions.flags):
            return trained >= conditions.save_seconds
        return self._overhead > 0 and trained >= min(
            conditions.save_seconds / self._overhead, conditions.max_save_interval
        )

    def is_news(self, facts: Iterable[e.Event], flags: ChainFlags) -> bool:
        """Whether the scheduler should see these facts at once."""
        awaited = {self.stage.end, *flags.extra_eval_steps}
        evaluated = (fact for fact in facts if isinstance(fact, e.Evaluated))
        return any(fact.step in awaited or self._best.reach_target_at(fact.step, fact.metrics) for fact in evaluated)

    # ------------------------------------------------------------------------------------------------ what happened

    def record_progress(self, step: int, peak_bytes: int = 0) -> None:
        """The model has reached `step`, with this peak memory since the last call."""
        self.progress, self._peak_bytes = Progress(step, self.kept), max(self._peak_bytes, peak_bytes)
        self.last_good_step = max(self.last_good_step, min(step, self.stage.end) - 1)

    def record_evaluation(self, metrics: e.Metrics) -> e.Evaluated:
        self._evaluated_at, self._best_for = self.step, self._best.take({self.step: metrics})
        return e.Evaluated(node=self.stage.node, step=self.step, metrics=metrics)

    def record_passed(self, measured: Mapping[int, e.Metrics]) -> list[e.Evaluated]:
        """The metrics of steps that the model passed after the request to stop."""
        self._best.take(measured)
        return [e.Evaluated(node=self.stage.node, step=step, metrics=each) for step, each in sorted(measured.items())]

    def record_inexactness(self, reasons: Iterable[str]) -> list[e.ExactnessLost]:
        """Why the stage is inexact from the first of the last trained steps on; each reason once."""
        step, new = min(self._trains_from + 1, self.stage.end), [each for each in reasons if each not in self._reasons]
        self._reasons.update(new)
        return [e.ExactnessLost(node=self.stage.node, step=step, reason=reason) for reason in new]

    def record_save(self, now: Seconds) -> None:
        """The state is copied, and its upload has begun."""
        self._saved_at, self._last_save_at = self.step, now
        self.progress = Progress(self.step, self.kept | {self.step})

    def complete_stage(self, now: Seconds) -> e.StageCompleted:
        index, self.index = self.index, self.index + 1
        is_over = self.index == len(self.assignment.stages)
        self.state = ExecutionState.SAVING if is_over else ExecutionState.BETWEEN_STAGES
        spent = now - self._began_at
        return e.StageCompleted(chain=self.chain, index=index, seconds=spent, peak_bytes=self._peak_bytes)

    def fail_stage(
        self, kind: FailureKind, error: str, signature: str | None, step: int, now: Seconds
    ) -> e.StageFailed:
        """The user's code failed when the model was at `step`."""
        self.state = ExecutionState.SAVING
        if self._is_in_step:
            self.last_good_step = max(self.last_good_step, min(step, self.stage.end - 1))
        return e.StageFailed(
            chain=self.chain,
            index=self.index,
            step=self.last_good_step,
            kind=kind,
            error=error,
            seconds=now - self._began_at,
            signature=signature,
            evaluated=self.step if self._is_in_evaluation else None,
        )

    def end_chain(self, outcome: ChainOutcome, now: Seconds) -> e.ChainEnded:
        """End the chain early: stopped, or interrupted by an accident."""
        is_training, self.state = self.state == ExecutionState.TRAINING, ExecutionState.SAVING
        if not is_training:
            return e.ChainEnded(chain=self.chain, outcome=outcome)
        steps = max(0, self.step - self.stage.start)
        return e.ChainEnded(chain=self.chain, outcome=outcome, steps=steps, seconds=now - self._began_at)

    def finish_chain(self) -> e.ChainEnded:
        """Everything is trained and saved."""
        return e.ChainEnded(chain=self.chain, outcome=ChainOutcome.DONE)

    def close(self) -> None:
        """Nothing more comes from the chain."""
        self.state = ExecutionState.CLOSED
