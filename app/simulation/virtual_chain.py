"""A chain on a virtual slot: the workers' own state machine decides what to do, in virtual time.

Like `app.workers.slot.training`, it follows `ChainExecution` and records facts with the same changes of rows. Nothing
is trained: an evaluation returns what `measure` says, and a state is a unique key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainOutcome, FailureKind
from app.events import Lease, Records, RowsPort
from app.simulation.pace import NO_OVERHEADS, Fault, Overheads, Place, StepTimeline, pass_times, rank_times
from app.workers.slot.execution import Action, ChainExecution, Complete, Conditions, Evaluate, Save, Stop, Train
from app.workers.slot.outbox import Advance, End, Finish, Release, RowChange
from app.workers.slot.retry import Clock, Seconds

Measure = Callable[[str, int], e.Metrics]
"""The metrics of a node after a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What virtual slots work with."""

    records: Records
    stream: str
    clock: Clock
    """In virtual seconds."""
    later: Callable[[float, Callable[[], bool]], None]
    """Calls a function at a time; it returns whether anything happened."""
    pace: Callable[[e.Stage, str], tuple[float, Fault | None]]
    """The duration and fault of a stage that begins on a slot."""
    measure: Measure
    keep_every: int | None = None
    """The interval of checkpoints inside a stage, in steps."""
    overheads: Overheads = NO_OVERHEADS
    profile: e.PackingProfiled | None = None
    """Durations of steps in packs, however full."""
    ranks: e.RanksProfiled | None = None
    """Durations on several devices; None: k devices are k times as fast."""
    hear: Callable[[float, VirtualChain], None] = lambda at, chain: None


class VirtualChain:
    """resident: the model in the slot's memory. on_death: called when the slot's worker dies. seconds: the slot time of
    this chain, a part of the whole if it is packed with others. on_trained: called when the slot has finished its
    training. Evaluations and saves of one lane do not delay the others here.
    """

    def __init__(
        self,
        slot: str,
        lease: Lease,
        world: World,
        resident: Place | None,
        *,
        on_death: Callable[[], None],
        seconds: Callable[[], Seconds],
        on_trained: Callable[[], None],
    ) -> None:
        self.slot, self.resident, self._on_death, self._is_dead = slot, resident, on_death, False
        self._lease, self._fence, self._world, self._flags = lease, lease.fence, world, lease.flags
        self._own_seconds, self._on_trained = seconds, on_trained
        work = lease.assignment
        assert isinstance(work, ChainAssignment)
        self._pass_times = pass_times(world.profile, work) * rank_times(world.ranks, work)
        self._execution = ChainExecution(lease.chain, work, 1.0 if world.keep_every else 0.0)
        self._action: Action | None = None
        self._turn, self._trains_to, self._said_step, self._uploads_until = 0, 0, 0, 0.0
        self.trained_at = inf
        self._facts: list[e.Event] = []
        self._changes: list[RowChange] = []
        self._begin(world.overheads.beginning(work.resume, resident))

    @property
    def is_trained(self) -> bool:
        return self._is_dead or self._execution.is_over

    # ------------------------------------------------------------------------------------------- what the slot hears

    def beat(self) -> None:
        """Send a heartbeat. Until `silent_until` there is nothing new to report, unless something else happens."""
        step, line = self._step(), self._timeline
        is_training = isinstance(self._action, Train)
        self._keep_silent(line.time_of(step + 1) - line.step_seconds / 1000 if is_training else inf)
        if step != self._said_step and not self.is_trained:
            self._said_step = step
            with self._world.records.write() as rows:
                rows.chains.heartbeat(self._lease.chain, self._fence, inf, step, self._execution.kept)

    def _keep_silent(self, until: float) -> None:
        self.silent_until = until
        if until < inf:
            self._world.hear(until, self)

    def die(self) -> None:
        """The worker is dead: nothing more is recorded."""
        self._is_dead = True

    def look(self) -> None:
        """Read what the scheduler asks for."""
        with self._world.records.read() as rows:
            self._flags = rows.chains.flags(self._lease.chain, self._fence)
        if isinstance(self._action, Train):
            step = self._step()
            until = self._execution.end_of_training(step, self._conditions())
            self._train(min(max(until, step) if until else step + 1, self._execution.stage.end))

    def _step(self) -> int:
        """The current step of the model."""
        step = self._execution.step
        return max(step, self._timeline.step_at(self._now)) if isinstance(self._action, Train) else step

    # ------------------------------------------------------------------------------------------------ next action

    def _begin(self, loading: float, coming: float = 0.0) -> None:
        """Begin the next stage after its overheads. A stage without steps takes its time as well."""
        stage, overhead = self._execution.stage, coming + loading
        self._keep_silent(-inf)
        self._execution.begin(Seconds(self._own_seconds() + coming))
        seconds, self._fault = self._world.pace(stage, self.slot)
        seconds *= self._pass_times
        self._timeline = StepTimeline(self._now + overhead, stage.start, stage.end - stage.start, seconds)
        if overhead or stage.start == stage.end:
            self._wake(overhead + (0.0 if stage.end > stage.start else seconds))
        else:
            self._run_actions()

    def _wake(self, seconds: float) -> None:
        """Call `_proceed` after some seconds, unless another wake-up replaces this one."""
        self._turn, turn = self._turn + 1, self._turn + 1
        self._world.later(self._now + max(0.0, seconds), lambda: turn == self._turn and self._proceed())

    def _proceed(self) -> bool:
        """Finish the current action and continue."""
        action, self._action = self._action, None
        self._keep_silent(-inf)
        if isinstance(action, Train):
            self._execution.record_progress(self._trains_to)
        elif action is not None:
            self._do(action)
        if self._goes_wrong():
            self._fail(self._execution.stage.start) if self._fault and self._fault.is_in_step else self._die()
        else:
            self._run_actions()
        return True

    def _run_actions(self) -> None:
        """Execute instant actions until one takes time, and begin that."""
        while not self.is_trained:
            action = self._execution.next(self._conditions())
            if isinstance(action, Complete):
                self._complete()
                return
            if isinstance(action, Train):
                self._state_facts()
                self._action, self._timeline = action, self._timeline.shift(self._execution.step, self._now)
                self._train(action.until)
                return
            if seconds := self._world.overheads.action_seconds(action):
                self._action = action
                self._wake(seconds)
                return
            self._do(action)

    def _train(self, until: int) -> None:
        """Train up to that step, or to an earlier one at which something is due."""
        start, step, every = self._execution.stage.start, self._step(), self._world.keep_every
        if self._fault and self._fault.is_in_step:
            until = min(until, step + 1)
        if every:
            until = min(until, start + ((step - start) // every + 1) * every)
        self._trains_to = until
        self._wake(self._timeline.time_of(until) - self._now)

    def _conditions(self) -> Conditions:
        """An intermediate checkpoint is due after `keep_every` steps, at any cost."""
        line, every = self._timeline, self._world.keep_every or 0
        save_seconds = every * line.step_seconds * (1 - 1e-9) if line.steps else inf
        return Conditions(self._own_seconds(), self._flags, save_seconds)

    # ------------------------------------------------------------------------------------------------ what happens

    def _do(self, action: Action) -> None:
        execution = self._execution
        match action:
            case Evaluate() if self._fault is Fault.EVALUATE:
                self._fail(execution.step)
            case Evaluate():
                metrics = self._world.measure(execution.stage.node, execution.step)
                self._facts.append(execution.record_evaluation(metrics))
            case Save(is_intermediate):
                execution.record_save(self._own_seconds())
                if execution.step < execution.stage.end:
                    self._upload(execution.stage, execution.step, is_intermediate=is_intermediate)
            case Stop():
                self.resident = (execution.stage.node, execution.step)
                self._end(execution.end_chain(ChainOutcome.STOPPED, self._own_seconds()))

    def _complete(self) -> None:
        execution, stage, index = self._execution, self._execution.stage, self._execution.index + 1
        is_last = self._execution.is_last_stage
        self.resident = (stage.node, stage.end)
        self._facts.append(execution.complete_stage(self._own_seconds()))
        if is_last:
            self._changes.append(Release(self._world.stream, stage.node, stage.end))
        else:
            self._changes.append(Advance(index))
        self._upload(stage, stage.end)
        if is_last:
            self._end(execution.finish_chain(), Finish())
        else:
            self._state_facts()
            self._begin(0.0, self._world.overheads.hand_over)

    def _goes_wrong(self) -> bool:
        """Whether the stage's fault occurs now: in its first step, or at its end."""
        stage, step = self._execution.stage, self._execution.step
        is_there = step >= stage.end or (step > stage.start and self._fault is not Fault.LOSE)
        return self._fault not in (None, Fault.EVALUATE) and is_there and not self.is_trained

    def _fail(self, step: int) -> None:
        """The user's code raises after `step` steps."""
        self._facts.clear()
        error = (FailureKind.EXCEPTION, "it was meant to fail", "MeantToFail", step)
        failed = self._execution.fail_stage(*error, self._own_seconds())
        self._end(replace(failed, signature=None) if self._fault is Fault.FAIL else failed)

    def _die(self) -> None:
        """The worker dies at the end of the stage, before it is recorded."""
        self._is_dead = True
        with self._world.records.write() as rows:
            rows.chains.heartbeat(self._lease.chain, self._fence, inf, self._execution.stage.end)
        self._on_death()

    # ------------------------------------------------------------------------------------------------ records

    def _upload(self, stage: e.Stage, step: int, *, is_intermediate: bool = False) -> None:
        """Record the state once it is stored; pending facts are recorded before."""
        key = f"{stage.node}/{step}-{self._lease.chain}"
        checkpoint = e.CheckpointKept(
            node=stage.node, step=step, key=key, sha256="", size=0, intermediate=is_intermediate
        )
        if upload := self._world.overheads.upload:
            self._state_facts()
            self._uploads_until = max(self._uploads_until, self._now) + upload
        self._record_when_stored([checkpoint])

    def _end(self, last: e.Event, change: RowChange | None = None) -> None:
        """Record the last fact, after all checkpoints."""
        self.trained_at = self._now
        self._on_trained()
        facts, self._facts = [*self._facts, last], []
        self._record_when_stored(facts, change or End())
        self._state_facts()

    def _record_when_stored(self, facts: Sequence[e.Event], *changes: RowChange) -> None:
        if self._uploads_until > self._now:
            self._world.later(self._uploads_until, lambda: self._record(facts, changes))
        else:
            self._facts += facts
            self._changes += changes

    def _state_facts(self) -> None:
        """Record the facts found since the last call."""
        facts, changes = self._facts, self._changes
        self._facts, self._changes = [], []
        if facts:
            self._record(facts, changes)

    def _record(self, facts: Sequence[e.Event], changes: Sequence[RowChange]) -> bool:
        def change(rows: RowsPort) -> None:
            rows.chains.report(self._lease.chain, self._fence)
            for each in changes:
                each.apply(rows, self._lease.chain, self._fence)

        if not self._is_dead:
            self._world.records.log.append(self._world.stream, facts, expected=None, at=self._now, alongside=change)
            self._fence = self._fence.reported
        return not self._is_dead

    @property
    def _now(self) -> float:
        return self._world.clock()
