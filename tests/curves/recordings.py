"""Synthetic studies: curves that resemble recorded ones. Half of them learn, some crash, the others stay flat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.search.curves import Bend, Curve

Array = npt.NDArray[np.float64]
HORIZON = 100
STEPS = tuple(range(5, HORIZON + 1, 5))


def accuracies(number: int, seed: int = 0) -> Array:
    """A row for each trial: half of them learn, and a tenth of these crash."""
    rng = np.random.default_rng(seed)
    t = np.array(STEPS) / HORIZON
    reach = np.where(rng.random(number) < 0.5, rng.uniform(0.3, 0.8, number), 0.0)[:, None]
    curves = 0.1 + reach * (1 - np.exp(-t / rng.uniform(0.05, 0.5, number)[:, None]))
    crash = rng.uniform(0.2, 9, number)[:, None]
    curves = np.where((t > crash) & (reach > 0), 0.1, curves)
    return np.asarray(curves + rng.normal(0, 0.004, curves.shape))


def curve(values: Array, until: int = HORIZON, bends: tuple[Bend, ...] = ()) -> Curve:
    """The known part of a row after a step."""
    number = sum(step <= until for step in STEPS)
    return Curve(STEPS[:number], tuple(map(float, values[:number])), bends)
