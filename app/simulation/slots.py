"""Virtual slots: they claim chains and report facts as workers do, with the same proofs, and train nothing.

How a chain goes from stage to stage stands here a second time: this is the place for the workers' own state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from app.domain import events as e
from app.domain.ids import ChainId
from app.domain.states import ChainOutcome, FailureKind
from app.events.log import Alongside
from app.events.records import Records
from app.events.rows.chains import Lease
from app.events.rows.ports import RowsPort
from app.scheduling.assignment import ChainAssignment

Measure = Callable[[str, int], e.Metrics]
"""The metrics of a node after a step."""


class Fault(StrEnum):
    """What goes wrong in a stage: the user's code raises for good, or as often as it is tried; the worker dies."""

    FAIL = "fail"
    RAISE = "raise"
    LOSE = "lose"


@dataclass(slots=True)
class Attempt:
    """A stage under way: when it began, how long it takes, and where it will be heard of next.

    number: counts stages as they begin. told: up to which step everything was reported.
    """

    stage: e.Stage
    number: int
    begun_at: float
    seconds: float
    fault: Fault | None
    told: int
    next_step: int = 0

    @property
    def raises(self) -> bool:
        """Whether the user's code will."""
        return self.fault in (Fault.FAIL, Fault.RAISE)

    def time_of(self, step: int) -> float:
        """When it is at a step."""
        steps = self.stage.end - self.stage.start
        return self.begun_at + self.seconds * ((step - self.stage.start) / steps if steps else 1.0)

    def step_at(self, time: float) -> int:
        """The last step it has trained by then."""
        steps = self.stage.end - self.stage.start
        passed = 1.0 if not self.seconds else (time - self.begun_at) / self.seconds
        return min(self.stage.end, self.stage.start + int(steps * passed + 1e-9))


class VirtualSlot:
    """One slot and its worker. `keep_every`: inside a stage, a checkpoint is kept after each so many steps."""

    def __init__(
        self, name: str, records: Records, stream: str, measure: Measure, keep_every: int | None, device: str = "cpu"
    ) -> None:
        self.name = name
        self.attempt: Attempt | None = None
        self._records, self._stream, self._measure, self._keep_every = records, stream, measure, keep_every
        self._lives = 0
        self._lease: Lease | None = None
        self._stages: tuple[e.Stage, ...] = ()
        self._index = 0
        self._wanted: set[int] = set()  # the steps after which to evaluate
        self._branches: set[int] = set()  # those of them at which to keep the state as well
        self._must_stop = False

    @property
    def _owner(self) -> str:
        return f"{self.name}/{self._lives}"

    def register(self, trainers: dict[str, str]) -> None:
        """A new worker has the slot; with the one before it, its chain is gone."""
        before = self._owner if self._lives else None
        self._lives, self._lease, self.attempt = self._lives + 1, None, None
        with self._records.write() as rows:
            rows.slots.take(self.name, self._owner, instead_of=before, device="cpu", host="", pid=self._lives)
            rows.slots.describe(self.name, self._owner, trainers=trainers, note=None)

    def describe(self, trainers: dict[str, str]) -> None:
        """Say which trainers there are."""
        with self._records.write() as rows:
            rows.slots.describe(self.name, self._owner, trainers=trainers, note=None)

    def claim(self, chain: str) -> e.Stage:
        """Begin a chain; its first stage."""
        with self._records.write() as rows:
            self._lease = rows.chains.claim(chain, self._owner, inf)
        self._stages, self._index = ChainAssignment.from_json(self._lease.assignment).stages, 0
        return self._stages[0]

    def begin(self, number: int, now: float, seconds: float, fault: Fault | None) -> float:
        """Begin the stage under way; when it will be heard of."""
        stage = self._stages[self._index]
        told = stage.start if stage.start < stage.end else stage.start - 1
        self.attempt = Attempt(stage, number, now, seconds, fault, told)
        return self.look(now)

    def look(self, now: float) -> float:
        """See what the scheduler wants by now; when the slot will be heard of next."""
        assert self.attempt is not None and self._lease is not None
        with self._records.read() as rows:
            flags = rows.chains.flags(self._lease.chain, self._lease.fence)
        stage, at = self.attempt.stage, max(self.attempt.step_at(now), self.attempt.told)
        self._branches = set(flags.extra_eval_steps)
        self._wanted = {*stage.evaluate, *flags.extra_eval_steps}
        self._must_stop = flags.stop
        ahead = [step for step in self._wanted if at < step < stage.end]
        is_short = flags.stop or self.attempt.raises
        self.attempt.next_step = min(at + 1 if is_short else stage.end, stage.end, *ahead)
        return self.attempt.time_of(self.attempt.next_step)

    def proceed(self, now: float) -> e.Stage | None:
        """It is at its next step: report it. The stage that begins now, if another one of the chain does."""
        assert self.attempt is not None
        if self.attempt.raises:
            return self._fail(self.attempt)
        if self.attempt.next_step < self.attempt.stage.end:
            return self._pass(self.attempt, now)
        return self._die(self.attempt) if self.attempt.fault else self._complete(self.attempt)

    def _pass(self, attempt: Attempt, now: float) -> e.Stage | None:
        step, stage = attempt.next_step, attempt.stage
        facts = [*self._passed(attempt, step)]
        if step in self._branches or self._must_stop:
            facts.append(_kept(attempt, step))
        attempt.told = step
        if self._must_stop:
            steps = step - stage.start
            self._end(facts, _ended(self._chain, ChainOutcome.STOPPED, steps, now - attempt.begun_at))
        elif facts:
            self._record(facts, lambda rows: rows.chains.guard(self._chain, self._fence))
        return None

    def _complete(self, attempt: Attempt) -> e.Stage | None:
        stage, chain, fence = attempt.stage, self._chain, self._fence
        done = e.StageCompleted(chain=chain, index=self._index, seconds=attempt.seconds)
        facts: list[e.Event] = [*self._passed(attempt, stage.end), done, _kept(attempt, stage.end)]
        self._index, self.attempt = self._index + 1, None
        if self._index < len(self._stages):
            self._record(facts, lambda rows: rows.chains.advance(chain, fence, self._index))
            return self._stages[self._index]
        model = {"plan": self._stream, "node": stage.node, "step": stage.end}

        def finish(rows: RowsPort) -> None:
            rows.chains.release(chain, fence, model)
            rows.chains.finish(chain, fence)

        self._record([*facts, _ended(chain, ChainOutcome.DONE)], finish)
        self._lease = None
        return None

    def _die(self, attempt: Attempt) -> e.Stage | None:
        """The worker is gone at the end of the stage, before that was kept; another one has the slot at once."""
        with self._records.write() as rows:
            rows.chains.heartbeat(self._chain, self._fence, inf, attempt.stage.end)
            before = rows.slots.get(self.name)
        self.register(dict(before.trainers) if before else {})
        return None

    def _fail(self, attempt: Attempt) -> e.Stage | None:
        """The user's code raises in the first step of the stage."""
        stage = attempt.stage
        failed = e.StageFailed(
            chain=self._chain,
            index=self._index,
            step=min(stage.start, stage.end - 1),
            kind=FailureKind.EXCEPTION,
            error="it was meant to fail",
            seconds=0.0,
            signature="MeantToFail" if attempt.fault is Fault.RAISE else None,
        )
        self._end([], failed)
        return None

    def _end(self, facts: Sequence[e.Event], last: e.Event) -> None:
        chain, fence = self._chain, self._fence
        self._record([*facts, last], lambda rows: rows.chains.end(chain, fence))
        self._lease = self.attempt = None

    def _passed(self, attempt: Attempt, step: int) -> list[e.Event]:
        """What is reported of the steps since the last report."""
        stage, first = attempt.stage, attempt.told + 1
        wanted = sorted(at for at in self._wanted if first <= at <= step)
        facts: list[e.Event] = [
            e.Evaluated(node=stage.node, step=at, metrics=self._measure(stage.node, at)) for at in wanted
        ]
        if self._keep_every:
            kept = range(stage.start + self._keep_every, stage.end, self._keep_every)
            facts += [_kept(attempt, at, intermediate=True) for at in kept if first <= at <= step]
        return facts

    def _record(self, facts: Sequence[e.Event], proof: Alongside) -> None:
        self._records.log.append(self._stream, facts, expected=None, at=0.0, alongside=proof)

    @property
    def _chain(self) -> ChainId:
        assert self._lease is not None
        return ChainId(self._lease.chain)

    @property
    def _fence(self) -> int:
        assert self._lease is not None
        return self._lease.fence


def _kept(attempt: Attempt, step: int, *, intermediate: bool = False) -> e.CheckpointKept:
    node, key = attempt.stage.node, f"{attempt.stage.node}/{step}-{attempt.number}"
    return e.CheckpointKept(node=node, step=step, key=key, sha256="", size=0, intermediate=intermediate)


def _ended(chain: ChainId, outcome: ChainOutcome, steps: int = 0, seconds: float = 0.0) -> e.ChainEnded:
    return e.ChainEnded(chain=chain, outcome=outcome, steps=steps, seconds=seconds)
