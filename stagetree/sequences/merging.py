"""Means of the states along a training: which of its states, and with which weights.

A mean of states at a constant learning rate resembles a decay of that rate. With states s_1 < ... < s_K and weights c_j
that add up to 1, the mean is

    sum_j c_j x_j  =  x_1 + sum_i w_i (x_{i+1} - x_i)     with  w_i = sum_{j > i} c_j,

so the steps between states i and i + 1 count w_i times, as if they had been taken at w_i times the rate. Read
backwards, c_1 = 1 - w_1, c_j = w_{j-1} - w_j, and c_K = w_{K-1} are the weights that imitate the falling factors w
(Tian et al. 2025, "WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM Pre-training", arXiv
2507.17634). A real decay differs in that each of its gradients is taken where the smaller steps before have led.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import pi, sin
from typing import Any

UNIFORM, LINEAR = "uniform", "linear"

_AREAS: dict[str, Callable[[float], float]] = {
    "linear": lambda u: u - u * u / 2,
    "cosine": lambda u: u / 2 + sin(pi * u) / (2 * pi),
    "sqrt": lambda u: u - u**1.5 / 1.5,
}
"""By the shape of a decay from 1 at u = 0 to 0 at u = 1, the integral of its factor from 0 to u.

The shapes are as of `wsd`: 1 - u, (1 + cos(pi u)) / 2 and 1 - sqrt(u).
"""

SHAPES = tuple(_AREAS)

_DIGITS = 12
"""Weights are recorded with these digits, which are equal on all platforms."""


def window_steps(window: float, at: int, states: int) -> int:
    """The steps from the first to the last of the averaged states: `window`, or that fraction of `at` steps.

    At least `states - 1`, one step between neighbours. Halves are rounded up.
    """
    steps = window if isinstance(window, int) else int(window * at + 0.5)
    return max(states - 1, steps)


def merged_steps(at: int, states: int, window: int) -> list[int]:
    """`states` steps, evenly spaced over the `window` steps that end with step `at`, each a whole number."""
    return [at - (2 * window * back + states - 1) // (2 * (states - 1)) for back in reversed(range(states))]


def merge_weights(steps: Sequence[int], weights: str | Mapping[str, str]) -> list[float]:
    """The weight of the state at each of these rising steps.

    `uniform`: 1. `linear`: 1, 2, 3, ... . `{decay: SHAPE}`: weights that imitate a decay of that shape from the first
    step to the last, where each interval between states has the mean factor of the decay there.
    """
    if weights == UNIFORM:
        return [1.0] * len(steps)
    if weights == LINEAR:
        return [float(number) for number in range(1, len(steps) + 1)]
    assert isinstance(weights, Mapping)
    factors = [1.0, *_mean_factors(steps, weights["decay"]), 0.0]
    return [round(before - after, _DIGITS) for before, after in pairwise(factors)]


def _mean_factors(steps: Sequence[int], shape: str) -> list[float]:
    """The mean factor of a decay over each interval between steps, falling from 1 to 0 over all of them."""
    area, first, length = _AREAS[shape], steps[0], steps[-1] - steps[0]
    places = [(step - first) / length for step in steps]
    return [(area(end) - area(begin)) / (end - begin) for begin, end in pairwise(places)]


def merged_states(value: Mapping[str, Any], at: int) -> list[tuple[int, float]]:
    """The steps and weights of the states that a `rung_value` of a merge averages at the rung of `at` steps.

    value: its fields `merge`, `window` and `weights`.
    """
    steps = merged_steps(at, value["merge"], window_steps(value["window"], at, value["merge"]))
    return list(zip(steps, merge_weights(steps, value["weights"]), strict=True))
