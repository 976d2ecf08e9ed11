"""The exact posterior of a curve's shape given its points, by quadrature and conjugate algebra.

A curve in units is level + gain * shape(clock), with correlated noise:

    z_i = level + gain * shape(t_i) + r_i,    cov(r_i, r_j) = sigma^2 exp(-|t_i - t_j| / memory)

(Ornstein and Uhlenbeck 1930; a memory of 0 is the independent noise of Domhan et al. 2015, §3.2, a long one makes the
last value the best guess). A node fixes shape, memory, sigma and the prior of the gain. Level and gain then have a
normal posterior in closed form (Bishop 2006, eq. 3.50 and 3.51), and so has every later value (3.58). All nodes
together, each weighted by its evidence (3.86), are the posterior: a mixture, without sampling or an optimizer. The
papers sample it with 70,000 to 250,000 steps of a Markov chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from app.search.curves.curve import NUM_SHAPES, shapes
from app.search.curves.mixtures import Array, Integers, Mixtures

Clock = tuple[float, ...]
"""When a curve was evaluated, ascending; 0 is its beginning, 1 the horizon."""

MEMORIES = np.array([0.0, 2.0])
SIGMAS = 10 ** np.linspace(-4.5, -0.5, 9)
GAINS = np.array([(0.0, 0.01), (0.1, 0.1), (0.4, 0.5)])
"""Mean and standard deviation of the gain: none, some, or a lot."""
LEVEL_SPREAD = 0.5
"""Standard deviation of the level, whose mean is 0."""

GRID = (len(MEMORIES), NUM_SHAPES, len(SIGMAS), len(GAINS))
NUM_NODES = int(np.prod(GRID))
NEGLIGIBLE = 10.0
"""A node with less than exp(-10) of the largest weight is left out."""
AT_ONCE = 32
"""How many curves are processed at a time, to fit the processor's cache."""

_LEAST = 1e-24
_MEMORY, _SHAPE, _SIGMA, _GAIN = (axis.ravel() for axis in np.indices(GRID))
_VARIANCE = SIGMAS[:, None] ** 2
_LEVEL_PRECISION = LEVEL_SPREAD**-2.0
_PRECISION = GAINS[:, 1] ** -2.0
_PULL = GAINS[:, 0] * _PRECISION


def uniform() -> Array:
    """The logarithms of equal weights of all nodes."""
    return np.full(NUM_NODES, -np.log(NUM_NODES))


def correlation(gap: Array) -> Array:
    """The correlation of the noise over a gap, for each memory (a new first axis)."""
    memories = MEMORIES.reshape(-1, *(1 for _ in gap.shape))
    return np.where(memories > 0, np.exp(-gap / np.where(memories > 0, memories, 1.0)), 0.0)


class Design:
    """All that does not depend on the values: shared by all curves that were evaluated at the same times.

    Level and gain are eliminated one after the other. With few points and little noise, the textbook formulas would
    lose all digits in differences of large numbers.
    """

    def __init__(self, clock: Clock) -> None:
        times = np.array(clock, dtype=float)
        self._decay = correlation(np.diff(times))
        self._new = np.sqrt(1 - self._decay**2)
        self._level, self._shape = self._whiten(np.ones(len(clock))), self._whiten(shapes(times))
        self._levels, self._both = (self._level**2).sum(axis=1), np.einsum("mn,msn->ms", self._level, self._shape)
        self._divisor = np.where(self._levels > 0, self._levels, 1.0)
        self._slope = self._both / self._divisor[:, None]
        self._coefficients, self.covariance = self._evidence()

    def sums(self, values: Array) -> tuple[Array, Array, Array]:
        """The sufficient statistics of each curve (a row of `values`).

        Its products with the level and with the part of each shape orthogonal to the level, and the squared norm of its
        own part orthogonal to the level.
        """
        white = self._whiten(values)
        level = np.einsum("mn,mbn->mb", self._level, white)
        gain = self._shape @ white.transpose(0, 2, 1) - self._slope[:, :, None] * level[:, None]
        return level, gain, (white**2).sum(axis=2) - level**2 / self._divisor[:, None]

    def evidence(self, sums: tuple[Array, Array, Array]) -> Array:
        """The log evidence of each node (a column) for each curve (a row)."""
        x, y, zz = np.broadcast_arrays(sums[0][:, None], sums[1], sums[2][:, None])
        features = np.stack([np.ones(x.shape), x, y, x * x, x * y, y * y, zz], axis=-1)
        return (features @ self._coefficients).transpose(2, 0, 1, 3).reshape(-1, NUM_NODES)

    def lines(self, sums: tuple[Array, Array, Array], row: Integers, node: Integers) -> tuple[Array, Array]:
        """Mean level and gain of some curves' nodes."""
        memory, shape, variance = _MEMORY[node], _SHAPE[node], SIGMAS[_SIGMA[node]] ** 2
        x, y = sums[0][memory, row], sums[1][memory, shape, row]
        total = self._levels[memory] + _LEVEL_PRECISION * variance
        pull = _PULL[_GAIN[node]] + _LEVEL_PRECISION * self._slope[memory, shape] * x / total
        gain = self.covariance[2, node] * (y / variance + pull)
        return (x - self._both[memory, shape] * gain) / total, gain

    def _whiten(self, values: Array) -> Array:
        """Values at these times (the last axis) with the noise decorrelated, for each memory."""
        between = (len(MEMORIES), *(1 for _ in values.shape[1:]), self._decay.shape[1])
        white = np.repeat(values[None], len(MEMORIES), axis=0)
        white[..., 1:] -= self._decay.reshape(between) * values[..., :-1]
        white[..., 1:] /= self._new.reshape(between)
        return white

    def _evidence(self) -> tuple[Array, Array]:
        """The coefficients of the log evidence, which is linear in 1, x, y, xx, xy, yy, zz, where x, y, zz are the
        `sums`.

        And for each node the variance of the level, its covariance with the gain, and the variance of the gain.
        """
        levels, slope, both = (
            self._levels[:, None, None, None],
            self._slope[..., None, None],
            self._both[..., None, None],
        )
        total = levels + _LEVEL_PRECISION * _VARIANCE
        rest = ((self._shape**2).sum(axis=2) - self._slope * self._both)[..., None, None]
        gain = 1 / (rest / _VARIANCE + _PRECISION + _LEVEL_PRECISION * slope * both / total)
        lever = _LEVEL_PRECISION * slope / total
        outer = _LEVEL_PRECISION / (self._divisor[:, None, None, None] * total)
        constant = -0.5 * (
            self._level.shape[1] * np.log(2 * np.pi * _VARIANCE)
            + 2 * np.log(self._new).sum(axis=1)[:, None, None, None]
            + np.log(total / (_LEVEL_PRECISION * _VARIANCE * gain * _PRECISION))
            + GAINS[:, 0] * _PULL
        )
        rows = (
            constant + 0.5 * gain * _PULL**2,
            gain * _PULL * lever,
            gain * _PULL / _VARIANCE,
            0.5 * (gain * lever**2 - outer),
            gain * lever / _VARIANCE,
            0.5 * gain / _VARIANCE**2,
            np.broadcast_to(-0.5 / _VARIANCE, GRID),
        )
        covariance = np.stack([_VARIANCE / total + (both / total) ** 2 * gain, -both / total * gain, gain])
        coefficients = np.stack(rows, axis=2).reshape(len(MEMORIES), NUM_SHAPES, len(rows), -1)
        return coefficients, covariance.reshape(3, -1)


design_of = lru_cache(maxsize=64)(Design)


def evidence(clock: Clock, values: Array) -> Iterator[tuple[slice, Array]]:
    """The log evidence of each node (a column) for curves (a row each) with these times, some rows after others."""
    design = design_of(clock)
    for block in _blocks(len(values)):
        yield block, design.evidence(design.sums(values[block]))


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(begin, begin + AT_ONCE) for begin in range(0, rows, AT_ONCE))


@dataclass(frozen=True, slots=True)
class Fit:
    """The posterior of one curve: the nodes that matter, their weights, and level and gain at each."""

    node: Integers
    weight: Array
    level: Array
    gain: Array
    covariance: Array
    clock: float
    last: float
    """When the last point was, and its value; both NaN of a curve without points."""


def fits(clock: Clock, values: Array, log_prior: Array) -> list[Fit]:
    """The posteriors of curves (a row each) with these times, given the logarithms of the nodes' prior weights."""
    design, results = design_of(clock), []
    for block in _blocks(len(values)):
        results += _fits(design, clock, values[block], log_prior if log_prior.ndim == 1 else log_prior[block])
    return results


def _fits(design: Design, clock: Clock, values: Array, log_prior: Array) -> list[Fit]:
    sums = design.sums(values)
    logs = design.evidence(sums)
    logs += log_prior
    logs -= logs.max(axis=1, keepdims=True)
    chosen = np.flatnonzero(logs > -NEGLIGIBLE)
    row, node = np.divmod(chosen, NUM_NODES)
    weight = np.exp(logs.ravel()[chosen])
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    weight /= np.add.reduceat(weight, begins)[row]
    level, gain = design.lines(sums, row, node)
    covariance = design.covariance[:, node]
    when, lasts = (clock[-1], values[:, -1]) if clock else (np.nan, np.full(len(values), np.nan))
    ends = [*begins[1:], len(row)]
    return [
        Fit(node[a:b], weight[a:b], level[a:b], gain[a:b], covariance[:, a:b], when, float(last))
        for a, b, last in zip(begins, ends, lasts, strict=True)
    ]


class Fits:
    """The posteriors of several curves."""

    def __init__(self, several: Sequence[Fit]) -> None:
        self._rows = len(several)
        self._row = np.repeat(np.arange(len(several)), [len(fit.node) for fit in several])
        self._node = np.concatenate([fit.node for fit in several])
        self._weight = np.concatenate([fit.weight for fit in several])
        self._level = np.concatenate([fit.level for fit in several])
        self._gain = np.concatenate([fit.gain for fit in several])
        self._covariance = np.concatenate([fit.covariance for fit in several], axis=1)
        clock = np.array([fit.clock for fit in several])
        self._seen = ~np.isnan(clock)
        self._clock, self._last = np.where(self._seen, clock, 0.0), np.nan_to_num([fit.last for fit in several])

    def predict(self, clock: Array) -> Mixtures:
        """The mixture of the curves' values, each at a time of its own."""
        row, node = self._row, self._node
        before, later = self._shapes(self._clock, clock)
        gap = np.where(self._seen, np.maximum(clock - self._clock, 0), np.inf)
        decay = correlation(gap)[_MEMORY[node], row]
        level, gain = 1 - decay, later - decay * before
        mean = decay * self._last[row] + level * self._level + gain * self._gain
        own, both, other = self._covariance
        variance = level**2 * own + 2 * level * gain * both + gain**2 * other
        variance = variance + SIGMAS[_SIGMA[node]] ** 2 * (1 - decay**2)
        return Mixtures(row, self._weight, mean, np.sqrt(np.maximum(variance, _LEAST)), self._rows)

    def _shapes(self, *clocks: Array) -> list[Array]:
        """The shape of each node at the times of its curve; equal times are computed once."""
        times, which = np.unique(np.concatenate(clocks), return_inverse=True)
        every = shapes(times)
        return [every[_SHAPE[self._node], at[self._row]] for at in np.split(which, len(clocks))]
