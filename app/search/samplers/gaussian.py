"""A Gaussian process over points of the unit cube, and its expected improvement.

Matérn 5/2 with a length for each parameter (Snoek et al. 2012, §3.1), as a mix of one process over all parameters and a
sum of one for each (Duvenaud et al. 2011, arXiv 1112.4394), so that the effect of a single parameter is learned from
few points. Lengths, noise, and the share of the sum maximize the posterior. The prior of lengths, which grow with the
square root of the number of parameters, is that of Hvarfner et al. 2024 (arXiv 2402.02229, eq. 7); ours are also longer
for parameters that change only a part of a trial. Losses are standardized, and outliers above are clipped: their size
says nothing about the location of the best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import squareform
from scipy.special import erfcx, expit, ndtr

Numbers = npt.NDArray[np.float64]

LENGTH_SD = 3**0.5
LENGTH = 2**0.5 - LENGTH_SD**2
"""The mean of a length's logarithm for one parameter: the mode of the length itself."""
SHARE_SD, MOST_SHARE = 2.0, 4.0
"""The log-odds of the sum's share: standard deviation, and bound."""
NOISE, NOISE_SD, LEAST_NOISE = -8.0, 2.0, -12.0
"""The logarithm of the noise relative to the variance of the losses: mean, standard deviation, and minimum."""
FENCE = 3.0
"""Losses are clipped this many interquartile ranges above the upper quartile (Tukey's outer fence)."""

MOST = 1e100
"""Losses are clipped at this size, so that their squares are finite."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """Fitted to losses. points: [n, p] in the unit cube. groups: the index of each column's parameter.

    losses: [n], standardized by center and scale. lengths: by parameter. share: of the sum.
    """

    points: Numbers
    losses: Numbers
    center: float
    scale: float
    groups: npt.NDArray[np.int64]
    lengths: Numbers
    share: float
    noise: float
    factor: Numbers
    weights: Numbers

    def predict(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """Mean and standard deviation of the standardized loss at points [m, p]: each [m]."""
        across = _kernel(_squares(points, self.points, self.groups), self.lengths, self.share)
        within = solve_triangular(self.factor, across.T, lower=True)
        return across @ self.weights, np.sqrt(np.maximum(1e-12, 1 - (within**2).sum(axis=0)))

    def assume_means(self, points: Numbers) -> GaussianProcess:
        """Condition on the mean at the points of running trials (Ginsbourger et al. 2010)."""
        if not len(points):
            return self
        losses = np.concatenate([self.losses, self.predict(points)[0]])
        return _factorize(replace(self, points=np.vstack([self.points, points]), losses=losses))

    def log_improvement(self, points: Numbers, best: float) -> Numbers:
        """The logarithm of the expected improvement on `best`, a standardized loss, at points [m, p] (Ament et al.
        2023, eq. 9).
        """
        mean, deviation = self.predict(points)
        return _log_h((best - mean) / deviation) + np.log(deviation)


def fit_process(
    points: Numbers, losses: Numbers, groups: npt.NDArray[np.int64], changed: Numbers | None = None
) -> GaussianProcess:
    """The process with the most probable lengths, noise and share.

    changed: [parameters], the part of a trial that the parameter changes, above 0 and at most 1; None for all of it.
    """
    losses = np.clip(losses, -MOST, MOST)
    low, high = np.quantile(losses, [0.25, 0.75])
    pulled = np.minimum(losses, high + FENCE * (high - low)) if high > low else losses
    center, scale = float(pulled.mean()), float(pulled.std()) or 1.0
    ours, count = (pulled - center) / scale, int(groups.max(initial=-1)) + 1
    lengths = LENGTH + np.log(max(1, count)) / 2 - np.log(np.ones(count) if changed is None else changed)
    usual = np.append(lengths, [NOISE, 0.0])
    bounds = [(-3.0, 6.0)] * count + [(LEAST_NOISE, 0.0), (-MOST_SHARE, MOST_SHARE)]
    pairs = _squares(points, points, groups)[np.triu_indices(len(points), 1)]
    optimum = minimize(_cost, usual, args=(pairs, ours, usual), jac=True, method="L-BFGS-B", bounds=bounds).x
    lengths, noise, share = np.exp(optimum[:-2]), float(np.exp(optimum[-2])), float(expit(optimum[-1]))
    none = np.empty(0)
    return _factorize(GaussianProcess(points, ours, center, scale, groups, lengths, share, noise, none, none))


def _factorize(process: GaussianProcess) -> GaussianProcess:
    """Compute the factor and weights from points and losses."""
    squares = _squares(process.points, process.points, process.groups)
    kernel = _kernel(squares, process.lengths, process.share) + (process.noise + 1e-8) * np.eye(len(squares))
    factor = cholesky(kernel, lower=True)
    return replace(process, factor=factor, weights=cho_solve((factor, True), process.losses))


def _cost(at: Numbers, pairs: Numbers, losses: Numbers, usual: Numbers) -> tuple[float, Numbers]:
    """The negative log posterior of lengths, noise and share, and its gradient.

    pairs: [n (n - 1) / 2, parameters], the squared differences of each two points.
    """
    rates, noise, share = np.exp(-2 * at[:-2]), np.exp(at[-2]), expit(at[-1])
    jointly, apart = pairs @ rates, pairs * rates
    (joint, joint_slope), (each, each_slope) = _matern(jointly), _matern(apart)
    single = each.mean(axis=1)
    kernel = squareform((1 - share) * joint + share * single) + (1 + noise + 1e-8) * np.eye(len(losses))
    factor = cholesky(kernel, lower=True)
    weights = cho_solve((factor, True), losses)
    inner = np.outer(weights, weights) - cho_solve((factor, True), np.eye(len(losses)))
    twice = 2 * squareform(inner, checks=False)
    by_length = (1 - share) * ((joint_slope * twice) @ apart)
    by_length += share / max(1, len(rates)) * np.einsum("i,ij,ij->j", twice, each_slope, apart)
    by_share = twice @ (single - joint) * share * (1 - share) / 2
    slopes = -np.append(by_length, [np.trace(inner) * noise / 2, by_share])
    sds = np.append(np.full(len(rates), LENGTH_SD), [NOISE_SD, SHARE_SD])
    away = (at - usual) / sds
    value = losses @ weights / 2 + np.log(np.diag(factor)).sum() + away @ away / 2
    return float(value), slopes + away / sds


def _squares(one: Numbers, other: Numbers, groups: npt.NDArray[np.int64]) -> Numbers:
    """The squared differences by parameter: [n, m, parameters]."""
    squares = (one[:, None, :] - other[None, :, :]) ** 2
    return np.asarray(squares @ (groups[:, None] == np.arange(groups.max(initial=-1) + 1)))


def _kernel(squares: Numbers, lengths: Numbers, share: float) -> Numbers:
    scaled = squares / lengths**2
    return np.asarray((1 - share) * _matern(scaled.sum(axis=2))[0] + share * _matern(scaled)[0].mean(axis=2))


def _matern(square: Numbers) -> tuple[Numbers, Numbers]:
    """The kernel at squared distances, and minus its derivative by them."""
    far = np.sqrt(5 * square)
    falling = np.exp(-far)
    slope = (1 + far) * falling
    return slope + far**2 / 3 * falling, 5 / 6 * slope


def _log_h(z: Numbers) -> Numbers:
    """The logarithm of phi(z) + z Phi(z), with full precision also far below 0."""
    near, far = np.maximum(z, -1.0), np.minimum(z, -1.0)
    above = np.log(np.exp(-(near**2) / 2) / np.sqrt(2 * np.pi) + near * ndtr(near))
    tail = 1 + far * np.sqrt(np.pi / 2) * erfcx(-far / np.sqrt(2))
    below = -(far**2) / 2 - np.log(2 * np.pi) / 2 + np.log(np.maximum(tail, 1e-300))
    return np.asarray(np.where(z > -1, above, below))
