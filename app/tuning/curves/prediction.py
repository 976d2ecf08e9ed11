"""What some curves come to: each alone, by the drift, by the drift of similar ones, and by surprise, in one mixture."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from app.tuning.curves.drift import UNKNOWN, Drift, Kernels, Row
from app.tuning.curves.learning import View
from app.tuning.curves.mixtures import Integers, Mixtures, stack
from app.tuning.curves.quadrature import Fit, Fits, uniform
from app.tuning.curves.scale import Scale

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ENOUGH = 4
"""The drift has a share once so many ended curves foretell a curve."""
ALONE = np.array([0.98, 0.0, 0.0, 0.02])
"""The shares of the curve alone, the drift, the drift of similar curves, and a surprise, before anything is learnt."""
WIDTHS = (0.8, 1.0, 1.25, 1.6)
"""What the spread of the curve alone may be multiplied with. Before anything is learnt, it is the first of them."""
SURPRISES = np.array([0.1, 0.3, 1.0, 3.0, 10.0])
"""Around the last value, normal distributions of so many units, equally likely: what nothing foretells."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a study's ended curves taught; by default, nothing.

    trust: the share of the last value's plain verdict about a target, see `learning.learn_trust`.
    """

    scale: Scale | None = None
    drift: Drift = field(default_factory=Drift)
    middle: float = 0.5
    log_prior: Array = field(default_factory=uniform)
    shares: Array = field(default_factory=ALONE.copy)
    width: float = WIDTHS[0]
    trust: Array = field(default_factory=lambda: np.zeros((2, 2)))


class Batch:
    """Curves that are predicted together. All answers are in units, with a row for each curve."""

    def __init__(
        self, learnt: Learnt, horizon: int, rows: Sequence[Row], views: Sequence[View], fits: Sequence[Fit]
    ) -> None:
        self.rows, self._learnt, self._horizon = rows, learnt, horizon
        self.last_step = np.array([row.curve.last_step for row in rows])
        self.last = np.array([row.units[-1] if row.curve.steps else learnt.middle for row in rows])
        self._begun = self.last_step >= 0
        self._fits = Fits(fits)
        self._begin, self._length = (np.array(part) for part in zip(*(view[2:4] for view in views), strict=True))
        self._factor = np.array([view.factor for view in views])
        self._mixtures: dict[int, Mixtures] = {}
        self._alone: dict[int, Mixtures] = {}
        self._kernels: dict[int, Kernels] = {}
        self._bent: dict[int, Flags] = {}

    def with_learnt(self, learnt: Learnt) -> Batch:
        """The same curves and posteriors, where more has been learnt of the rest."""
        other = copy(self)
        other._learnt, other._mixtures = learnt, {}
        return other

    def at(self, step: int) -> Mixtures:
        """What the curves come to at a step."""
        if step not in self._mixtures:
            self._mixtures[step] = self._stacked(step)
        return self._mixtures[step]

    def reaches(self, step: int, target: Array) -> Array:
        """The probability of at least a target at a step: of the distribution, and the last value's plain verdict."""
        verdicts = (self.last >= target).astype(int)
        share = self._trust(step, verdicts)
        return np.asarray((1 - share) * (1 - self.at(step).below(target)) + share * verdicts)

    def bend_before(self, step: int) -> Flags:
        """Whether a bend lies between now and then."""
        if step not in self._bent:
            ahead = [row.curve.bends_within(row.curve.last_step, step) for row in self.rows]
            self._bent[step] = np.array([bool(bends) for bends in ahead])
        return self._bent[step]

    def alone(self, step: int) -> Mixtures:
        """What each curve says itself. What a bend on the way will do it does not know."""
        if step not in self._alone:
            own = self._fits.at(np.maximum(step - self._begin, 0) / self._length)
            factor, unknown = self._factor[own.row], np.where(self.bend_before(step), UNKNOWN, 0.0)[own.row]
            mean, spread = self._learnt.middle + factor * own.mean, np.hypot(factor * own.spread, unknown)
            self._alone[step] = replace(own, mean=mean, spread=spread)
        return self._alone[step]

    def others(self, step: int) -> Kernels:
        """What the ended curves foretell."""
        if step not in self._kernels:
            self._kernels[step] = self._learnt.drift.at(self.rows, step)
        return self._kernels[step]

    def surprise(self) -> Mixtures:
        """What nothing foretells."""
        rows, each = len(self.rows), len(SURPRISES)
        where = np.repeat(np.arange(rows), each)
        return Mixtures(where, np.full(rows * each, 1 / each), self.last[where], np.tile(SURPRISES, rows), rows)

    def _stacked(self, step: int) -> Mixtures:
        """All predictions of a step, each with its share."""
        kernels = self.others(step)
        alone, plain, similar, surprise = self._divide(kernels.peers, step)
        others = (np.ones(len(self.rows)), kernels.pooled(plain, similar))
        return stack([(alone, self.alone(step).spread_by(self._learnt.width)), others, (surprise, self.surprise())])

    def _trust(self, step: int, verdicts: Integers) -> Array:
        """The share of these verdicts: none where a bend may change all."""
        begin, growth = self._learnt.trust[verdicts].T
        share = np.clip(begin + growth * self.last_step / self._horizon, 0, 1)
        return np.where(self._begun & ~self.bend_before(step), share, 0.0)

    def _divide(self, peers: Integers, step: int) -> Array:
        """The shares of the four predictions, a column for each curve.

        One that has not begun, or comes to a bend, says nothing itself: there its peers count by how many they are.
        """
        enough = peers >= ENOUGH
        alone, plain, similar, surprise = np.where(enough, self._learnt.shares[:, None], ALONE[:, None])
        alone = np.where(self.bend_before(step) | ~self._begun, (1 - surprise) / (1 + peers), alone)
        rest = 1 - surprise - alone
        part = np.where(enough & self._begun, plain / np.where(enough, plain + similar, 1.0), 1.0)
        return np.stack([alone, rest * part, rest * (1 - part), surprise])
