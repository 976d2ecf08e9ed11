"""How long things take on virtual slots: where a stage is by when, and what a slot does besides steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment, ResumePoint
from app.domain.search_plan import speedup
from app.scheduling.gangs import powers
from app.workers.slot.execution import Action, Evaluate, Save
from stagetree.limits import MOST_LANES

KIND = "cpu"
"""Of device that virtual slots have."""

Place = tuple[str, int]
"""A node and a step in it, of which a model is in memory."""


class Fault(StrEnum):
    """What goes wrong in a stage: the user's code raises for good, or as often as it is tried; so does its first
    evaluation; the worker dies.
    """

    FAIL = "fail"
    RAISE = "raise"
    EVALUATE = "evaluate"
    LOSE = "lose"

    @property
    def is_in_step(self) -> bool:
        """Whether the user's code raises while it trains."""
        return self in (Fault.FAIL, Fault.RAISE)


Seconds = Callable[[e.Stage, int], float]
"""How long a stage takes; the number counts stages as they begin, so that a stage that is repeated may take longer."""

Faults = Callable[[e.Stage, int, str], Fault | None]
"""What goes wrong in a stage, by the same number, on a slot; None when nothing does."""


def one_second_a_step(stage: e.Stage, number: int) -> float:
    return float(stage.end - stage.start)


def no_fault(stage: e.Stage, number: int, slot: str) -> Fault | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds.

    claim: from when a chain is given to a slot until its worker begins. begin: from there to the first step, with a
    model from nothing. load: the same from a checkpoint. resume: the same where the model is in memory. hand_over: from
    stage to stage of a chain; as a claim, it is no part of the seconds that a stage is said to have taken.
    evaluate: one evaluation. save: copying a state, in which nothing is trained. upload: until it is stored and on
    record, while the training goes on. look: from what is on record until the scheduler looks, which takes in all that
    came meanwhile. give: between two chains that it gives out at one look.
    """

    claim: float = 0.0
    begin: float = 0.0
    load: float = 0.0
    resume: float = 0.0
    hand_over: float = 0.0
    evaluate: float = 0.0
    save: float = 0.0
    upload: float = 0.0
    look: float = 0.0
    give: float = 0.0

    def beginning(self, point: ResumePoint | None, resident: Place | None) -> float:
        """Of a chain that begins at a checkpoint, or from nothing, on a slot that has this model in memory."""
        if point is None:
            return self.begin
        return self.resume if resident == (point.node, point.step) else self.load

    def of(self, action: Action) -> float:
        """How long the slot is busy with it."""
        match action:
            case Evaluate():
                return self.evaluate
            case Save():
                return self.save
        return 0.0


NO_OVERHEADS = Overheads()


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The steps from `start` on, so many in so many seconds, as they follow each other from a time on."""

    begun_at: float
    start: int
    steps: int
    seconds: float

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps if self.steps else self.seconds

    def time_of(self, step: int) -> float:
        """When it is at a step."""
        return self.begun_at + self.seconds * ((step - self.start) / self.steps if self.steps else 1.0)

    def step_at(self, time: float) -> int:
        """The last step it has trained until then."""
        passed = (time - self.begun_at) / self.seconds if self.seconds else 1.0
        return self.start + max(0, min(self.steps, int(self.steps * passed + 1e-9)))

    def resumed(self, step: int, now: float) -> StepTimeline:
        """The same from a step on, which is trained at this time: something else came in between."""
        late = now - self.time_of(step)
        return self if abs(late) < 1e-9 else StepTimeline(self.begun_at + late, self.start, self.steps, self.seconds)


def even_packs(times: float) -> e.PackingProfiled:
    """Packs of any width in which a step takes so many times as long as alone."""
    seconds = {"0": 1.0, **{str(width): times for width in range(1, MOST_LANES + 1)}}
    return e.PackingProfiled(device="cpu", batch_seconds=seconds, peak_bytes={})


def even_ranks(share: float, most: int, measured: Mapping[str, float] | None = None) -> e.RanksProfiled:
    """Each doubling of the ranks is so many times as fast as it could be at best, where it was not measured.

    most: ranks. known: as the `step_seconds` of a profile, for any powers of two in a row.
    """
    seconds = dict(measured or {"1": 1.0})
    fewest = min(map(int, seconds))
    seconds["1"] = speedup(seconds, fewest) * seconds[str(fewest)]
    for ranks in powers(2, most):
        seconds.setdefault(str(ranks), seconds[str(ranks // 2)] / (2 * share))
    return e.RanksProfiled(kind=KIND, step_seconds=seconds, batch={})


def faster(profile: e.RanksProfiled, most: int) -> dict[str, float]:
    """How many times as fast as one device so many are, for the powers of two."""
    return {str(ranks): round(speedup(profile.step_seconds, ranks), 2) for ranks in powers(2, most)}


def rank_times(profile: e.RanksProfiled | None, work: ChainAssignment) -> float:
    """How many times as long as on one device a step of a chain takes on all its devices."""
    if not work.members:
        return 1.0
    seconds = {} if profile is None else profile.step_seconds
    return seconds[str(work.ranks)] / seconds["1"] if str(work.ranks) in seconds else 1 / work.ranks


def pass_times(profile: e.PackingProfiled | None, work: ChainAssignment) -> float:
    """How many times as long as one trained alone a step of a chain takes."""
    seconds = profile.batch_seconds if work.pack and profile else {}
    return seconds[str(work.packing)] / seconds["0"] if seconds else 1.0
