"""The slow-down of steps while other slots of the same GPU are busy, measured from the stages that ran there."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import sub

from app.domain.slots import shared_gpu

MOSTLY = 0.9
"""The smallest part of a stage during which a number of slots was busy, for the stage to count for that number."""


@dataclass(frozen=True, slots=True)
class StageTiming:
    """A stage on a slot from `begun_at` to `ended_at`. Its steps took the last `seconds` of that time.

    kind: equal for steps that take equally long on a GPU of their own. steps: 0 if the timing must not be used.
    """

    slot: str
    kind: Hashable
    steps: int
    seconds: float
    begun_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """While `slots` slots of a GPU were busy, a step took `times` times as long as with one busy slot."""

    gpu: str
    slots: int
    times: float

    @property
    def gain(self) -> float:
        """The speed-up of the slots together over one alone."""
        return self.slots / self.times


def slowdowns(stages: Iterable[StageTiming]) -> list[Slowdown]:
    """The slow-downs on shared GPUs, for kinds of steps that also ran with one busy slot."""
    shared = defaultdict[str, list[StageTiming]](list)
    for stage in sorted(stages, key=lambda stage: (stage.slot, stage.begun_at)):
        if gpu := shared_gpu(stage.slot):
            shared[gpu].append(stage)
    return [slowdown for gpu, ran in shared.items() for slowdown in _gpu_slowdowns(gpu, ran)]


def _gpu_slowdowns(gpu: str, stages: Sequence[StageTiming]) -> Iterator[Slowdown]:
    """stages: sorted by slot and begin."""
    seconds, steps = defaultdict[tuple[Hashable, int], float](float), Counter[tuple[Hashable, int]]()
    busy_for = _occupancy(stages)
    for stage in stages:
        if stage.steps and (slots := busy_for(stage)):
            seconds[stage.kind, slots] += stage.seconds
            steps[stage.kind, slots] += stage.steps
    for slots in sorted({slots for _, slots in steps} - {1}):
        both = [kind for kind, number in steps if number == slots and (kind, 1) in steps]
        alone = sum(steps[kind, slots] * seconds[kind, 1] / steps[kind, 1] for kind in both)
        if alone:
            yield Slowdown(gpu, slots, sum(seconds[kind, slots] for kind in both) / alone)


def _occupancy(stages: Sequence[StageTiming]) -> Callable[[StageTiming], int]:
    """A function that gives the number of busy slots during a stage; 0 if the number changed too much."""
    edges = sorted(edge for begin, end in _busy_intervals(stages) for edge in ((begin, 1), (end, -1)))
    times = [time for time, _ in edges]
    spans = list(zip(accumulate(change for _, change in edges[:-1]), map(sub, times[1:], times), strict=True))
    most = max(slots for slots, _ in spans)
    lasted = [list(accumulate((s * (n == slots) for slots, s in spans), initial=0.0)) for n in range(1, most + 1)]

    def seconds_before(moment: float, seconds: Sequence[float]) -> float:
        """Interpolate cumulative seconds, given at each edge, at a moment."""
        at = min(max(bisect_right(times, moment), 1), len(times) - 1)
        part = (moment - times[at - 1]) / ((times[at] - times[at - 1]) or 1.0)
        return seconds[at - 1] + min(max(part, 0.0), 1.0) * (seconds[at] - seconds[at - 1])

    def occupancy(stage: StageTiming) -> int:
        begun_at = stage.ended_at - stage.seconds
        for number, seconds in enumerate(lasted, start=1):
            if seconds_before(stage.ended_at, seconds) - seconds_before(begun_at, seconds) >= MOSTLY * stage.seconds:
                return number
        return 0

    return occupancy


def _busy_intervals(stages: Iterable[StageTiming]) -> Iterator[tuple[float, float]]:
    """The intervals in which a slot was busy without a break. Concurrent stages of a slot count once."""
    for _, group in groupby(stages, key=lambda stage: stage.slot):
        first, *others = group
        begin, end = first.begun_at, first.ended_at
        for stage in others:
            if stage.begun_at > end:
                yield begin, end
                begin, end = stage.begun_at, stage.ended_at
            end = max(end, stage.ended_at)
        yield begin, end
