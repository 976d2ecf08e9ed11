"""The shapes that a learning curve may have: the eleven families of Domhan et al. (IJCAI 2015, table 1) as six.

Five of the eleven repeat others. Where c is the limit, and a, b, ... are numbers of each trial:

| here | theirs | formula |
|---|---|---|
| power | pow3 (b = 0, with a), pow4 | c - (a x + b) ** -alpha |
| inverse_log | ilog2 | c - a / ln(x + 1) |
| log_log | loglog_linear | ln(a ln x + b) |
| vapor | vapor pressure | exp(a + b / x + c ln x) |
| exponential | weibull, janoschek, exp4 (up to its b) | alpha - (alpha - beta) exp(-(k x) ** delta) |
| hill | mmf, hill3 (beta = 0), logistic "log power" (beta = 0) | alpha - (alpha - beta) / (1 + (k x) ** delta) |

Given its shape parameters, each of them is level + gain * shape(x): linear in what differs between trials. So a shape
here is a function without parameters, scaled to begin at 0 and to go as far as 1 from there by the horizon; then "gain"
means the same for all of them, and one prior serves them all. ln(a ln x + b) is ln a + ln(ln x + b / a) with a gain of
1, and exp(a + ...) is exp(a) times the rest with a level of 0: here both have a level and a gain of their own, which
holds theirs.

The clock runs from 0 to 1, at the horizon. x of the papers counts epochs from 1; here it is 1 + clock / unit, so that a
shape does not depend on what a step is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Formula = Callable[[Array, Sequence[Array]], Array]

UNTIL_HALF = (0.03, 0.08, 0.2, 0.4, 0.6, 0.85)
"""Where exponential and hill are half way, as a part of the horizon."""


def _power(clock: Array, at: Sequence[Array]) -> Array:
    unit, alpha = at
    return -np.power(1 + clock / unit, -alpha)


def _inverse_log(clock: Array, at: Sequence[Array]) -> Array:
    (unit,) = at
    return -1 / np.log(2 + clock / unit)


def _log_log(clock: Array, at: Sequence[Array]) -> Array:
    unit, offset = at
    return np.log(np.log1p(clock / unit) + offset)


def _vapor(clock: Array, at: Sequence[Array]) -> Array:
    unit, b, c = at
    x = 1 + clock / unit
    return np.exp(b / x + c * np.log(x))


def _exponential(clock: Array, at: Sequence[Array]) -> Array:
    half, delta = at
    return np.asarray(-np.exp(-np.log(2) * (clock / half) ** delta))


def _hill(clock: Array, at: Sequence[Array]) -> Array:
    half, delta = at
    return -1 / (1 + (clock / half) ** delta)


FAMILIES: dict[str, tuple[Formula, tuple[tuple[float, ...], ...]]] = {
    "power": (_power, tuple(product((0.01, 0.05, 0.2, 1.0), (0.3, 1.0, 3.0)))),
    "inverse_log": (_inverse_log, ((0.003,), (0.02,), (0.1,), (0.5,))),
    "log_log": (_log_log, tuple(product((0.01, 0.1), (0.3, 2.0)))),
    "vapor": (_vapor, tuple((unit, *at) for unit in (0.02, 0.1) for at in ((-3, 0), (-3, -0.3), (-1, 0.1), (-10, 0)))),
    "exponential": (_exponential, tuple(product(UNTIL_HALF, (0.6, 1.0, 2.0, 5.0)))),
    "hill": (_hill, tuple(product(UNTIL_HALF, (1.0, 2.0, 5.0, 12.0)))),
}
"""Of each family its formula, and the shape parameters at which it is tried: the nodes of a quadrature."""

_PARAMETERS = [(formula, list(np.array(nodes, dtype=float).T[:, :, None])) for formula, nodes in FAMILIES.values()]
NUM_SHAPES = sum(len(nodes) for _, nodes in FAMILIES.values())


def _raw(clock: Array) -> Array:
    return np.concatenate([formula(clock, at) for formula, at in _PARAMETERS])


_BEGIN = _raw(np.zeros(1))
_REACH = np.abs(_raw(np.linspace(0, 1, 101)) - _BEGIN).max(axis=1, keepdims=True)


def shapes(clock: Array) -> Array:
    """Every shape (a row each) at some times of the clock, which are 0 or more. It may run beyond the horizon."""
    return np.asarray((_raw(clock) - _BEGIN) / _REACH)
