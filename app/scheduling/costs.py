"""How long a step takes: measured, or estimated by regression.

TreeML §5.2 estimates with linear regression on profiles; ours is on the logarithms, because doubling a batch size
multiplies a step's time and never makes it negative.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from app.domain.search_plan import Node, SearchPlan
from app.domain.slots import gpu_of
from app.domain.terms import NodeId

Features = dict[str, float]

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
        return bool(measured) and self._fit(measured)

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
        return seconds / steps if steps else alone / plan.speedup_of(kind, ranks)

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

    def _fit(self, nodes: list[Node]) -> bool:
        rates = ((each, each.rates or {each.gpu: (each.steps_run, each.seconds)}) for each in nodes)
        samples = [(node, gpu, *rate) for node, by_gpu in rates for gpu, rate in by_gpu.items() if min(rate) > 0]
        features = [_features(node, gpu) for node, gpu, *_ in samples]
        logarithms = [math.log(seconds / steps) for *_, steps, seconds in samples]
        fitted = _regression(features, logarithms, [steps for *_, steps, _ in samples])
        if fitted is None:  # an estimate says only what is done first: the one before serves on
            return False
        self._base, self._weights, off = fitted
        self.error = EstimateError(median(_parts(off)), len(off)) if len(off) >= LEAST_SETTINGS else None
        return True


LEAST_SETTINGS = 4
"""Of fewer, the error of an estimate says nothing."""


def _regression(
    features: Sequence[Mapping[str, float]], logarithms: Sequence[float], counts: Sequence[int]
) -> tuple[float, dict[str, float], list[float]] | None:
    """The base, and the weight of each feature, that fit one logarithm for each row of features best.

    counts: over how many steps each is a mean, which makes it so much surer. Third, how far each would have been off,
    had the others alone foretold it: its residual over one less its leverage, which is exact for least squares (Allen
    1974, PRESS). None where no float can hold a solution.
    """
    import numpy as np  # slow to import, and seldom needed: whoever shows a study only reads estimates

    names = sorted({name for each in features for name in each})
    x = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each in features])
    root = np.sqrt(counts)
    ridge = 1e-3 * np.eye(x.shape[1])  # and kinds of GPU differ from their mean, which stands for all others
    ridge[0, 0] = 0
    rows = np.vstack([x * root[:, None], ridge])
    values = np.concatenate([np.array(logarithms) * root, np.zeros(len(ridge))])
    try:
        weights = np.linalg.lstsq(rows, values, rcond=None)[0]
        leverage = (np.linalg.qr(rows)[0][: len(root)] ** 2).sum(axis=1)
    except np.linalg.LinAlgError:
        return None
    off = (values - rows @ weights)[: len(root)] / np.maximum(1 - leverage, 1e-9) / root
    return float(weights[0]), dict(zip(names, map(float, weights[1:]), strict=True)), off.tolist()


def _parts(logarithms: Iterable[float]) -> list[float]:
    """Of how many times too much or too little was expected, the part of itself by which that is off."""
    return [math.expm1(min(abs(each), 20.0)) for each in logarithms]


@dataclass(frozen=True, slots=True)
class TimedStage:
    """Steps of a node that took a slot's kind of GPU so many seconds, between two events of the plan's log."""

    slot: str
    node: NodeId
    gpu: str
    steps: int
    seconds: float
    begun: int
    ended: int


def hindsight_errors(plan: SearchPlan, stages: Sequence[TimedStage]) -> dict[str, list[float]]:
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
            node.add_timing(stage.gpu, stage.steps, stage.seconds)
            past.stages_run += 1
            costs.refit(past)
        elif costs.is_fitted:
            expected[number] = costs.seconds_per_step(node, stage.gpu)
    return {slot: _parts(each) for slot, each in logarithms.items()}


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
