"""The steps at which tuners decide: rungs and brackets, and the boundaries of tuners that predict learning curves."""

from __future__ import annotations

from collections.abc import Sequence

ENDLESS = 40
"""How many rungs there are without a highest one. No study reaches the last of them."""


def rung_steps(least: int, most: int | None, factor: int, early_stopping_rate: int = 0) -> list[int]:
    """The rungs of a bracket: r * eta^(s + k), with `most` as the last (r_i in Algorithm 1).

    If `most` is not a power of `factor` times `least`, one more rung at `most` ensures that the best trial is trained
    to the end. Without `most` (infinite horizon), there are `ENDLESS` rungs.
    """
    rungs = (least * factor ** (early_stopping_rate + rung) for rung in range(ENDLESS))
    return list(rungs) if most is None else [*(steps for steps in rungs if steps < most), most]


def rungs_down_from(most: int, rungs: int, factor: int) -> list[int]:
    """`rungs` rungs, counted from the top: R / eta^k, rounded down (Hyperband, Algorithm 1: R eta^-s)."""
    return [most // factor**rung for rung in reversed(range(rungs))]


def log_floor(most: int, least: int, factor: int) -> int:
    """floor(log_factor(most / least)), exact."""
    exponent = 0
    while least * factor ** (exponent + 1) <= most:
        exponent += 1
    return exponent


def bracket_sizes(trials: int, rungs: int, eta: int, brackets: int) -> list[int]:
    """How many of the trials each bracket gets: inversely to its mean steps per configuration (ASHA paper, §5.1).

    With B = `rungs`, bracket s has B - s rungs and so takes (B - s) / eta^(B - 1 - s) of `max_steps` per configuration.
    Trials are assigned one by one by Balinski and Young's quota method: to the neediest bracket among those not ahead
    of their exact share. No size is off by one or more, and none decreases when trials are added, as can happen with
    largest remainders.
    """
    inverse = [eta ** (rungs - 1 - s) / (rungs - s) for s in range(brackets)]
    whole, counts = sum(inverse), [0] * brackets
    for number in range(1, trials + 1):
        behind = [
            (inverse[s] / (counts[s] + 1), -s) for s in range(brackets) if counts[s] * whole < number * inverse[s]
        ]
        counts[-max(behind)[1]] += 1
    return counts


def guaranteed_steps(trials: int, ladders: Sequence[Sequence[int]], eta: int) -> int:
    """The steps that at least one trial of ASHA reaches for any results, if none fails.

    Of n trials at a rung, at least floor(n / eta) are promoted. In one bracket that makes rung floor(log_eta(n)),
    counted from 0.
    """
    widths = bracket_sizes(trials, len(ladders[0]), eta, len(ladders))
    climbed = ((ladder, log_floor(width, 1, eta)) for ladder, width in zip(ladders, widths, strict=True) if width)
    return max(ladder[min(rung, len(ladder) - 1)] for ladder, rung in climbed)


BOUNDARIES = 10
"""The default number of boundaries of a trial: "5-10 % of the max epoch" (Rasley et al. 2017, §9)."""

MIN_EVALUATIONS = 4
"""With fewer evaluations, a curve has no shape yet and its prediction is little more than its current value. (The
papers wait for ten or thirty.)
"""


def boundary_steps(chosen: int | None, most: int) -> int:
    """The steps between two decisions: as chosen, or by default."""
    return chosen or -(-most // BOUNDARIES)


def requested_steps(boundary: int, eval_every: int | None, most: int) -> list[int]:
    """The steps at which trials are requested: every boundary, every evaluation between them, and the last."""
    return sorted({*range(boundary, most, boundary), *range(eval_every or most, most, eval_every or most), most})


def max_evaluations(boundary: int, eval_every: int | None, most: int) -> int:
    """How many evaluations a trial has at its last decision; 0 if there is none before its end."""
    last = (most - 1) // boundary * boundary
    return sum(step <= last for step in requested_steps(boundary, eval_every, most))


MAX_RUNGS = 5
"""The maximum number of rungs of asynchronous Hyperband without `min_steps` (ASHA paper, §5.1)."""
