"""Seconds per step, measured or estimated by regression.

TreeML §5.2 estimates with linear regression on profiles. Ours uses logarithms, because doubling a batch size multiplies
a step's time, and so that estimates are never negative.
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
"""The most nodes in the regression, taken evenly from all measured ones."""

NEAR = 0.05
"""A smaller relative change of an estimate is ignored."""


@dataclass(frozen=True, slots=True)
class EstimateError:
    """The relative error of estimates of a step's seconds: the median over `settings` measured settings.

    Each setting is estimated from the others only, like one that was never trained.
    """

    median: float
    settings: int


class Costs:
    """Seconds per step for the nodes of one plan. Before any measurement, every step costs one second.

    To keep it cheap, the regression is refitted only when the number of trained stages has doubled. Earlier estimates
    stay until `revise` is called.
    """

    def __init__(self) -> None:
        self._base = 0.0
        self._weights: Features = {}
        self._estimates: dict[NodeId, float] = {}
        self._fitted_at = 0
        self.error: EstimateError | None = None  # None if too few settings are measured

    @property
    def is_fitted(self) -> bool:
        """Whether there are measurements to estimate from."""
        return self._fitted_at > 0

    def refit(self, plan: SearchPlan) -> bool:
        """Fit the regression to the plan's measurements. False if too few are new, or the fit fails."""
        if plan.stages_run < max(1, 2 * self._fitted_at):
            return False
        self._fitted_at = plan.stages_run
        sample = (plan.nodes[name] for name in plan.measured[:: 1 + len(plan.measured) // MOST_FITTED])
        measured = [node for node in sample if node.seconds > 0]
        return bool(measured) and self._fit(measured)

    def seconds_per_step(self, node: Node, gpu: str | None = None) -> float:
        """The estimate for a node on a kind of GPU, by default on the one that trained it last."""
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
        """The estimate on several devices of a kind: measured there, or scaled by their measured speed-up."""
        steps, seconds = node.paces.get((kind, ranks), (0, 0.0))
        alone = self.seconds_per_step(node, gpu_of(kind))
        return seconds / steps if steps else alone / plan.speedup_of(kind, ranks)

    def revise(self, node: Node) -> bool:
        """Update the estimate of a node after a new fit. Returns whether it has changed notably."""
        if node.steps_run and node.seconds > 0:
            return False
        before, now = self._estimates.get(node.id), self._estimate(node)
        if before is not None and abs(now - before) <= NEAR * before:
            return False
        self._estimates[node.id] = now
        return True

    def _estimate(self, node: Node, gpu: str | None = None) -> float:
        features = _features(node, node.gpu if gpu is None else gpu)
        logarithm = self._base + sum(self._weights.get(name, 0.0) * x for name, x in features.items())
        return math.exp(min(max(logarithm, -20.0), 20.0))

    def _fit(self, nodes: list[Node]) -> bool:
        rates = ((each, each.rates or {each.gpu: (each.steps_run, each.seconds)}) for each in nodes)
        samples = [(node, gpu, *rate) for node, by_gpu in rates for gpu, rate in by_gpu.items() if min(rate) > 0]
        features = [_features(node, gpu) for node, gpu, *_ in samples]
        logarithms = [math.log(seconds / steps) for *_, steps, seconds in samples]
        fitted = _regression(features, logarithms, [steps for *_, steps, _ in samples])
        if fitted is None:  # keep the previous fit: estimates affect only the order of work
            return False
        self._base, self._weights, off = fitted
        self.error = EstimateError(median(_relative_errors(off)), len(off)) if len(off) >= LEAST_SETTINGS else None
        return True


LEAST_SETTINGS = 4
"""The fewest measured settings for a meaningful error of estimates."""


def _regression(
    features: Sequence[Mapping[str, float]], logarithms: Sequence[float], counts: Sequence[int]
) -> tuple[float, dict[str, float], list[float]] | None:
    """The least-squares fit of one logarithm for each row of features: base, weights of features, and errors.

    counts: the number of steps that each logarithm averages, used as its weight. errors: of each row if it is predicted
    only from the others, which is its residual divided by one minus its leverage, exactly for least squares (Allen
    1974, PRESS). None if floats cannot hold the solution.
    """
    if len(logarithms) == 1:
        return logarithms[0], {}, [0.0]
    import numpy as np  # imported here because it is slow, and neither displaying a study nor a single stage needs it

    names = sorted({name for each in features for name in each})
    x = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each in features])
    root = np.sqrt(counts)
    ridge = 1e-3 * np.eye(x.shape[1])  # makes the base the mean over kinds of GPU, which estimates unknown kinds
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


def _relative_errors(logarithms: Iterable[float]) -> list[float]:
    """The relative error of each factor between estimate and measurement, given as a logarithm."""
    return [math.expm1(min(abs(each), 20.0)) for each in logarithms]


@dataclass(frozen=True, slots=True)
class TimedStage:
    """Steps of a node on a slot's kind of GPU, their seconds, and the positions of their first and last log event."""

    slot: str
    node: NodeId
    gpu: str
    steps: int
    seconds: float
    begun: int
    ended: int


def hindsight_errors(plan: SearchPlan, stages: Sequence[TimedStage]) -> dict[str, list[float]]:
    """By slot, the relative error of the estimate for each of its stages at the time when the stage began.

    As in the scheduler, an estimate uses only stages that had ended before (prequential: Dawid 1984). Stages that began
    before any end are left out. plan: the current one; only the hyper-parameters of its nodes are read.
    """
    past, costs, expected = SearchPlan(), Costs(), dict[int, float]()
    logarithms = defaultdict[str, list[float]](list)
    ends = [(stage.ended, False, number) for number, stage in enumerate(stages)]
    for _, begins, number in sorted([*ends, *((stage.begun, True, number) for number, stage in enumerate(stages))]):
        stage, now = stages[number], plan.nodes[stages[number].node]
        node = past.nodes.setdefault(now.id, Node(now.id, now.parent, now.start, now.hp))
        if not begins:
            if number in expected:
                logarithms[stage.slot].append(math.log(expected[number] * stage.steps / stage.seconds))
            past.measured += [] if node.steps_run else [node.id]
            node.add_timing(stage.gpu, stage.steps, stage.seconds)
            past.stages_run += 1
            costs.refit(past)
        elif costs.is_fitted:
            expected[number] = costs.seconds_per_step(node, stage.gpu)
    return {slot: _relative_errors(each) for slot, each in logarithms.items()}


def _features(node: Node, gpu: str) -> Features:
    """The logarithms of numbers at the node's start, and 1 for each word ("optimizer=adam") and for the GPU."""
    try:
        values = node.segment.values(node.start)
    except ArithmeticError:  # a value exceeds the range of floats: training will report that
        return {}
    features: Features = {f" on {gpu}": 1.0} if gpu else {}
    for name, value in values.items():
        if isinstance(value, str | tuple):
            features[f"{name}={value}"] = 1.0
        elif value is not None:
            features[name] = _logarithm(value)
    return features


def _logarithm(value: float) -> float:
    """log(1 + |value|), limited to the range of floats."""
    try:
        size = abs(float(value))
    except OverflowError:
        size = math.inf
    return math.log1p(min(size, sys.float_info.max)) if size == size else 0.0
