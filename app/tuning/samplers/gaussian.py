"""A Gaussian process over points of the unit cube, and the improvement that it expects.

Matérn 5/2 with a length of its own for each parameter (Snoek et al. 2012, §3.1). Lengths, and the noise, are the most
probable ones; that lengths grow with the square root of the number of parameters is the prior of Hvarfner et al. 2024
(arXiv 2402.02229, eq. 7), with which few points are enough. Losses are standardised, and the worst
pulled in: how bad they are says nothing of where the best is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import erfcx, ndtr

Numbers = npt.NDArray[np.float64]

LENGTH_SD = 3**0.5
NOISE, NOISE_SD, LEAST_NOISE = -8.0, 2.0, -12.0
"""Of the noise's logarithm, in parts of the variance of the losses: its mean and deviation, and its least."""
FENCE = 1.5
"""Losses are pulled in to here above the upper quartile, in distances of the quartiles (Tukey's fences)."""

MOST = 1e100
"""Losses beyond it, either way, are as good as equal: their squares must be numbers."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """Fitted to losses. points: [n, p], in the unit cube; groups: of each column, the number of its parameter.

    losses: [n], as the model has them; center, scale: what makes real losses of them.
    """

    points: Numbers
    losses: Numbers
    center: float
    scale: float
    lengths: Numbers
    noise: float
    factor: Numbers
    weights: Numbers

    @property
    def best(self) -> float:
        """The least loss that was seen, as the model has it."""
        return float(self.losses.min())

    def at(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """Mean and standard deviation of the loss at points [m, p], as the model has it: each [m]."""
        across = _matern(_squares(points, self.points) @ self.lengths**-2)
        within = solve_triangular(self.factor, across.T, lower=True)
        return across @ self.weights, np.sqrt(np.maximum(1e-12, 1 - (within**2).sum(axis=0)))

    def skill(self) -> float:
        """How much of the losses' variance it foretells, each from all the others: 1 for all, at worst 0.

        Leave-one-out errors have a closed form (Rasmussen and Williams 2006, eq. 5.12).
        """
        inverse = cho_solve((self.factor, True), np.eye(len(self.losses)))
        errors = self.weights / np.diag(inverse)
        spread = self.losses - self.losses.mean()
        return float(np.clip(1 - (errors @ errors) / max(1e-12, float(spread @ spread)), 0.0, 1.0))

    def believing(self, points: Numbers) -> GaussianProcess:
        """The process that has seen its own means at these points: they are under way (Ginsbourger et al. 2010)."""
        if not len(points):
            return self
        losses = np.concatenate([self.losses, self.at(points)[0]])
        return _made(np.vstack([self.points, points]), losses, self.center, self.scale, self.lengths, self.noise)

    def log_improvement(self, points: Numbers) -> Numbers:
        """The logarithm of the expected improvement on the best loss, at points [m, p] (Ament et al. 2023, eq. 9)."""
        mean, deviation = self.at(points)
        return _log_h((self.best - mean) / deviation) + np.log(deviation)


def fitted(points: Numbers, losses: Numbers, groups: npt.NDArray[np.int64]) -> GaussianProcess:
    """The process with the most probable lengths and noise."""
    losses = np.clip(losses, -MOST, MOST)
    low, high = np.quantile(losses, [0.25, 0.75])
    pulled = np.minimum(losses, high + FENCE * (high - low)) if high > low else losses
    center, scale = float(pulled.mean()), float(pulled.std()) or 1.0
    ours, squares = (pulled - center) / scale, _squares(points, points)
    count = int(groups.max(initial=-1)) + 1
    grouped = np.stack([squares[:, :, groups == each].sum(axis=2) for each in range(count)], axis=2)
    usual = 2**0.5 + np.log(max(1, count)) / 2
    start = np.append(np.full(count, usual), NOISE)
    bounds = [(-3.0, 6.0)] * count + [(LEAST_NOISE, 0.0)]
    optimum = minimize(_cost, start, args=(grouped, ours, usual), jac=True, method="L-BFGS-B", bounds=bounds)
    return _made(points, ours, center, scale, np.exp(optimum.x[:-1])[groups], float(np.exp(optimum.x[-1])))


def _made(
    points: Numbers, losses: Numbers, center: float, scale: float, lengths: Numbers, noise: float
) -> GaussianProcess:
    kernel = _matern(_squares(points, points) @ lengths**-2) + (noise + 1e-8) * np.eye(len(points))
    factor = cholesky(kernel, lower=True)
    return GaussianProcess(points, losses, center, scale, lengths, noise, factor, cho_solve((factor, True), losses))


def _cost(at: Numbers, squares: Numbers, losses: Numbers, usual: float) -> tuple[float, Numbers]:
    """The negative logarithm of how probable lengths and noise are, and its slopes."""
    lengths, noise = np.exp(at[:-1]), np.exp(at[-1])
    square = squares @ lengths**-2
    kernel = _matern(square) + (noise + 1e-8) * np.eye(len(losses))
    factor = cholesky(kernel, lower=True)
    weights = cho_solve((factor, True), losses)
    inner = np.outer(weights, weights) - cho_solve((factor, True), np.eye(len(losses)))
    steep = _matern_slope(square) * inner
    slopes = np.append(-np.einsum("ij,ijk->k", steep, squares) / lengths**2, -np.trace(inner) * noise / 2)
    away = np.append((at[:-1] - usual) / LENGTH_SD, (at[-1] - NOISE) / NOISE_SD)
    sds = np.append(np.full(len(lengths), LENGTH_SD), NOISE_SD)
    value = losses @ weights / 2 + np.log(np.diag(factor)).sum() + away @ away / 2
    return float(value), slopes + away / sds


def _squares(one: Numbers, other: Numbers) -> Numbers:
    """The squares of the differences, by column: [n, m, p]."""
    return np.asarray((one[:, None, :] - other[None, :, :]) ** 2)


def _matern(square: Numbers) -> Numbers:
    far = np.sqrt(5 * square)
    return np.asarray((1 + far + far**2 / 3) * np.exp(-far))


def _matern_slope(square: Numbers) -> Numbers:
    """Minus the derivative by the square of the distance: 5/6 (1 + sqrt(5) r) exp(-sqrt(5) r)."""
    far = np.sqrt(5 * square)
    return np.asarray(5 / 6 * (1 + far) * np.exp(-far))


def _log_h(z: Numbers) -> Numbers:
    """The logarithm of phi(z) + z Phi(z), to full precision far below 0 as well."""
    near, far = np.maximum(z, -1.0), np.minimum(z, -1.0)
    above = np.log(np.exp(-(near**2) / 2) / np.sqrt(2 * np.pi) + near * ndtr(near))
    tail = 1 + far * np.sqrt(np.pi / 2) * erfcx(-far / np.sqrt(2))
    below = -(far**2) / 2 - np.log(2 * np.pi) / 2 + np.log(np.maximum(tail, 1e-300))
    return np.asarray(np.where(z > -1, above, below))
