"""How long a step takes: measured, or estimated by regression; and how much longer beside others of one GPU.

TreeML §5.2 estimates with linear regression on profiles; ours is on the logarithms, because doubling a batch size
multiplies a step's time and never makes it negative.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from app.domain.assignment import gpu_of, shared_gpu
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import NodeId

Features = dict[str, float]
Numbers = npt.NDArray[np.float64]

MOST_FITTED = 1000
"""The most nodes that the regression is fitted to, taken evenly from all that were measured."""

NEAR = 0.05
"""By so much of itself an estimate may be off before it is another one."""


@dataclass(frozen=True, slots=True)
class EstimateError:
    """How far estimates of a step's seconds are off, as a part of them: the median of `settings` that were measured.

    Each is estimated from the others alone, as one is that was never trained.
    """

    median: float
    settings: int


class Costs:
    """Seconds a step for the nodes of one plan. Until anything is measured, every step costs one second.

    The regression is fitted anew each time the number of stages run has doubled, so that keeping it costs little. What
    was estimated before stands until `revise` is asked.
    """

    def __init__(self) -> None:
        self._base = 0.0
        self._weights: Features = {}
        self._estimates: dict[NodeId, float] = {}
        self._fitted_at = 0
        self.error: EstimateError | None = None  # of estimates; None where too few settings were measured to tell

    @property
    def is_fitted(self) -> bool:
        """Whether anything was measured that estimates are made from."""
        return self._fitted_at > 0

    def refit(self, plan: SearchPlan) -> bool:
        """Learn from what the plan has measured; False when too little is new to bother."""
        if plan.stages_run < max(1, 2 * self._fitted_at):
            return False
        self._fitted_at = plan.stages_run
        sample = (plan.nodes[name] for name in plan.measured[:: 1 + len(plan.measured) // MOST_FITTED])
        measured = [node for node in sample if node.seconds > 0]
        try:
            self._fit(measured)
        except np.linalg.LinAlgError:  # an estimate says only what is done first: the one before serves on
            return False
        return bool(measured)

    def seconds_per_step(self, node: Node, gpu: str | None = None) -> float:
        """The estimate for one node, on a kind of GPU; by default that on which it was trained last."""
        steps, seconds = node.rates.get(node.gpu if gpu is None else gpu, (0, 0.0))
        if steps and seconds > 0:
            return seconds / steps
        if node.steps_run and node.seconds > 0:
            return node.seconds / node.steps_run
        if not self.is_fitted:
            return 1.0
        estimate = self._estimates.get(node.id) if gpu in (None, node.gpu) else None
        return self._estimate(node, gpu) if estimate is None else estimate

    def seconds_in_gang(self, plan: SearchPlan, node: Node, kind: str, ranks: int) -> float:
        """The same on so many devices of a kind: as it was there, or else by how much faster they were measured."""
        steps, seconds = node.paces.get((kind, ranks), (0, 0.0))
        alone = self.seconds_per_step(node, gpu_of(kind))
        return seconds / steps if steps else alone / plan.times_faster(kind, ranks)

    def revise(self, node: Node) -> bool:
        """Estimate a node anew, by what was learnt since; whether that makes a difference to anybody."""
        if node.steps_run and node.seconds > 0:
            return False
        before, now = self._estimates.get(node.id), self._estimate(node)
        if before is not None and abs(now - before) <= NEAR * before:
            return False
        self._estimates[node.id] = now
        return True

    def _estimate(self, node: Node, gpu: str | None = None) -> float:
        """On a kind of GPU; by default on that where it was trained last, or on none in particular."""
        features = _features(node, node.gpu if gpu is None else gpu)
        logarithm = self._base + sum(self._weights.get(name, 0.0) * x for name, x in features.items())
        return math.exp(min(max(logarithm, -20.0), 20.0))

    def _fit(self, nodes: list[Node]) -> None:
        if not nodes:
            return
        rates = ((each, each.rates or {each.gpu: (each.steps_run, each.seconds)}) for each in nodes)
        samples = [(node, gpu, *rate) for node, by_gpu in rates for gpu, rate in by_gpu.items() if min(rate) > 0]
        features = [_features(node, gpu) for node, gpu, *_ in samples]
        names = sorted({name for each in features for name in each})
        x = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each in features])
        y = np.log([seconds / steps for _, _, steps, seconds in samples])
        root = np.sqrt([steps for _, _, steps, _ in samples])  # a mean over more steps is surer
        ridge = 1e-3 * np.eye(x.shape[1])  # and kinds of GPU differ from their mean, which stands for all others
        ridge[0, 0] = 0
        rows, values = np.vstack([x * root[:, None], ridge]), np.concatenate([y * root, np.zeros(len(ridge))])
        weights = np.linalg.lstsq(rows, values, rcond=None)[0]
        self.error = _error(rows, values - rows @ weights, root)
        self._base, self._weights = float(weights[0]), dict(zip(names, map(float, weights[1:]), strict=True))


LEAST_SETTINGS = 4
"""Of fewer, the error of an estimate says nothing."""


def _error(rows: Numbers, residuals: Numbers, root: Numbers) -> EstimateError | None:
    """Of a regression: what each of its first rows, one for a setting, would have been off without itself.

    That is its residual over one less its leverage, which is exact for least squares (Allen 1974, PRESS).
    """
    settings = len(root)
    if settings < LEAST_SETTINGS:
        return None
    leverage = (np.linalg.qr(rows)[0][:settings] ** 2).sum(axis=1)
    off = residuals[:settings] / np.maximum(1 - leverage, 1e-9) / root
    return EstimateError(float(np.median(_parts(off))), settings)


def _parts(logarithms: Numbers) -> Numbers:
    """Of how many times too much or too little was expected, the part of itself by which that is off."""
    return np.expm1(np.minimum(np.abs(logarithms), 20.0))


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of a node that took a slot's kind of GPU so many seconds, between two events of the plan's log."""

    slot: str
    node: NodeId
    gpu: str
    steps: int
    seconds: float
    begun: int
    ended: int


def hindsight(plan: SearchPlan, stages: Sequence[Timed]) -> dict[str, list[float]]:
    """By slot, how far the estimate of each of its stages was off, as a part of itself; made when the stage began.

    It knows what had ended before, as the scheduler does (prequential: Dawid 1984). Stages that began before anything
    had ended are left out. plan: as it is now; only what its nodes stand for is read.
    """
    past, costs, expected = SearchPlan(), Costs(), dict[int, float]()
    logarithms = defaultdict[str, list[float]](list)
    ends = [(stage.ended, False, number) for number, stage in enumerate(stages)]
    for _, begins, number in sorted([*ends, *((stage.begun, True, number) for number, stage in enumerate(stages))]):
        stage, of_now = stages[number], plan.nodes[stages[number].node]
        node = past.nodes.setdefault(of_now.id, Node(of_now.id, of_now.parent, of_now.start, of_now.hp))
        if not begins:
            if number in expected:
                logarithms[stage.slot].append(math.log(expected[number] * stage.steps / stage.seconds))
            past.measured += [] if node.steps_run else [node.id]
            node.take_pace(stage.gpu, stage.steps, stage.seconds)
            past.stages_run += 1
            costs.refit(past)
        elif costs.is_fitted:
            expected[number] = costs.seconds_per_step(node, stage.gpu)
    return {slot: _parts(np.array(each)).tolist() for slot, each in logarithms.items()}


def _features(node: Node, gpu: str) -> Features:
    """Logarithms of the numbers in force when the node begins, and 1 for each word ("optimizer=adam") and its GPU."""
    try:
        values = node.segment.values(node.start)
    except ArithmeticError:  # no float can hold what a sequence comes to: whoever trains with it will say so
        return {}
    features: Features = {f" on {gpu}": 1.0} if gpu else {}
    for name, value in values.items():
        if isinstance(value, str):
            features[f"{name}={value}"] = 1.0
        elif value is not None:
            features[name] = _logarithm(value)
    return features


def _logarithm(value: float) -> float:
    """Of one more than its size; of what no float can hold, that of the largest one."""
    try:
        size = abs(float(value))
    except OverflowError:
        size = math.inf
    return math.log1p(min(size, sys.float_info.max)) if size == size else 0.0


MOSTLY = 0.9
"""For so much of a stage as many slots must have been busy, for it to count as one beside that many."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A stage that had a slot from `begun_at` to `ended_at`: its steps took `seconds` up to then.

    kind: what steps have in common that take equally long on a GPU of their own. steps: 0 where they tell nothing.
    """

    slot: str
    kind: Hashable
    steps: int
    seconds: float
    begun_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """While so many slots of a GPU were busy, a step took so many times as long as on one slot alone."""

    gpu: str
    slots: int
    times: float

    @property
    def gain(self) -> float:
        """How many times as fast the slots get on together as one alone."""
        return self.slots / self.times


def slowdowns(stages: Iterable[Ran]) -> list[Slowdown]:
    """What stages on slots that share a GPU tell, by GPU and number of slots, where that was seen beside one alone."""
    shared = defaultdict[str, list[Ran]](list)
    for stage in sorted(stages, key=lambda stage: (stage.slot, stage.begun_at)):
        if gpu := shared_gpu(stage.slot):
            shared[gpu].append(stage)
    return [slowdown for gpu, ran in shared.items() for slowdown in _of_gpu(gpu, ran)]


def _of_gpu(gpu: str, stages: Sequence[Ran]) -> Iterator[Slowdown]:
    """stages: by slot, and by when they began."""
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


def _occupancy(stages: Sequence[Ran]) -> Callable[[Ran], int]:
    """How many slots were busy during a stage; 0 where that changed too much for one number."""
    edges = sorted(edge for begin, end in _spells(stages) for edge in ((begin, 1), (end, -1)))
    times = np.array([time for time, _ in edges])
    slots = np.cumsum([change for _, change in edges])[:-1]
    lasted = [np.concatenate([[0.0], np.cumsum((slots == n) * np.diff(times))]) for n in range(1, slots.max() + 1)]

    def occupancy(stage: Ran) -> int:
        window = [stage.ended_at - stage.seconds, stage.ended_at]
        for number, seconds in enumerate(lasted, start=1):
            begin, end = np.interp(window, times, seconds)
            if end - begin >= MOSTLY * stage.seconds:
                return number
        return 0

    return occupancy


def _spells(stages: Iterable[Ran]) -> Iterator[tuple[float, float]]:
    """When slots were busy without a break; a slot that trains several stages at once is busy once."""
    for _, group in groupby(stages, key=lambda stage: stage.slot):
        first, *others = group
        begin, end = first.begun_at, first.ended_at
        for stage in others:
            if stage.begun_at > end:
                yield begin, end
                begin, end = stage.begun_at, stage.ended_at
            end = max(end, stage.ended_at)
        yield begin, end
