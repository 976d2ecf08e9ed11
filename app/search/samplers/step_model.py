"""A Gaussian process over configurations and steps, which learns from the results at every rung.

The step is an input of the process, as the fidelity is in BOCA (Kandasamy et al. 2017, arXiv 1703.06240, §3): a trial
that was stopped tells what its configuration comes to early. If losses rise with steps, as far as trials with results
at both steps show it, that is subtracted first: else the trials that were promoted would look like bad ones. A fall is
not, because the trials that were stopped might have fallen less. Predictions are for the highest step with a result.
Where all results are at one step, the process is over configurations alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log1p
from statistics import median

import numpy as np

from app.search.samplers.base import Values
from app.search.samplers.cube import Cube
from app.search.samplers.gaussian import Numbers, fit_process
from app.search.samplers.learning import KnownTrial, KnownTrials

MOST_TRIALS, MOST_RESULTS = 80, 120
"""The model learns from this many: a fit takes as the cube of the results."""

STEP_CHANGED = 0.25
"""The step counts as a parameter that changes this part of a trial: an early result says nearly as much as a late one,
until results show otherwise.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """The loss of a trial after a number of steps."""

    trial: KnownTrial
    step: int
    loss: float


class StepModel:
    """Fitted to the results of known trials, at least one. Trials under way count with their predicted losses.

    changed: [parameters], as in `fit_process`.
    """

    def __init__(self, cube: Cube, known: KnownTrials, changed: Numbers | None = None) -> None:
        results = choose_results(known)
        steps = sorted({result.step for result in results})
        self._cube, self._last, self._has_steps = cube, steps[-1], len(steps) > 1
        groups = cube.groups
        if self._has_steps:
            groups = np.append(groups, groups.max(initial=-1) + 1)
            changed = np.append(np.ones(len(cube.places)) if changed is None else changed, STEP_CHANGED)
        points = self._points((result.trial.sample, result.step) for result in results)
        rises = step_rises(known, steps)
        losses = np.array([result.loss - rises[result.step] for result in results])
        process = fit_process(points, losses, groups, changed)
        waiting = [trial.sample for trial in known if trial.is_waiting]
        self._process = process.assume_means(self._final_points(waiting))
        self._best = self._least([result.trial.sample for result in results] + waiting)

    def log_improvement(self, samples: Iterable[Values]) -> Numbers:
        """The logarithm of the expected improvement of each on the best of the known trials, at the last step."""
        return self._process.log_improvement(self._final_points(samples), self._best)

    def _least(self, samples: Sequence[Values]) -> float:
        """The least predicted loss at the last step, which has less noise than a result."""
        return float(self._process.predict(self._final_points(samples))[0].min())

    def _final_points(self, samples: Iterable[Values]) -> Numbers:
        return self._points((sample, self._last) for sample in samples)

    def _points(self, rows: Iterable[tuple[Values, int]]) -> Numbers:
        """[n, width], and one column more for the step, by its logarithm, where that matters."""
        listed = list(rows)
        points = self._cube.points([sample for sample, _ in listed])
        if not self._has_steps:
            return points
        shares = [log1p(step) / log1p(self._last) for _, step in listed]
        return np.hstack([points, np.array(shares).reshape(-1, 1)])


def choose_results(known: KnownTrials) -> list[Observation]:
    """The last result of each trial, and an earlier one of the best. A trial that failed counts as the worst.

    Of many trials, half are the best, and the others stand for the rest: a model of the best ones alone would not know
    where the bad ones are.
    """
    ranked, failed = known.ranked(), known.failed()
    worst = max(trial.losses[trial.last] for trial in ranked)
    last = [Observation(trial, trial.last, trial.losses[trial.last]) for trial in ranked]
    last += [Observation(trial, ranked[0].last, worst) for trial in failed]
    chosen = _thin(last, MOST_TRIALS)
    return [*chosen, *_earlier(ranked)][:MOST_RESULTS]


def step_rises(known: KnownTrials, steps: Sequence[int]) -> dict[int, float]:
    """How much the loss has risen at each of these ascending steps since the first: the sum of the median differences
    from step to step that are above 0, each over the trials with both results.

    The trials that were promoted are the better ones, so a mean of theirs alone would say nothing of the steps.
    """
    rises, risen = {steps[0]: 0.0}, 0.0
    for one, other in pairwise(steps):
        pairs = [trial.losses[other] - trial.losses[one] for trial in known if {one, other} <= trial.losses.keys()]
        risen += max(0.0, median(pairs) if pairs else _median_at(known, other) - _median_at(known, one))
        rises[other] = risen
    return rises


def _median_at(known: KnownTrials, step: int) -> float:
    return median([trial.losses[step] for trial in known if step in trial.losses])


def _earlier(ranked: Iterable[KnownTrial]) -> Iterator[Observation]:
    for trial in ranked:
        if (step := trial.earlier) is not None:
            yield Observation(trial, step, trial.losses[step])


def _thin(results: list[Observation], most: int) -> list[Observation]:
    """The first half of them, and as many of the rest, evenly spread."""
    if len(results) <= most:
        return results
    best, rest = results[: most // 2], results[most // 2 :]
    return best + [rest[number * len(rest) // (most - len(best))] for number in range(most - len(best))]
