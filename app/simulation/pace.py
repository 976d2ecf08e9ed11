"""How long stages and other work take on virtual slots."""

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
"""The kind of device of virtual slots."""

Place = tuple[str, int]
"""The node and step of a model in memory."""


class Fault(StrEnum):
    """A fault of a stage."""

    FAIL = "fail"  # the user's code raises, and the trial fails for good
    RAISE = "raise"  # the user's code raises at each attempt
    EVALUATE = "evaluate"  # the first evaluation raises
    LOSE = "lose"  # the worker dies

    @property
    def is_in_step(self) -> bool:
        """Whether the user's code raises while it trains."""
        return self in (Fault.FAIL, Fault.RAISE)


Seconds = Callable[[e.Stage, int], float]
"""How long a stage takes. The number counts begun stages, so that a repeated stage may take longer."""

Faults = Callable[[e.Stage, int, str], Fault | None]
"""The fault of a stage, by the same number, on a slot; None for no fault."""


def one_second_a_step(stage: e.Stage, number: int) -> float:
    return float(stage.end - stage.start)


def no_fault(stage: e.Stage, number: int, slot: str) -> Fault | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """In seconds."""

    claim: float = 0.0  # from the assignment of a chain until its worker begins; not part of a stage's seconds
    begin: float = 0.0  # until the first step, with a new model
    load: float = 0.0  # until the first step, from a checkpoint
    resume: float = 0.0  # until the first step, with the model in memory
    hand_over: float = 0.0  # from stage to stage of a chain; not part of a stage's seconds
    evaluate: float = 0.0  # one evaluation
    save: float = 0.0  # copying a state, while nothing is trained
    upload: float = 0.0  # until a state is stored and recorded, while training continues
    look: float = 0.0  # from a recorded event until the scheduler's tick, which takes in later events too
    give: float = 0.0  # between two chains that the scheduler assigns in one tick

    def beginning(self, point: ResumePoint | None, resident: Place | None) -> float:
        """Of a chain that begins from a checkpoint or from nothing, on a slot with this model in memory."""
        if point is None:
            return self.begin
        return self.resume if resident == (point.node, point.step) else self.load

    def action_seconds(self, action: Action) -> float:
        """How long the slot is busy with an action."""
        match action:
            case Evaluate():
                return self.evaluate
            case Save():
                return self.save
        return 0.0


NO_OVERHEADS = Overheads()


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """Steps of equal length that follow each other from a time on."""

    begun_at: float
    start: int
    steps: int
    seconds: float

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps if self.steps else self.seconds

    def time_of(self, step: int) -> float:
        """When a step is trained."""
        return self.begun_at + self.seconds * ((step - self.start) / self.steps if self.steps else 1.0)

    def step_at(self, time: float) -> int:
        """The last step that is trained by then."""
        passed = (time - self.begun_at) / self.seconds if self.seconds else 1.0
        return self.start + max(0, min(self.steps, int(self.steps * passed + 1e-9)))

    def shift(self, step: int, now: float) -> StepTimeline:
        """The timeline after an interruption: `step` is trained at `now`."""
        late = now - self.time_of(step)
        return self if abs(late) < 1e-9 else StepTimeline(self.begun_at + late, self.start, self.steps, self.seconds)


def even_packs(times: float) -> e.PackingProfiled:
    """Packs of any width in which a step takes `times` as long as for one trial."""
    seconds = {"0": 1.0, **{str(width): times for width in range(1, MOST_LANES + 1)}}
    return e.PackingProfiled(device="cpu", batch_seconds=seconds, peak_bytes={})


def even_ranks(share: float, most: int, measured: Mapping[str, float] | None = None) -> e.RanksProfiled:
    """A profile in which each doubling of the ranks has an efficiency of `share`, unless it was measured.

    most: ranks. measured: as the `step_seconds` of a profile, for consecutive powers of two.
    """
    seconds = dict(measured or {"1": 1.0})
    fewest = min(map(int, seconds))
    seconds["1"] = speedup(seconds, fewest) * seconds[str(fewest)]
    for ranks in powers(2, most):
        seconds.setdefault(str(ranks), seconds[str(ranks // 2)] / (2 * share))
    return e.RanksProfiled(kind=KIND, step_seconds=seconds, batch={})


def faster(profile: e.RanksProfiled, most: int) -> dict[str, float]:
    """The speed-up by ranks, for the powers of two."""
    return {str(ranks): round(speedup(profile.step_seconds, ranks), 2) for ranks in powers(2, most)}


def rank_times(profile: e.RanksProfiled | None, work: ChainAssignment) -> float:
    """The duration of a step of a chain on all its devices, as a multiple of that on one."""
    if not work.members:
        return 1.0
    seconds = {} if profile is None else profile.step_seconds
    return seconds[str(work.ranks)] / seconds["1"] if str(work.ranks) in seconds else 1 / work.ranks


def pass_times(profile: e.PackingProfiled | None, work: ChainAssignment) -> float:
    """The duration of a step of a chain in its pack, as a multiple of that of a single trial."""
    seconds = profile.batch_seconds if work.pack and profile else {}
    return seconds[str(work.packing)] / seconds["0"] if seconds else 1.0
