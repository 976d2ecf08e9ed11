"""Laws that foretell a loss from its learning rates, and synthetic tasks made of them, for benchmarks of searches.

`annealing` is the law of Tissue et al. 2024 (arXiv 2408.11029, eq. 1), `multi_power` that of Luo et al. 2025 (arXiv
2503.12811, eq. 1). Both are of language models under any schedule, and say what no power law of the step says: how
much a loss falls while the rate does. Rates are in parts of a usual one, so that 1.0 is usual; a step stands for some
hundred of an optimizer. The constants are ours, of a size that makes the last fifth of 100 steps a good decay.

Neither law knows a rate that is too large: the longer and the higher, the better. `Task` adds that, and what other
hyper-parameters cost, as terms that have their least at places which its seed decides.

>>> flat = annealing(np.ones(100))
>>> decayed = annealing(np.concatenate([np.ones(80), np.linspace(1, 0, 20)]))
>>> bool(decayed[-1] < flat[-1]), bool((decayed[:80] == flat[:80]).all())
(True, True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

Rates = npt.NDArray[np.float64]
"""The learning rate of each step, from step 0 on."""
Losses = npt.NDArray[np.float64]
"""The loss after each step: `losses[0]` after the first."""

FLOOR = 2.6
"""The loss that no training comes under: L0 of both laws."""


def annealing(rates: Rates, *, a: float = 4.0, alpha: float = 0.5, c: float = 0.018, memory: float = 0.9) -> Losses:
    """L = L0 + a S1^-alpha - c S2: S1 adds up rates, S2 how far they fell, with a momentum of `memory` a step.

    S2(s) = sum over i <= s, k <= i of (rate(k - 1) - rate(k)) memory^(i - k): what fell counts more, the longer ago.
    """
    fell = np.concatenate([[0.0], rates[:-1] - rates[1:]])
    fell[: int(np.argmax(rates)) + 1] = 0.0  # rates that rise are a warm-up, not an annealing that is taken back
    momentum, held = np.empty_like(rates), 0.0
    for step, each in enumerate(fell):
        momentum[step] = held = memory * held + each
    return FLOOR + a * _summed(rates) ** -alpha - c * np.cumsum(momentum)


def multi_power(
    rates: Rates,
    *,
    a: float = 4.0,
    alpha: float = 0.5,
    b: float = 0.3,
    c: float = 0.5,
    beta: float = 0.6,
    gamma: float = 0.5,
) -> Losses:
    """L = L0 + a S1^-alpha - b * sum over k <= t of (rate(k - 1) - rate(k)) G(rate(k)^-gamma S(k, t)).

    S(k, t) adds up the rates of steps k to t, and G(x) = 1 - (1 + c x)^-beta: what a fall has brought by step t.
    """
    sums, losses = _summed(rates), np.empty_like(rates)
    fell = np.maximum(0.0, np.concatenate([[0.0], rates[:-1] - rates[1:]]))
    fallen = np.maximum(rates, 1e-6) ** -gamma
    for step in range(len(rates)):
        since = sums[step] - sums[: step + 1] + rates[: step + 1]
        losses[step] = fell[: step + 1] @ (1 - (1 + c * fallen[: step + 1] * since) ** -beta)
    return FLOOR + a * sums**-alpha - b * losses


def _summed(rates: Rates) -> Rates:
    """S1: the sum of the rates so far."""
    return np.maximum(np.cumsum(rates), 1e-3)


LAWS: dict[str, Callable[[Rates], Losses]] = {"annealing": annealing, "multi_power": multi_power}


@dataclass(frozen=True, slots=True)
class Task:
    """A law, and what its seed makes of the rest: the largest rate that is good, and where the others are best.

    Losses are a function of the schedule alone, without noise: trials that begin alike are equal until they part.
    """

    law: str
    seed: int

    def losses(self, rates: Rates, others: Mapping[str, float]) -> Losses:
        """After each step of a trial with these rates; `others` than the rate on a scale from 0 to 1 each."""
        terms = sum(self._term(name, at) for name, at in sorted(others.items()))
        return LAWS[self.law](rates) + self._too_large(rates) + terms

    def _too_large(self, rates: Rates) -> Losses:
        """The cost of the largest rate so far, where it is too large here."""
        best = 0.5 * 4 ** Random(f"{self.seed}/rate").random()
        largest = np.maximum.accumulate(np.maximum(rates, 1e-9))
        return 0.6 * np.maximum(0.0, np.log(largest / best)) ** 2

    def _term(self, name: str, at: float) -> float:
        chance = Random(f"{self.seed}/{name}")
        return (0.1 + 0.2 * chance.random()) * (at - chance.random()) ** 2
