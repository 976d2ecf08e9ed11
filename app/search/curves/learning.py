"""Learns from ended curves: the weights of the nodes, and how far to trust each prediction.

Empirical Bayes (Robbins 1956): the weights make the ended curves likely, found by expectation maximization (Dempster,
Laird and Rubin 1977, §4.3, for finite mixtures), as if a few more trials had weighted all nodes equally. Stacking: the
shares of several predictions maximize the accuracy on ended curves, with each curve left out of its own prediction
(Yao, Vehtari, Simpson and Gelman 2018, "Using stacking to average Bayesian predictive distributions", §3.1). On the
ended curves the whole is as good as the best of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.search.curves.mixtures import NOTHING, Array, Integers
from app.search.curves.quadrature import NUM_NODES, Clock, Fit, evidence, fits

EQUAL_WEIGHTS = 3.0
"""The equal weights count as this many trials."""
ROUNDS = 5
"""Of expectation maximization. More would overfit the weights to the few curves."""
PAIRS = 1.0
"""This many pairs say that the last value deserves no trust."""
VOTES = np.array([2.2, 0.4, 1.0, 0.4])
"""The prior shares of the curve alone, the drift, that of similar curves, and a surprise: four trials' worth."""
STACKING_ROUNDS = 30


class View(NamedTuple):
    """The part of a curve since its last bend, as the quadrature takes it.

    The clock is 0 at step `begin` and 1 `length` steps later, at the horizon. Values are in units, relative to the
    median of the study, over `factor`: more than 1 for a curve that leaves the range of the study, and has units of its
    own.
    """

    clock: Clock
    values: Array
    begin: int
    length: int
    factor: float


@dataclass(frozen=True, slots=True)
class Prior:
    """Logarithms of the nodes' weights, learned from ended curves. The parts of a curve start at begins[curve].

    parts: the weight of each node for each part of a curve.
    """

    weights: Array
    parts: Array
    begins: Integers

    def leave_out(self, curves: Sequence[int]) -> Array:
        """The weights (a row each) learned from all but one of the curves."""
        begins, ends = self.begins[:-1][curves], self.begins[1:][curves]
        own = np.stack([self.parts[begin:end].sum(axis=0) for begin, end in zip(begins, ends, strict=True)])
        rest = np.maximum(self.parts.sum(axis=0) - own, 0)
        return _log_weights(rest, (len(self.parts) - (ends - begins))[:, None])


def group_by_clock(views: Sequence[View]) -> dict[Clock, list[int]]:
    """The indices of the views with the same times, which are computed together."""
    groups: dict[Clock, list[int]] = defaultdict(list)
    for number, view in enumerate(views):
        groups[view.clock].append(number)
    return groups


def posteriors(views: Sequence[View], log_prior: Array) -> list[Fit]:
    """The posterior of each view. The prior is one for all, or has a row for each."""
    results: dict[int, Fit] = {}
    for clock, numbers in group_by_clock(views).items():
        values = np.stack([views[number].values for number in numbers])
        prior = log_prior if log_prior.ndim == 1 else log_prior[numbers]
        results.update(zip(numbers, fits(clock, values, prior), strict=True))
    return [results[number] for number in range(len(views))]


def learn_prior(views: Sequence[View], owner: Sequence[int]) -> Prior:
    """Learn from the parts of ended curves. owner: the index of each part's curve, ascending from 0."""
    parts, votes = np.empty((len(views), NUM_NODES)), np.full(NUM_NODES, EQUAL_WEIGHTS / NUM_NODES)
    for clock, numbers in group_by_clock(views).items():
        for block, logs in evidence(clock, np.stack([views[number].values for number in numbers])):
            parts[np.array(numbers)[block]] = _relative(logs)
    parts *= _likeliest(parts, votes, ROUNDS - 1)
    parts /= parts.sum(axis=1, keepdims=True)
    begins = np.flatnonzero(np.diff(owner, prepend=-1, append=len(views)))
    return Prior(_log_weights(parts.sum(axis=0), len(views)), parts, begins)


def _log_weights(parts: Array, number: int | Integers) -> Array:
    """The logarithms of the nodes' weights, given their counts over a number of parts."""
    return np.asarray(np.log((parts + EQUAL_WEIGHTS / NUM_NODES) / (number + EQUAL_WEIGHTS)))


def learn_pool(alone: Array, others: Array, widths: Sequence[float]) -> tuple[Array, float]:
    """The shares, and the width of the first prediction, that make the outcomes (a row each) most likely.

    alone: log densities of the first prediction, a column for each width. others: of the other predictions. A pool of
    predictions is wider than each of them, so the first may have to be narrowed (the spread-adjusted linear pool of
    Gneiting and Ranjan 2013, "Combining predictive distributions").
    """
    best, shares, chosen = -np.inf, np.empty(0), widths[0]
    for width, column in zip(widths, alone.T, strict=True):
        together = np.column_stack([column, others])
        candidate = shares_of(together)
        score = float((together.max(axis=1) + np.log(_relative(together) @ candidate)).sum())
        if score > best:
            best, shares, chosen = score, candidate, width
    return shares, chosen


def shares_of(log_densities: Array) -> Array:
    """The shares (of each column) that make the outcomes (a row each) most likely, with the prior votes."""
    return _likeliest(_relative(log_densities), VOTES, STACKING_ROUNDS)


def _relative(log_densities: Array) -> Array:
    """Densities relative to the greatest of their row."""
    logs = log_densities - log_densities.max(axis=1, keepdims=True)
    return np.asarray(np.exp(np.maximum(logs, NOTHING, out=logs), out=logs))


def _likeliest(densities: Array, votes: Array, rounds: int) -> Array:
    """Expectation maximization of the weights of a mixture's components (a column each), with the votes as prior."""
    weights = votes / votes.sum()
    for _ in range(rounds):
        parts = weights * ((1 / (densities @ weights)) @ densities)
        weights = (parts + votes) / (len(densities) + votes.sum())
    return np.asarray(weights)


def learn_trust(parts: Array, predicted: Array, verdicts: Array, hits: Array) -> Array:
    """The share of the last value's verdict, whether a target is reached, that minimizes the Brier score.

    By least squares (Breiman 1996, "Stacked regressions"), as if PAIRS more pairs of prediction and outcome had said
    that the verdict adds nothing. The result has a row for either verdict, because "reached" and "not yet" say
    different things about the end: the share at the beginning, and its growth until the horizon. parts: at which part
    of the horizon each prediction was made.
    """
    rows = []
    for verdict in (0, 1):
        chosen = verdicts == verdict
        apart = (verdicts - predicted)[chosen, None] * np.stack([np.ones_like(parts), parts], axis=1)[chosen]
        rows.append(np.linalg.solve(apart.T @ apart + PAIRS * np.eye(2), apart.T @ (hits - predicted)[chosen]))
    return np.stack(rows)
