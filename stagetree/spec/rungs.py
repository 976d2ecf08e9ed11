"""The steps at which tuners decide: rungs and brackets, and the boundaries of tuners that predict curves."""

from __future__ import annotations

from collections.abc import Sequence

ENDLESS = 40
"""How many rungs there are without a highest: no study climbs them all."""


def rung_steps(least: int, most: int | None, factor: int, early_stopping_rate: int = 0) -> list[int]:
    """The steps at which the rungs of a bracket stand: r * eta^(s + k), and `most` for the last (r_i in Algorithm 1).

    Where `most` is no power of `factor` times `least`, there is one more rung at `most`, so that the best trial is
    always trained to the end. Without `most` (infinite horizon) the rungs have no end.
    """
    rungs = (least * factor ** (early_stopping_rate + rung) for rung in range(ENDLESS))
    return list(rungs) if most is None else [*(steps for steps in rungs if steps < most), most]


def rungs_down_from(most: int, rungs: int, factor: int) -> list[int]:
    """The steps of so many rungs, counted from the top: R / eta^k, rounded down (Hyperband, Algorithm 1: R eta^-s)."""
    return [most // factor**rung for rung in reversed(range(rungs))]


def log_floor(most: int, least: int, factor: int) -> int:
    """floor(log_factor(most / least)), exact."""
    found = 0
    while least * factor ** (found + 1) <= most:
        found += 1
    return found


def shares(trials: int, rungs: int, eta: int, brackets: int) -> list[int]:
    """How many of the trials each bracket gets: inversely to its average steps a configuration (ASHA paper, §5.1).

    With B = `rungs`, bracket s has B - s rungs and so takes (B - s) / eta^(B - 1 - s) of `max_steps` a configuration.
    Each next trial goes where it is needed most, of the brackets that are not ahead of their exact share (Balinski and
    Young's quota method): so no share is off by one, and none shrinks when there are more trials, as it may where
    remainders are compared.
    """
    inverse = [eta ** (rungs - 1 - s) / (rungs - s) for s in range(brackets)]
    whole, given = sum(inverse), [0] * brackets
    for number in range(1, trials + 1):
        behind = [(inverse[s] / (given[s] + 1), -s) for s in range(brackets) if given[s] * whole < number * inverse[s]]
        given[-max(behind)[1]] += 1
    return given


def sure_steps(trials: int, ladders: Sequence[Sequence[int]], eta: int) -> int:
    """The steps that some trial of ASHA on these brackets comes to, whatever the results, if none fails.

    Of n trials at a rung, floor(n / eta) or more go on; more only where trials that came late are better than those
    that went on before them. In one bracket it is the rung floor(log_eta(n)), from 0.
    """
    widths = shares(trials, len(ladders[0]), eta, len(ladders))
    climbed = ((ladder, log_floor(width, 1, eta)) for ladder, width in zip(ladders, widths, strict=True) if width)
    return max(ladder[min(rung, len(ladder) - 1)] for ladder, rung in climbed)


BOUNDARIES = 10
"""Of a trial where the study names no boundary: "5-10 % of the max epoch" (Rasley et al. 2017, §9)."""

LEAST_POINTS = 4
"""A curve with fewer evaluations has no shape yet: what is foretold of it is hardly more than what it is now. (In the
papers there are ten, or thirty, before anything is decided.)"""


def boundary_of(chosen: int | None, most: int) -> int:
    """The steps between two decisions: those that were chosen, if any."""
    return chosen or -(-most // BOUNDARIES)


def steps_asked(boundary: int, eval_every: int | None, most: int) -> list[int]:
    """The steps that trials are asked for: every boundary, every evaluation between them, and the last."""
    return sorted({*range(boundary, most, boundary), *range(eval_every or most, most, eval_every or most), most})


def most_points(boundary: int, eval_every: int | None, most: int) -> int:
    """How many evaluations a trial has had when it comes to its last decision; 0 where there is none before its end."""
    last = (most - 1) // boundary * boundary
    return sum(step <= last for step in steps_asked(boundary, eval_every, most))
