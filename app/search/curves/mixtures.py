"""Mixtures of normal distributions, one a row, with any number of components each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NOTHING = -600.0
"""Logarithms are cut off here: exponentials of less are denormal, and ten times slower."""
_HALVINGS = 60
_LOG_ROOT_TWO_PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, slots=True)
class Mixtures:
    """The components of some rows, in any order; every row has at least one with a weight."""

    row: Integers
    weight: Array
    mean: Array
    spread: Array
    rows: int

    def total(self, values: Array) -> Array:
        """The weighted sum of a value of each component, by row."""
        return np.asarray(np.bincount(self.row, self.weight * values, self.rows), dtype=float)

    def expectation(self) -> Array:
        """The mean of each row."""
        return self.total(self.mean)

    def below(self, values: Array) -> Array:
        """The probability of at most values[row], by row."""
        from scipy.special import ndtr  # not at the top: every command imports the tuners, and few predict

        return np.minimum(self.total(ndtr((values[self.row] - self.mean) / self.spread)), 1.0)

    def log_density(self, values: Array) -> Array:
        """The logarithm of the density at values[row], by row."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.weight / self.spread) - 0.5 * ((values[self.row] - self.mean) / self.spread) ** 2
            most = np.full(self.rows, -np.inf)
            np.maximum.at(most, self.row, logs)
            sums = np.bincount(self.row, np.exp(np.maximum(logs - most[self.row], NOTHING)), self.rows)
            return np.asarray(most + np.log(sums) - _LOG_ROOT_TWO_PI)

    def spread_by(self, factor: float) -> Mixtures:
        """The spread of each component multiplied by a factor."""
        return replace(self, spread=self.spread * factor)

    def quantile(self, q: float) -> Array:
        """The q-quantile by row, by bisection between the components' quantiles."""
        from scipy.special import ndtri

        edges = self.mean + self.spread * ndtri(q)
        low, high = np.full(self.rows, np.inf), np.full(self.rows, -np.inf)
        np.minimum.at(low, self.row, edges)
        np.maximum.at(high, self.row, edges)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            under = self.below(middle) < q
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.asarray((low + high) / 2)


def stack(parts: Sequence[tuple[Array, Mixtures]]) -> Mixtures:
    """One mixture a row out of several, with the share of each in each row. The shares add up to 1."""
    row = np.concatenate([part.row for _, part in parts])
    weight = np.concatenate([share[part.row] * part.weight for share, part in parts])
    mean = np.concatenate([part.mean for _, part in parts])
    spread = np.concatenate([part.spread for _, part in parts])
    used = weight > 0
    return Mixtures(row[used], weight[used], mean[used], spread[used], parts[0][1].rows)
